# SPDX-License-Identifier: Apache-2.0
"""Packs dist/gpu-check.tar.gz: the wheel for this Python, the benchmarks, and the packages they need beside torch.

On the machine with a GPU, with the same Python and torch for CUDA, without network:
    tar xf gpu-check.tar.gz && cd gpu-check
    python -m pip install --no-index --find-links wheels --no-deps wheels/*.whl
    python -m benchmarks.gpu_check --out results
"""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

_BESIDE_TORCH = ("jsonschema", "rich")
_MOST_BYTES = 60 << 20
_ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    dist = Path(sys.argv[1])
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    wheels = sorted(dist.glob(f"agspeed-*-{tag}-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        print(f"{dist} holds no wheel for {tag}: run `make gpu-archive`", file=sys.stderr)
        return 1
    archive = dist / "gpu-check.tar.gz"
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive, "w:gz") as tar:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", folder]
        subprocess.run([*download, *_BESIDE_TORCH], check=True)
        for wheel in [wheels[-1], *sorted(Path(folder).glob("*.whl"))]:
            tar.add(wheel, f"gpu-check/wheels/{wheel.name}")
        tar.add(_ROOT / "benchmarks", "gpu-check/benchmarks", filter=_without_caches)
    size = archive.stat().st_size
    print(f"{archive}: {size / 2**20:.0f} MiB")
    return 0 if size < _MOST_BYTES else 1


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in member.name else member


if __name__ == "__main__":
    sys.exit(main())
