# SPDX-License-Identifier: Apache-2.0
"""The native half of agspeed. C++ side: python/csrc, one bind_x.cpp per section."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, NotRequired, ParamSpec, TypedDict

import torch

_P = ParamSpec("_P")

# --- build (bind_build_info.cpp) --------------------------------------------------------------------------------------

def build_info() -> dict[str, str]:
    """What this extension was built for: "version", "torch", "llvm", "python", "compiler"."""

# --- codecs (bind_codecs.cpp) -----------------------------------------------------------------------------------------

# Tensors must be dense, contiguous and in host memory. Wrong tensors raise ValueError. All release the GIL.

def int8_bytes(num_elements: int) -> int:
    """The bytes of the code of 8 bits (comm/compress/int8.h) of this number of values."""

def int8_encode(code: torch.Tensor, values: torch.Tensor) -> bool:
    """Encodes float32 values into `code`, which has `int8_bytes` bytes. Returns False if a value is NaN or infinite;
    the content of `code` is undefined then."""

def int8_decode(values: torch.Tensor, code: torch.Tensor, factor: float, adds: bool) -> None:
    """Stores, or adds, the values of a code times `factor`."""

def lossless_bytes(values: torch.Tensor) -> int:
    """Returns a number of bytes that the lossless code (comm/compress/lossless.h) of such values never exceeds. The
    values are float32, float16 or bfloat16."""

def lossless_encode(code: torch.Tensor, values: torch.Tensor) -> int:
    """Writes the lossless code of `values` into the uint8 tensor `code`. Returns the number of bytes written. Raises
    ValueError if they do not fit."""

def lossless_decode(values: torch.Tensor, code: torch.Tensor) -> None:
    """Decodes into `values`. Raises ValueError if `code` is not the code of that many values of that type."""

def select_largest(indices: torch.Tensor, values: torch.Tensor) -> bool:
    """Writes the indices (int32) of the float32 values with the largest magnitudes, in ascending order. Of equal
    magnitudes, it selects the lowest indices. Returns False if a value is NaN or infinite; the content of `indices` is
    undefined then."""

# --- dispatch (bind_dispatcher.cpp) -----------------------------------------------------------------------------------

class Dispatcher:
    """Forwards its arguments to a target that may be swapped at any time, without Python code of ours."""

    def __init__(self, target: Callable[..., Any]) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def set_target(self, target: Callable[..., Any], /) -> None: ...
    @property
    def target(self) -> Callable[..., Any]: ...
    @property
    def calls(self) -> int: ...

# --- compiler and regions (bind_executable.cpp, bind_region.cpp) ------------------------------------------------------

class CompileOptions(TypedDict, total=False):
    target: str  # "cpu", "nvptx", "reference" or "null"; by default the one for the device
    device: str  # "cpu" or "cuda:0"
    cache_dir: str
    dump_dir: str
    disabled_passes: list[str]
    verify_each_pass: bool
    stage_bytes: int  # see GradientStageOptions in compiler/options.h
    inputs_in_memory_of: list[list[int]]

class ExecutableStats(TypedDict):
    kernels: int
    cache_hits: int
    compiled_operators: int
    external_operators: int
    native_share: float  # compiled operators / all operators
    compile_seconds: float

class Instruction(TypedDict):
    kind: Literal["kernel", "call", "ready"]  # "ready" ends a stage; see runtime/program.h
    name: str  # of the kernel, or of the operator, like "aten.mm.default"
    origin: str  # names of FX nodes, separated by commas
    results: str  # types of a call's results, like "f32[8,64]"
    reason: str  # why a call is not part of a kernel

class Kernel(TypedDict):
    name: str  # in profiles, reports and dumps, and the symbol of its machine code
    text: str  # its operations, one per line
    address: int  # of its machine code; 0 if it has none in this process
    bytes: int  # of its machine code; 0 if unknown

class Executable:
    """A compiled set of entries. Made by `compile`; any thread may run it."""

    def run(self, entry: str, args: list[torch.Tensor | int]) -> list[torch.Tensor | int | None]: ...
    def stages(self, entry: str) -> list[int]:
        """By output: the stage after which it is handed over; see runtime/program.h."""

    def instructions(self, entry: str) -> list[Instruction]:
        """The kernels and calls of an entry, in order."""

    def kernels(self) -> list[Kernel]: ...
    def stats(self) -> ExecutableStats: ...

def compile(
    entries: dict[str, str], options: CompileOptions = {}, constants: dict[str, list[torch.Tensor]] = {}
) -> Executable:
    """Compiles GraphSpec texts by entry name. Releases the GIL. Raises UserError, UnsupportedError or InternalError.

    constants: by entry, the values of its last inputs, which are then no arguments; contiguous, copied.
    """

class _RegionSignatureRequired(TypedDict):
    name: str
    requires_grad: list[bool]
    num_outputs: int
    fallback: Callable[..., Sequence[Any]] | None
    replay: Callable[..., Sequence[Any]] | None

class RegionSignature(_RegionSignatureRequired, total=False):
    """Documented in python/csrc/region_dict.h."""

    mutated_inputs: list[int]
    mutated_by_code: list[int]
    outputs_as_inputs: dict[int, int]
    output_views: dict[int, int]
    tangents: list[int]
    tangent_layouts: list[list[int]]
    gradient_sources: list[list[int]]
    num_saved_tensors: int
    num_saved_symints: int
    overwritten_saved: list[int]
    gradient_stages: list[int]
    saved_stages: list[int]
    draws_random_numbers: bool
    on_failure: Callable[[str], None]

class RegionStats(TypedDict):
    calls: int
    fallbacks: int
    last_fallback: str | None

_Direction = Callable[[list[Any]], Sequence[Any]]

class Region:
    """One differentiable function of the entries "forward" and "backward" of an Executable, or of two callables that
    take one list of arguments each."""

    def __init__(
        self, code: Executable | tuple[_Direction, tuple[_Direction, ...]], signature: RegionSignature
    ) -> None: ...
    def __call__(self, *args: torch.Tensor | int) -> tuple[torch.Tensor | int | None, ...]: ...
    def stats(self) -> RegionStats: ...

# --- memory (bind_memory.cpp) -----------------------------------------------------------------------------------------

class MemoryMeter:
    """Live and peak bytes of CPU tensors over all threads, from `start` on. One runs at a time."""

    def __init__(self) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def reset_peak(self) -> None: ...
    def live_bytes(self) -> int: ...
    def peak_bytes(self) -> int: ...
    @property
    def is_running(self) -> bool: ...

class RetainedMemory(TypedDict):
    is_on: bool
    is_replaced: bool  # other code has installed another CPU allocator since
    used_bytes: int  # of tensors that live in retained blocks
    idle_bytes: int
    peak_used_bytes: int  # of recent steps
    num_reused: int  # requests that got an idle block, since the process began
    num_new: int

def why_memory_is_not_retained() -> str:
    """Why this process must not retain memory, as a sentence without its full stop; "" if it may."""

def retain_memory(idle_bytes: int, slack_bytes: int) -> str:
    """Keeps freed blocks of tensors from 1 MiB on, `idle_bytes` of them at most. Idle blocks raise the peak by at most
    a quarter and `slack_bytes`. Returns: as `why_memory_is_not_retained`; nothing has changed if that is a sentence."""

def release_memory() -> None:
    """Releases idle blocks, and keeps none from now on. Blocks in use stay valid, and are released when freed."""

def retained_memory() -> RetainedMemory: ...

# --- network (bind_network.cpp) ---------------------------------------------------------------------------------------

class _InterfaceChoice(TypedDict):
    name: str
    address: str
    prefix_bits: int
    is_up: bool
    is_selected: bool
    reason: str  # "it is down"

class _InterfaceChoices(TypedDict):
    variable: str  # what selects them, empty when nothing does
    selector: str
    interfaces: list[_InterfaceChoice]

def describe_transport() -> str:
    """What ranks of this environment would use: protection, rails, shared memory. Raises where none could be opened."""

def explain_interfaces() -> _InterfaceChoices:
    """Which network interfaces a job of this process would use, and why. Raises UserError for a wrong selector."""

# --- process group (bind_process_group.cpp) ---------------------------------------------------------------------------

class ProcessGroup(torch.distributed.Backend):
    """A group of ranks of torch.distributed, over all network interfaces of the host (comm/c10d/process_group.h)."""

    class Options:
        """torch's Backend.Options, of a kind that Python can copy."""

    @property
    def options(self) -> Options: ...  # a copy
    def perform_nocolor_split(self, device: torch.device) -> None: ...  # nothing
    def counters(self) -> str: ...  # JSON, comm/world/counters.h
    def flight_record(self) -> str: ...  # JSON, comm/world/flight_record.h
    def monitored_barrier(self, timeout: timedelta | None, wait_all_ranks: bool) -> None: ...
    # An empty name: as the plan says. All ranks do it between the same two operations.
    def set_algorithm(self, collective: str, algorithm: str) -> None: ...

def collective_algorithms() -> list[tuple[str, str]]:
    """(collective, name) of every algorithm."""

def create_process_group(options: Any) -> ProcessGroup:
    """Joins the group that torch's DistributedBackendOptions describe. Blocks until the ranks can be found."""

# --- named operations (bind_horovod.cpp) ------------------------------------------------------------------------------

class NamedRequest:
    """What a rank asks for under a name (comm/named/request.h); dtype and shapes are those of the tensors.

    Without a name it gets one by counting. op: Horovod's number of a reduction.
    """

    def __init__(
        self,
        *,
        kind: str,
        name: str | None,
        op: int = 1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        root: int = 0,
        splits: Sequence[int] = [],
    ) -> None: ...

class NamedGroup:
    """The ranks of a process set (comm/horovod/tensor_group.h)."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def create_part(self, ranks: Sequence[int]) -> NamedGroup | None: ...
    def restart_names(self) -> None: ...
    def set_plan(
        self, fusion_bytes: int, order: Literal["time", "size", "priority", "model"], version: int
    ) -> None: ...
    def stats(self) -> dict[str, int]: ...  # what NamedStats of comm/named/named_group.h has
    def start_timeline(self, path: str, mark_cycles: bool) -> None: ...  # RuntimeError where it cannot be written
    def stop_timeline(self) -> None: ...
    def shutdown(self) -> None: ...

class NamedHandles:
    """Operations under way by number (comm/horovod/handle_table.h). Waiting raises RuntimeError or ValueError."""

    def __init__(self) -> None: ...
    def start(
        self,
        group: NamedGroup,
        request: NamedRequest,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        is_list: bool,
    ) -> int: ...
    def reduce(
        self,
        group: NamedGroup,
        input: torch.Tensor,
        output: torch.Tensor | None,  # None: in place
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
    ) -> int: ...
    def use(self, group: NamedGroup | None) -> None: ...  # of quick calls from now on
    def poll(self, handle: int) -> bool | None: ...
    def wait(self, handle: int) -> torch.Tensor | list[torch.Tensor] | None: ...
    def wait_for_all(self, handle: int) -> tuple[list[torch.Tensor], list[int], int] | None: ...

# --- quick calls (bind_quick_calls.cpp) -------------------------------------------------------------------------------

def quick_allreduce(handles: NamedHandles, function: Callable[_P, int], global_set: object) -> Callable[_P, int]:
    """Stands for allreduce_async_(), and calls it for all that it is nothing for itself."""

def quick_synchronize(handles: NamedHandles, function: Callable[[int], Any]) -> Callable[[int], Any]: ...
def reduce_again(
    handles: NamedHandles,
    group: NamedGroup,
    input: torch.Tensor,
    output: torch.Tensor | None,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
) -> int | None:
    """As NamedHandles.reduce(), at less cost for a name that comes again; None for what it is nothing for."""

class GradientExchange:
    """The gradients of an optimizer, reduced while the backward runs (comm/horovod/gradient_exchange.h).

    members: numbers of parameters of each group, whose names are `names`. refuse(parameter) raises for a backward too
    many; start(group) reduces what C++ does not, everything where `other`; is_current() says whether the optimizer has
    these parameters still.
    """

    def __init__(
        self,
        *,
        group: NamedGroup,
        parameters: Sequence[torch.Tensor],
        members: Sequence[Sequence[int]],
        names: Sequence[str],
        op: int,
        prescale: float,
        postscale: float,
        half: bool,
        other: bool,
        sparse_as_dense: bool,
        passes: int,
        refuse: Callable[[int], None],
        start: Callable[[int], None],
        is_current: Callable[[], bool],
    ) -> None: ...
    def set_passes(self, passes: int) -> None: ...
    def is_under_way(self) -> bool: ...
    def start_missing(self) -> None: ...
    def wait(self) -> None: ...  # RuntimeError where one failed, ValueError where one was refused

def create_named_group(
    store: Any,  # of torch.distributed
    rank: int,
    size: int,
    *,
    fusion_bytes: int,
    order: Literal["time", "size", "priority", "model"],
    cache_capacity: int,
    stall_warning: float,
    stall_shutdown: float,
    timeout: float,
) -> NamedGroup:
    """Joins the job of all ranks; seconds of 0 mean never. Blocks until the ranks can be found."""

# --- settings (bind_settings.cpp) -------------------------------------------------------------------------------------

def configure(values: dict[str, bool | int | bytes], origins: dict[str, str] = {}) -> None:
    """Takes over the settings that C++ reads, by name, and where those not at their defaults came from.

    Before anything here is used; else C++ has read the environment, and a value that differs raises UserError. So does
    an unknown name or a value of a wrong type. Nothing has changed then.
    """

# --- tuner (bind_tuner.cpp) -------------------------------------------------------------------------------------------

class TunerArm(TypedDict, total=False):
    name: str  # required; "eager" is always there and never listed
    compile_seconds: float  # expected, in the background
    foreground_seconds: float  # expected while training stands still: load and gate
    stands_in_for: str  # tried last, and not at all where that arm is ready and something is faster than eager

class TunerConfig(TypedDict, total=False):
    """Every field may be missing or None: then the default of runtime/tune/config.h holds."""

    mode: str  # "auto", "max", "fast-start" or "deterministic"
    arms: list[str | TunerArm]  # order of compiling, and of choice in deterministic mode
    pinned_arm: str
    capture_seconds: float
    budget_fraction: float
    budget_seconds: float
    fast_start_seconds: float
    min_gain: float
    target_half_width: float
    confidence: float
    min_pairs: int
    max_pairs: int
    min_run_seconds: float
    max_run_steps: int
    drop_ratio: float
    warmup_steps: int
    memory_fraction: float
    memory_slack_bytes: int
    guard_fraction: float
    max_late_steps: int
    max_pause_seconds: float
    has_spare_cores: bool
    max_retunes: int
    retune_after_steps: int
    search_fraction: float

class TunerAction(TypedDict):
    kind: Literal["capture", "compile", "priority", "load", "wait", "run", "refine", "decide", "rollback"]
    arm: str
    level: Literal["suspended", "idle", "raised"]  # compile, priority
    seconds: float  # priority: for about so long; wait: so long at most; load: then the rest waits for another step
    reason: str  # decide, rollback, priority

class TunerRatio(TypedDict):
    """A ratio of step times with its confidence interval; an unbounded end is None."""

    estimate: float
    low: float | None
    high: float | None
    pairs: int
    confidence: float
    sum_ratio: NotRequired[TunerRatio]

class TunerStepTimes(TypedDict):
    count: int
    p05: float
    p25: float
    p50: float
    p75: float
    p95: float

class TunerDuel(TypedDict):
    against: str
    ratio: TunerRatio

class TunerArmSnapshot(TypedDict):
    name: str
    state: str  # as for arm_changed
    verdict: Literal["open", "accepted", "lost"]
    reason: str
    is_too_large: bool  # whether it lost because of its peak of memory
    steps: int
    seconds: TunerStepTimes | None  # undisturbed steps
    ratio: TunerRatio | None  # step time over eager's
    peak_bytes: int  # 0: not measured
    background_seconds: float
    foreground_seconds: float
    duel: NotRequired[TunerDuel]

class TunerDecision(TypedDict):
    arm: str
    reason: str
    ratio: TunerRatio | None
    step: int
    wall_seconds: float
    from_database: bool

class TunerShape(TypedDict):
    shape: str
    eager_seconds: float | None

class TunerLedger(TypedDict):
    steps: int
    trained_seconds: float
    foreground_seconds: float
    inflation_seconds: float
    trial_seconds: float
    slowdown_seconds: float
    background_seconds: float
    saved_seconds: float
    allowance_seconds: float | None  # None: no limit

class TunerGuard(TypedDict):
    blocks: int
    suspicions: int
    rollbacks: int
    retunes: int
    ratio: TunerRatio | None

class TunerEvent(TypedDict):
    what: str
    arm: str
    step: int
    wall_seconds: float
    reason: str

class TunerSnapshot(TypedDict):
    """A tuner's state for the report; see runtime/tune/README.md."""

    version: int
    mode: Literal["auto", "max", "fast-start", "deterministic"]
    phase: Literal["observing", "capturing", "tuning", "settled"]
    status: Literal["tuning", "tuned", "eager"]
    reason: str
    current: str
    incumbent: str
    decision: TunerDecision | None
    arms: list[TunerArmSnapshot]
    shapes: list[TunerShape]
    eager_paired_seconds: float | None
    resumed_pairs: int
    ledger: TunerLedger
    guard: TunerGuard
    timeline: list[TunerEvent]

class _EitherTuner:
    """What Tuner and GroupTuner have in common: what happens to a process, and what can be asked."""

    # Answers to "capture".
    def capture_finished(self, foreground_seconds: float) -> None: ...
    def capture_failed(self, reason: str, foreground_seconds: float = 0.0) -> None: ...
    # The step reported last captured more graphs: arms go back to "waiting" for them.
    def capture_grew(self) -> None: ...
    # What went by before the first step: loading, looking up earlier decisions.
    def started(self, foreground_seconds: float) -> None: ...
    # Training stood still for what belongs to no arm.
    def paused(self, foreground_seconds: float) -> None: ...
    # What findings() gave an earlier process that captured the same graphs; right after capture_finished or
    # capture_grew. ValueError where it is of no use.
    def resume(self, findings: Any) -> None: ...
    def findings(self) -> dict[str, Any]: ...
    @property
    def num_findings(self) -> int: ...  # grows when findings() changes
    # So many tuners of one training loop, this one included, share what tuning may cost.
    def share_budget(self, num_searches: int) -> None: ...
    def expect_capture(self, foreground_seconds: float) -> None: ...
    # No arm is expected to take less to load.
    def expect_loads(self, foreground_seconds: float) -> None: ...
    # Answers to "compile", "wait" and "load". After a compile: "compiled" when load and gate still cost foreground time
    # (the tuner then asks for "load" once it can pay), else "ready". After a load: "loading" when the rest of it has to
    # wait for another step. Seconds add up over calls.
    def arm_changed(
        self,
        arm: str,
        state: str,  # of a candidate, as in agspeed/regions/outcome.py
        reason: str = "",
        background_seconds: float = 0.0,
        foreground_seconds: float = 0.0,
    ) -> None: ...
    def add_arm(self, arm: str | TunerArm) -> None: ...
    # `arm`: what really ran. `disturbed`: outside load, a recompile, a pause; compiles asked for are known already.
    def step_finished(
        self, arm: str, seconds: float, shape: str = "", peak_bytes: int = 0, disturbed: bool = False
    ) -> None: ...
    def steps_skipped(self, count: int, seconds: float) -> None: ...  # within quiet_steps
    def adopt(self, arm: str) -> None: ...  # what the database says; before the first advance()
    @property
    def current(self) -> str: ...
    @property
    def phase(self) -> Literal["observing", "capturing", "tuning", "settled"]: ...
    @property
    def status(self) -> Literal["tuning", "tuned", "eager"]: ...
    @property
    def status_reason(self) -> str: ...
    def snapshot(self) -> TunerSnapshot: ...
    def decision_record(self) -> dict[str, Any] | None: ...  # for the database

class Tuner(_EitherTuner):
    """Chooses the arm of the next step. Not thread-safe: every call from the training thread.

    At each step boundary: step_finished(...), then carry out advance()'s actions in order. After an action that blocked
    (capture, load, wait) report its outcome and call advance() again before the next step. ValueError on wrong input.
    """

    def __init__(self, config: TunerConfig) -> None: ...
    def advance(self) -> list[TunerAction]: ...
    @property
    def quiet_steps(self) -> int | None: ...  # steps that need no report; None = for ever

class GroupTuner(_EitherTuner):
    """One tuner for all ranks of a group, as a copy at each; its events are for the next rank sync. See
    runtime/tune/group_tuner.h. Not thread-safe. ValueError on wrong input.
    """

    def __init__(self, config: TunerConfig, names: list[str]) -> None: ...  # by rank: "rank 1 on node3"
    def advance(self) -> list[TunerAction]: ...  # the actions of the latest syncs
    def take_record(self) -> bytes: ...  # this rank's, for the next sync
    def sync(self, records: list[bytes]) -> None: ...  # by rank; ValueError: the group is over
    def leave(self, reason: str) -> None: ...  # this rank tunes no longer; the next sync informs the others
    def end(self, reason: str) -> None: ...  # no sync will follow
    def recheck(self) -> None: ...  # all ranks are suspicious: syncs follow
    def postpone_recheck(self) -> None: ...  # the others are not suspicious
    @property
    def num_quiet_syncs(self) -> int: ...  # to be left out from now on, at all ranks
    @property
    def is_refining(self) -> bool: ...  # the latest sync asked for "refine"
    @property
    def is_settled(self) -> bool: ...  # no sync will follow for now
    @property
    def is_rechecking(self) -> bool: ...  # syncs compare the decision with eager again
    @property
    def is_suspicious(self) -> bool: ...  # this rank doubts what was decided
    @property
    def is_over_because(self) -> str: ...  # "" while the group tunes and after a decision
    @property
    def quiet_steps(self) -> int | None: ...  # as of Tuner

class TuningDatabase:
    """Decisions of earlier processes (runtime/tune/store/database_format.md). An untrusted file is ignored: `warning`.

    A key needs graph, shapes, dtypes, device, threads, isa, versions; a record needs "arm". `now`: int(time.time()).
    """

    def __init__(self, path: str) -> None: ...
    @property
    def is_usable(self) -> bool: ...
    @property
    def warning(self) -> str: ...  # empty when all is well; show it once
    @property
    def path(self) -> str: ...
    def find(self, key: dict[str, Any], now: int) -> dict[str, Any] | None: ...
    def store(self, key: dict[str, Any], record: dict[str, Any], now: int) -> None: ...
    # A record whose "arm" is "", unless a decision is there; whether it was stored.
    def store_unfinished(self, key: dict[str, Any], record: dict[str, Any], now: int) -> bool: ...
    def list(self) -> list[dict[str, Any]]: ...  # key, record (None when damaged), created, used, uses, intact
    def prune(self, used_before: int, max_rows: int) -> int: ...
    def export_text(self) -> str: ...
    def import_text(self, text: str, now: int) -> int: ...

# --- end of tuner -----------------------------------------------------------------------------------------------------
