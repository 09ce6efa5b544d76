# SPDX-License-Identifier: Apache-2.0
"""Decisions, kernels and archives of a cache, as agspeed writes them."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile

from agspeed.cli import cache_files
from agspeed.tuning import decision_table

KEY = {
    "graph": "9c1f",
    "shapes": [[64, 784]],
    "dtypes": ["f32"],
    "device": "cpu",
    "threads": 2,
    "isa": "avx512",
    "versions": {"agspeed": "0.1.0", "torch": "2.11.0"},
}
RECORD = {"arm": "native", "reason": "native is 1.43 times as fast as eager"}
ROW = {"key": KEY, "record": RECORD, "created": 5, "used": 6, "uses": 1}


def decision(
    graph: str = "9c1f", *, created: int = 1_767_225_600, used: int = 1_767_225_600
) -> decision_table.Decision:
    key = json.dumps(KEY | {"graph": graph}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return decision_table.Decision(key, json.dumps(RECORD, separators=(",", ":")), created, used, 3)


def kernel(key: bytes, payload: bytes) -> tuple[str, bytes]:
    """A kernel file as the compiler writes it: name and content."""
    checksum = 0xCBF29CE484222325
    for byte in key + payload:
        checksum = (checksum ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    header = struct.pack("=8sIIQQQ", b"AGKERNEL", 1, 0, len(key), len(payload), checksum)
    return cache_files.kernel_name(key), header + key + payload


def manifest(files: dict[str, bytes], **changes) -> bytes:
    checksums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return json.dumps({"format": "agspeed-cache", "version": 1, "files": checksums} | changes).encode()


def archive(path, files: dict[str, bytes], manifest_text: bytes | None = None):
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("manifest.json", manifest(files) if manifest_text is None else manifest_text)
        for name, data in files.items():
            target.writestr(name, data)
    return path


def lines(*rows: object) -> bytes:
    header = {"format": "agspeed-tuning", "version": 1}
    return "".join(json.dumps(row) + "\n" for row in (header, *rows)).encode()
