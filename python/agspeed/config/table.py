# SPDX-License-Identifier: Apache-2.0
"""The table of all settings, and the fields of their values.

Generated from settings.toml by `make format`: edit that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agspeed.config.kinds import Secret, Setting

__all__ = ["INTERNAL_VARIABLES", "SETTINGS", "Values"]

# fmt: off
INTERNAL_VARIABLES: Final[tuple[str, ...]] = ("AGSPEED_BUILD_DIR",)

SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        name="mode",
        kind="choice",
        default="auto",
        reader="python",
        env="AGSPEED_MODE",
        doc=(
            "how much tuning may cost: auto earns its budget, max tunes everything first, fast-start uses cached "
            "decisions, deterministic never times, off changes nothing"
        ),
        choices=("auto", "max", "fast-start", "deterministic", "off"),
        keyword=True,
    ),
    Setting(
        name="backends",
        kind="names",
        default=None,
        reader="python",
        env="AGSPEED_BACKENDS",
        doc=(
            "the candidates to consider, in order; unset means all that are available"
        ),
        keyword=True,
    ),
    Setting(
        name="dynamic",
        kind="tristate",
        default=None,
        reader="python",
        env="AGSPEED_DYNAMIC",
        doc=(
            "whether to compile for changing sizes; auto decides once sizes have changed"
        ),
        keyword=True,
    ),
    Setting(
        name="numerics",
        kind="choice",
        default="standard",
        reader="python",
        env="AGSPEED_NUMERICS",
        doc=(
            "what the gate accepts: standard compares errors against fp64 with eager's own, exact wants equal "
            "bits, off checks nothing"
        ),
        choices=("standard", "exact", "off"),
        keyword=True,
    ),
    Setting(
        name="budget_s",
        kind="seconds",
        default=None,
        reader="python",
        env="AGSPEED_BUDGET_S",
        doc=(
            "upper limit on seconds spent tuning; unset means the mode decides"
        ),
        keyword=True,
    ),
    Setting(
        name="plan",
        kind="path",
        default=None,
        reader="python",
        env="AGSPEED_PLAN",
        doc=(
            "a report.json whose decision is repeated; in deterministic mode only"
        ),
        keyword=True,
    ),
    Setting(
        name="cache_dir",
        kind="cache_folder",
        default=None,
        reader="python",
        env="AGSPEED_CACHE_DIR",
        doc=(
            "where decisions, kernels and, unless TORCHINDUCTOR_CACHE_DIR says where, the code of torch's "
            "compiler are kept; unset means ~/.cache/agspeed"
        ),
        keyword=True,
        own_file=True,
    ),
    Setting(
        name="report",
        kind="report",
        default=None,
        reader="python",
        env="AGSPEED_REPORT",
        doc=(
            "write the report to this .json or .html file when tuning ends and at exit"
        ),
        keyword=True,
        own_file=True,
    ),
    Setting(
        name="strict",
        kind="flag",
        default=False,
        reader="both",
        env="AGSPEED_STRICT",
        doc=(
            "raise instead of falling back to eager, and for variables that look like settings and are none"
        ),
        keyword=True,
    ),
    Setting(
        name="check_replicas",
        kind="integer",
        default=0,
        reader="python",
        env="AGSPEED_CHECK_REPLICAS",
        doc=(
            "backwards from one comparison of the parameters of all ranks of a DistributedDataParallel to the "
            "next: a difference is a warning, with strict an error; 0 means never, with strict every 1000"
        ),
        at_least=0,
        at_most=1000000000,
    ),
    Setting(
        name="memory_slack",
        kind="ratio",
        default=0.15,
        reader="python",
        env="AGSPEED_MEMORY_SLACK",
        doc=(
            "a candidate that needs this share more memory than eager loses"
        ),
        keyword=True,
    ),
    Setting(
        name="disable",
        kind="flag",
        default=False,
        reader="python",
        env="AGSPEED_DISABLE",
        doc=(
            "kill switch: every optimized model runs eagerly"
        ),
    ),
    Setting(
        name="progress",
        kind="flag",
        default=True,
        reader="python",
        env="AGSPEED_PROGRESS",
        doc=(
            "show progress while tuning"
        ),
    ),
    Setting(
        name="debug",
        kind="choice",
        default="warn",
        reader="both",
        env="AGSPEED_DEBUG",
        doc=(
            "how much to log"
        ),
        choices=("warn", "info", "trace"),
    ),
    Setting(
        name="stands_in_for",
        kind="choice",
        default=None,
        reader="python",
        env="AGSPEED_AS",
        doc=(
            "a backend of torch.distributed in whose place agspeed's is used wherever a script asks for that one, "
            "or on the CPU for none; read where torch is imported"
        ),
        choices=("gloo",),
    ),
    Setting(
        name="ddp",
        kind="choice",
        default=None,
        reader="python",
        env="AGSPEED_DDP",
        doc=(
            "tune: every DistributedDataParallel that a script makes has its bucket layout tuned, without a line "
            "of code; read where torch is imported"
        ),
        choices=("tune",),
    ),
    Setting(
        name="comm_mode",
        kind="choice",
        default=None,
        reader="c++",
        env="AGSPEED_COMM_MODE",
        doc=(
            "how ranks protect what they send; unset means authenticated when there is a job key, else "
            "opportunistic"
        ),
        choices=("integrity", "authenticated", "encrypted", "opportunistic"),
        own_file=True,
    ),
    Setting(
        name="job_key",
        kind="text",
        default=None,
        reader="c++",
        env="AGSPEED_JOB_KEY",
        doc=(
            "secret, the same on all ranks, that authenticates their connections"
        ),
        at_least=16,
        secret=True,
    ),
    Setting(
        name="job_key_file",
        kind="path",
        default=None,
        reader="c++",
        env="AGSPEED_JOB_KEY_FILE",
        doc=(
            "file that holds the job key and that nobody else may read; AGSPEED_JOB_KEY wins over it"
        ),
        own_file=True,
    ),
    Setting(
        name="socket_interfaces",
        kind="text",
        default=None,
        reader="c++",
        env="AGSPEED_SOCKET_IFNAME",
        doc=(
            "network interfaces that carry the job: beginnings of names, exact names after =, networks like "
            "10.0.0.0/8, or all but those after ^; unset means every real one"
        ),
        env_aliases=("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
    ),
    Setting(
        name="flows_per_interface",
        kind="integer",
        default=0,
        reader="c++",
        env="AGSPEED_FLOWS_PER_INTERFACE",
        doc=(
            "TCP connections that a rank uses to each other rank over each network interface; 0 means one, but "
            "more on adapters of clouds that limit the rate of each"
        ),
        at_least=0,
        at_most=64,
    ),
    Setting(
        name="nccl_devices",
        kind="choice",
        default=None,
        reader="c++",
        env="AGSPEED_NCCL_DEVICES",
        doc=(
            "what NCCL sees of the network interfaces: one device that is all of them, one for each NUMA node, or "
            "each by itself; each carries over all, its own first; unset means one, but numa where they lie on "
            "several nodes"
        ),
        choices=("one", "numa", "nic"),
    ),
    Setting(
        name="shared_memory",
        kind="flag",
        default=True,
        reader="c++",
        env="AGSPEED_SHARED_MEMORY",
        doc=(
            "whether ranks of one host and network namespace talk through shared memory; if not, over the network"
        ),
    ),
    Setting(
        name="peer_timeout_ms",
        kind="integer",
        default=10000,
        reader="c++",
        env="AGSPEED_PEER_TIMEOUT_MS",
        doc=(
            "how long a rank that others wait for may be silent, or unreachable on all its network interfaces, "
            "before it is given up; more for a debugger; one at whose addresses nobody has ever answered is given "
            "up after a second"
        ),
        at_least=1,
        at_most=2147483647,
    ),
    Setting(
        name="flight_record_dir",
        kind="path",
        default=None,
        reader="c++",
        env="AGSPEED_FLIGHT_RECORD_DIR",
        doc=(
            "existing folder to which a rank writes what its groups did last when one of them fails; unset means "
            "nowhere"
        ),
        own_file=True,
    ),
)


@dataclass(frozen=True)
class Values:
    """The effective value of every setting."""

    mode: str
    backends: tuple[str, ...] | None
    dynamic: bool | None
    numerics: str
    budget_s: float | None
    plan: Path | None
    cache_dir: Path
    report: Path | None
    strict: bool
    check_replicas: int
    memory_slack: float
    disable: bool
    progress: bool
    debug: str
    stands_in_for: str | None
    ddp: str | None
    comm_mode: str | None
    job_key: Secret | None
    job_key_file: Path | None
    socket_interfaces: str | None
    flows_per_interface: int
    nccl_devices: str | None
    shared_memory: bool
    peer_timeout_ms: int
    flight_record_dir: Path | None
# fmt: on
