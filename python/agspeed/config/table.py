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
INTERNAL_VARIABLES: Final[tuple[str, ...]] = ("AGSPEED_BUILD_DIR", "AGSPEED_CONTROL_FD")

SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        name="mode",
        kind="choice",
        default="auto",
        reader="python",
        env="AGSPEED_MODE",
        doc=(
            "How much tuning may cost: auto tunes when training has earned the time for it; max tunes everything "
            "on the first steps; fast-start uses earlier decisions and candidates that compile within about a "
            "second; deterministic measures no times; off changes nothing."
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
            "The candidates to consider, in order. If unset: all that are available."
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
            "Whether to compile for changing sizes. auto decides this when sizes have changed."
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
            "How the gate checks candidates: standard compares their errors against fp64 with eager's own errors; "
            "exact requires equal bits; off checks nothing."
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
            "The upper limit on seconds spent tuning. If unset, the mode decides."
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
            "A report.json whose decision is repeated. It needs the mode deterministic."
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
            "The folder for decisions, kernels and the code of torch's compiler. TORCHINDUCTOR_CACHE_DIR chooses "
            "another folder for that code. If unset: ~/.cache/agspeed."
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
            "The report is written to this .json or .html file when tuning ends and at exit."
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
            "Raise an error instead of falling back to eager. Also raise one for unknown variables that begin "
            "with AGSPEED_."
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
            "Compare the parameters of all ranks of a DistributedDataParallel at intervals of this many "
            "backwards. A difference is a warning, or an error under strict. 0 means never, or every 1000 "
            "backwards under strict."
        ),
        at_least=0,
        at_most=1000000000,
    ),
    Setting(
        name="compare_ranks_s",
        kind="seconds",
        default=5.0,
        reader="python",
        env="AGSPEED_COMPARE_RANKS_S",
        doc=(
            "Compare the ranks of a DistributedDataParallel at intervals of this many seconds, to name a rank "
            "that holds the others up. 0 means never."
        ),
    ),
    Setting(
        name="tune_optimizer",
        kind="flag",
        default=True,
        reader="python",
        env="AGSPEED_TUNE_OPTIMIZER",
        doc=(
            "Whether agspeed finds the optimizers of optimized modules and tunes their steps. An optimizer that "
            "is passed to agspeed.optimize is tuned in any case."
        ),
    ),
    Setting(
        name="memory_slack",
        kind="ratio",
        default=0.15,
        reader="python",
        env="AGSPEED_MEMORY_SLACK",
        doc=(
            "A candidate loses if its peak memory exceeds eager's by more than this share and 16 MiB."
        ),
        keyword=True,
    ),
    Setting(
        name="retained_memory_mib",
        kind="integer",
        default=None,
        reader="python",
        env="AGSPEED_RETAINED_MEMORY_MIB",
        doc=(
            "The most memory in MiB that agspeed keeps of freed CPU tensors, so that the next step finds its "
            "pages. agspeed does this only if steps become faster. 0 switches it off. If unset: half of the "
            "memory that the machine or the control group allows."
        ),
        at_least=0,
        at_most=1000000000,
    ),
    Setting(
        name="disable",
        kind="flag",
        default=False,
        reader="python",
        env="AGSPEED_DISABLE",
        doc=(
            "Switches tuning off: every optimized model runs eagerly. Communication is not affected."
        ),
    ),
    Setting(
        name="progress",
        kind="flag",
        default=True,
        reader="python",
        env="AGSPEED_PROGRESS",
        doc=(
            "Show progress while tuning."
        ),
    ),
    Setting(
        name="debug",
        kind="choice",
        default="warn",
        reader="both",
        env="AGSPEED_DEBUG",
        doc=(
            "How much to log."
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
            "Use agspeed's backend of torch.distributed wherever a script asks for this backend. On the CPU, use "
            "it also if a script names no backend. The setting is read when torch is imported."
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
            "With tune, agspeed tunes the bucket layout of every DistributedDataParallel, without a change to the "
            "script. The setting is read when torch is imported."
        ),
        choices=("tune",),
    ),
    Setting(
        name="auto",
        kind="flag",
        default=False,
        reader="python",
        env="AGSPEED_AUTO",
        doc=(
            "Optimize the model of a script that does not call agspeed, as `agspeed.optimize(model)` would. The "
            "model is the outermost module that the script calls with gradients, if it holds all parameters of an "
            "optimizer. The setting is read when torch is imported."
        ),
    ),
    Setting(
        name="comm_mode",
        kind="choice",
        default=None,
        reader="c++",
        env="AGSPEED_COMM_MODE",
        doc=(
            "How ranks protect the data that they send. If unset: authenticated if there is a job key, else "
            "opportunistic."
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
            "A secret that authenticates the connections between ranks. It is the same on all ranks."
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
            "A file that holds the job key. No other user may be able to read it. AGSPEED_JOB_KEY takes "
            "precedence."
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
            "The network interfaces that carry the job. Entries are beginnings of names, or networks like "
            "10.0.0.0/8. A leading = makes names exact; a leading ^ selects all other interfaces. If unset: every "
            "interface that is up, except loopback, link-local addresses, and bridges of containers (names that "
            "begin with docker or virbr). If there is nothing else: loopback."
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
            "The number of TCP connections from a rank to each other rank over each network interface. 0 means "
            "one, or more on adapters of clouds that limit the rate of a connection."
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
            "The devices that NCCL sees: one for all network interfaces; numa, one for each NUMA node; nic, one "
            "for each interface. A device uses its own interfaces first, and can use all others. If unset: one, "
            "or numa if the interfaces lie on several nodes."
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
            "Whether ranks of the same host and network namespace use shared memory. If not, they use the "
            "network."
        ),
    ),
    Setting(
        name="wire_coding",
        kind="choice",
        default="auto",
        reader="c++",
        env="AGSPEED_WIRE_CODING",
        doc=(
            "Whether collectives send floats of f32, f16 and bf16 to other hosts in fewer bytes. The received "
            "bits are the same. auto codes a message if that saves more time on the network than it takes on the "
            "processor; on codes each message that becomes shorter; off codes none. Ranks may have different "
            "values."
        ),
        choices=("auto", "on", "off"),
    ),
    Setting(
        name="peer_timeout_ms",
        kind="integer",
        default=10000,
        reader="c++",
        env="AGSPEED_PEER_TIMEOUT_MS",
        doc=(
            "How long a rank that others wait for may be silent, or unreachable on all its network interfaces, "
            "before it counts as lost. Choose more for a debugger. A rank that has joined, but at whose addresses "
            "no process has ever answered, counts as lost after one second."
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
            "An existing folder. If a group of a rank fails, the rank writes the last operations of its groups "
            "there. If unset, nothing is written."
        ),
        own_file=True,
    ),
    Setting(
        name="dump",
        kind="path",
        default=None,
        reader="python",
        env="AGSPEED_DUMP",
        doc=(
            "A folder to which the native compiler writes all stages of each graph that it compiles, from torch's "
            "graph to assembly. Each graph has a folder of its own there, which only this user can enter. Kernels "
            "are then compiled again, even if they are in the cache. If unset, nothing is written."
        ),
        own_file=True,
    ),
    Setting(
        name="perf_map",
        kind="flag",
        default=False,
        reader="python",
        env="AGSPEED_PERF_MAP",
        doc=(
            "Name native kernels in /tmp/perf-PID.map, so that Linux's perf shows them by name."
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
    compare_ranks_s: float
    tune_optimizer: bool
    memory_slack: float
    retained_memory_mib: int | None
    disable: bool
    progress: bool
    debug: str
    stands_in_for: str | None
    ddp: str | None
    auto: bool
    comm_mode: str | None
    job_key: Secret | None
    job_key_file: Path | None
    socket_interfaces: str | None
    flows_per_interface: int
    nccl_devices: str | None
    shared_memory: bool
    wire_coding: str
    peer_timeout_ms: int
    flight_record_dir: Path | None
    dump: Path | None
    perf_map: bool
# fmt: on
