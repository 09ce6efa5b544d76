# SPDX-License-Identifier: Apache-2.0
"""The C++ extension of agspeed. Each section below has a file bind_*.cpp in python/csrc."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, NotRequired, ParamSpec, TypedDict

import torch

_P = ParamSpec("_P")

# --- build (bind_build_info.cpp) --------------------------------------------------------------------------------------

def build_info() -> dict[str, str]:
    """Returns the versions with which this extension was built: "version" (of agspeed), "torch", "llvm", "python",
    "compiler"."""

# --- codecs (bind_codecs.cpp) -----------------------------------------------------------------------------------------

# Tensors must be dense, contiguous and in host memory, else functions raise ValueError. All functions release the GIL.

def int8_bytes(num_elements: int) -> int:
    """Returns the number of bytes of the int8 code (comm/compress/int8.h) of `num_elements` values."""

def int8_encode(code: torch.Tensor, values: torch.Tensor) -> bool:
    """Encodes float32 values into `code`, which has `int8_bytes` bytes. Returns False if a value is NaN or infinite.
    The content of `code` is then undefined."""

def int8_decode(values: torch.Tensor, code: torch.Tensor, factor: float, adds: bool) -> None:
    """Multiplies the values of a code by `factor`, and stores them in `values`. Adds them to `values` if `adds` is
    true."""

def lossless_bytes(values: torch.Tensor) -> int:
    """Returns a number of bytes that the lossless code (comm/compress/lossless.h) of such values never exceeds. The
    values are float32, float16 or bfloat16."""

def lossless_encode(code: torch.Tensor, values: torch.Tensor) -> int:
    """Writes the lossless code of `values` into the uint8 tensor `code`. Returns the number of bytes written. Raises
    ValueError if `code` is too small."""

def lossless_decode(values: torch.Tensor, code: torch.Tensor) -> None:
    """Decodes `code` into `values`. Raises ValueError if `code` is not the code of values of this number and type."""

def select_largest(indices: torch.Tensor, values: torch.Tensor) -> bool:
    """Writes the indices (int32) of the float32 values with the largest magnitudes, in ascending order. Of equal
    magnitudes, it selects the lowest indices. Returns False if a value is NaN or infinite. The content of `indices`
    is then undefined."""

# --- dispatch (bind_dispatcher.cpp) -----------------------------------------------------------------------------------

class Dispatcher:
    """Calls its target with the same arguments. The target may be replaced at any time. A call runs no Python code of
    agspeed."""

    def __init__(self, target: Callable[..., Any]) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def set_target(self, target: Callable[..., Any], /) -> None: ...
    @property
    def target(self) -> Callable[..., Any]: ...
    @property
    def calls(self) -> int: ...

# --- compiler and regions (bind_executable.cpp, bind_region.cpp) ------------------------------------------------------

class CompileOptions(TypedDict, total=False):
    target: str  # of code generation: "cpu", "nvptx", "reference" or "null"; by default the one for the device
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
    results: str  # the types of a call's results, like "f32[8,64]"
    reason: str  # why a call is not part of a kernel

class Kernel(TypedDict):
    name: str  # the name in profiles, reports and dumps, and the symbol of the machine code
    text: str  # the operations, one per line
    address: int  # the address of the machine code; 0 if it is not in this process
    bytes: int  # the size of the machine code; 0 if unknown

class Executable:
    """A set of compiled graphs (entries), each with a name. `compile` makes it. Any thread may run it."""

    def run(self, entry: str, args: list[torch.Tensor | int]) -> list[torch.Tensor | int | None]: ...
    def stages(self, entry: str) -> list[int]:
        """Returns for each output the stage after which it is delivered (runtime/program.h)."""

    def instructions(self, entry: str) -> list[Instruction]:
        """Returns the kernels and calls of an entry, in order."""

    def kernels(self) -> list[Kernel]: ...
    def stats(self) -> ExecutableStats: ...

def compile(
    entries: dict[str, str], options: CompileOptions = {}, constants: dict[str, list[torch.Tensor]] = {}
) -> Executable:
    """Compiles a GraphSpec text per entry name. Releases the GIL. Raises UserError, UnsupportedError or InternalError.

    constants: for an entry, contiguous tensors with the values of its last inputs. They are copied, and `run` does not
    take these inputs as arguments.
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
    """Measures live and peak bytes of the CPU tensors of all threads, from `start` on. One meter runs at a time."""

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
    is_replaced: bool  # other code has installed another CPU allocator since retain_memory()
    used_bytes: int  # bytes of tensors in retained blocks
    idle_bytes: int
    peak_used_bytes: int  # the peak of recent steps
    num_reused: int  # allocations that reused an idle block, since the process began
    num_new: int  # allocations that got a new block

def why_memory_is_not_retained() -> str:
    """Returns why this process must not retain memory, as a sentence without a full stop. Returns "" if it may."""

def retain_memory(idle_bytes: int, slack_bytes: int) -> str:
    """Keeps freed memory blocks of at least 1 MiB for later tensors, at most `idle_bytes` bytes in total. Idle blocks
    raise the peak of memory by at most a quarter plus `slack_bytes`. Returns "" if memory is now retained, else why it
    is not (see `why_memory_is_not_retained`)."""

def release_memory() -> None:
    """Releases idle blocks, and keeps none from now on. Blocks in use stay valid, and are released when freed."""

def retained_memory() -> RetainedMemory: ...

# --- optimizers (bind_optimizer.cpp) ----------------------------------------------------------------------------------

class StepRecord:
    """The layouts of an optimizer's parameters and gradients, and the options of its groups but the learning rate, as
    they were at one step. It keeps no parameter alive."""

    def __init__(self) -> None: ...
    def set(self, groups: list[dict[str, Any]]) -> bool:
        """Records the groups. Returns False, and fits nothing, if a tensor is not strided or an option is anything else
        than numbers, texts, None, and tuples or lists of these."""
    def fits(self, groups: list[dict[str, Any]]) -> bool:
        """Returns whether all is as recorded. A number fits another of its type if both or neither are zero."""
    def forget(self) -> None:
        """Fits nothing from now on."""

# --- network (bind_network.cpp) ---------------------------------------------------------------------------------------

class _InterfaceChoice(TypedDict):
    name: str
    address: str
    prefix_bits: int
    is_up: bool
    is_selected: bool
    reason: str  # "it is down"

class _InterfaceChoices(TypedDict):
    variable: str  # the environment variable that selects interfaces; empty if none does
    selector: str
    interfaces: list[_InterfaceChoice]

def describe_transport() -> str:
    """Describes what ranks in this environment would use: protection, rails, shared memory. Raises if no rail can be
    opened."""

def explain_interfaces() -> _InterfaceChoices:
    """Returns which network interfaces a job of this process would use, and why. Raises UserError for a wrong
    selector."""

# --- process group (bind_process_group.cpp) ---------------------------------------------------------------------------

class ProcessGroup(torch.distributed.Backend):
    """A group of ranks of torch.distributed, over all network interfaces of the host (comm/c10d/process_group.h)."""

    class Options:
        """torch's Backend.Options, as a type that Python can copy."""

    @property
    def options(self) -> Options: ...  # a copy
    def perform_nocolor_split(self, device: torch.device) -> None: ...  # does nothing
    def counters(self) -> str: ...  # JSON, comm/world/counters.h
    def flight_record(self) -> str: ...  # JSON, comm/world/flight_record.h
    def monitored_barrier(self, timeout: timedelta | None, wait_all_ranks: bool) -> None: ...
    # Runs `collective` by the algorithm of this name from now on. An empty name means the plan's choice. All ranks call
    # it between the same two operations.
    def set_algorithm(self, collective: str, algorithm: str) -> None: ...

def collective_algorithms() -> list[tuple[str, str]]:
    """Returns (collective, name) of every algorithm."""

def create_process_group(options: Any) -> ProcessGroup:
    """Joins the group that torch's DistributedBackendOptions describe. Blocks until all ranks have been found."""

# --- named operations (bind_horovod.cpp) ------------------------------------------------------------------------------

class NamedRequest:
    """An operation that a rank requests under a name (comm/named/request.h). dtype and shapes come from the tensors.

    name: None means a name from a counter. op: Horovod's number of the reduction.
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
    def stats(self) -> dict[str, int]: ...  # the fields of NamedStats in comm/named/named_group.h
    def start_timeline(self, path: str, mark_cycles: bool) -> None: ...  # RuntimeError if the file cannot be written
    def stop_timeline(self) -> None: ...
    def shutdown(self) -> None: ...

class NamedHandles:
    """Operations in flight, by number (comm/horovod/handle_table.h). Waiting for a failed operation raises RuntimeError
    or ValueError."""

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
    def use(self, group: NamedGroup | None) -> None: ...  # sets the group of quick calls from now on; None: no group
    def poll(self, handle: int) -> bool | None: ...
    def wait(self, handle: int) -> torch.Tensor | list[torch.Tensor] | None: ...
    def wait_for_all(self, handle: int) -> tuple[list[torch.Tensor], list[int], int] | None: ...

# --- quick calls (bind_quick_calls.cpp) -------------------------------------------------------------------------------

def quick_allreduce(handles: NamedHandles, function: Callable[_P, int], global_set: object) -> Callable[_P, int]:
    """Wraps `function`, which is allreduce_async_() in Python. The wrapper starts common calls without a Python frame,
    and calls `function` for all other calls. global_set: the process set of calls that pass none."""

def quick_synchronize(handles: NamedHandles, function: Callable[[int], Any]) -> Callable[[int], Any]:
    """Wraps `function`, which is synchronize() in Python. The wrapper returns the output of a successful reduction of
    quick_allreduce() without a Python frame, and calls `function` for all other handles."""

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
    """Does the same as NamedHandles.reduce(), at less cost if the name repeats. Returns None, and starts nothing, if it
    does not handle these arguments."""

class GradientExchange:
    """Reduces the gradients of an optimizer while the backward runs (comm/horovod/gradient_exchange.h).

    members: for each group, the indices of its parameters. names: the names of the groups. refuse(parameter) raises
    the error for a backward beyond `passes`. start(group) reduces a group that C++ does not reduce; if `other` is true,
    it reduces all groups. is_current() returns whether the optimizer still has these parameters.
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
    def wait(self) -> None: ...  # RuntimeError if a reduction failed, ValueError if one was refused

def create_named_group(
    store: Any,  # a store of torch.distributed
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
    """Makes the group of all ranks of the job. Blocks until all ranks have been found. Times are in seconds; a stall
    time of 0 means never."""

# --- settings (bind_settings.cpp) -------------------------------------------------------------------------------------

def configure(values: dict[str, bool | int | bytes], origins: dict[str, str] = {}) -> None:
    """Sets the settings that C++ reads, by name. origins: where each setting that is not at its default was set.

    Call it before other functions of this module. Afterwards C++ has already read the environment, and a value that
    differs raises UserError. An unknown name or a value of a wrong type also raises UserError. After an error, nothing
    has changed.
    """

# --- tuner (bind_tuner.cpp) -------------------------------------------------------------------------------------------

class TunerArm(TypedDict, total=False):
    name: str  # required; "eager" always exists and is not listed
    compile_seconds: float  # expected compile time in the background
    foreground_seconds: float  # expected time for which training stops, to load and gate
    # An arm that does the same work with less overhead. This arm is tried last. It is skipped if that arm is ready and
    # some arm is faster than eager.
    stands_in_for: str

class TunerConfig(TypedDict, total=False):
    """The configuration of a tuner. A field that is missing or None has the default of runtime/tune/config.h."""

    mode: str  # "auto", "max", "fast-start" or "deterministic"
    arms: list[str | TunerArm]  # in the order in which they are compiled, and chosen in deterministic mode
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
    level: Literal["suspended", "idle", "raised"]  # for compile and priority
    # priority: the tuner checks it after this time. wait: the longest wait. load: stop after the part in which this
    # time has passed, and report "loading".
    seconds: float
    reason: str  # for decide, rollback and priority

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
    state: str  # see arm_changed
    verdict: Literal["open", "accepted", "lost"]
    reason: str
    is_too_large: bool  # it lost because of its peak of memory
    steps: int
    seconds: TunerStepTimes | None  # times of undisturbed steps
    ratio: TunerRatio | None  # step time / eager's step time
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
    """The functions that Tuner and GroupTuner share: reports of events, and queries."""

    # Answers to "capture".
    def capture_finished(self, foreground_seconds: float) -> None: ...
    def capture_failed(self, reason: str, foreground_seconds: float = 0.0) -> None: ...
    # The last reported step captured more graphs. Arms return to "waiting", to be compiled with these.
    def capture_grew(self) -> None: ...
    # The time before the first step, for loading and for looking up earlier decisions.
    def started(self, foreground_seconds: float) -> None: ...
    # Training stopped for work that belongs to no arm.
    def paused(self, foreground_seconds: float) -> None: ...
    # Continues from the findings() of an earlier process that captured the same graphs. Call it directly after
    # capture_finished or capture_grew. ValueError if the findings cannot be used.
    def resume(self, findings: Any) -> None: ...
    def findings(self) -> dict[str, Any]: ...
    @property
    def num_findings(self) -> int: ...  # grows when findings() changes
    # The number of tuners of one training loop, including this one, that share the budget of tuning.
    def share_budget(self, num_searches: int) -> None: ...
    def expect_capture(self, foreground_seconds: float) -> None: ...
    # Every arm is expected to take at least this time to load.
    def expect_loads(self, foreground_seconds: float) -> None: ...
    # Answers "compile", "wait" and "load". After a compile, the state is "compiled" if load and gate still need
    # foreground time, else "ready". After "compiled", the tuner asks for "load" once it can pay for it. After a load,
    # the state is "loading" if a part of the load is left for a later step. Seconds add up over calls.
    def arm_changed(
        self,
        arm: str,
        state: str,  # a candidate's state, see agspeed/regions/outcome.py
        reason: str = "",
        background_seconds: float = 0.0,
        foreground_seconds: float = 0.0,
    ) -> None: ...
    def add_arm(self, arm: str | TunerArm) -> None: ...
    # `arm`: the arm that really ran. `disturbed`: other load, a recompile or a pause made the step slower. Do not set
    # it for compiles that the tuner asked for, because it knows them.
    def step_finished(
        self, arm: str, seconds: float, shape: str = "", peak_bytes: int = 0, disturbed: bool = False
    ) -> None: ...
    def steps_skipped(self, count: int, seconds: float) -> None: ...  # at most quiet_steps, in `seconds` in total
    def adopt(self, arm: str) -> None: ...  # the decision in the database; call it before the first advance()
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
    """Chooses the arm of the next step. Not thread-safe: make all calls from the training thread.

    At each step boundary, call step_finished(...), then advance(), and carry out the actions in order. After an action
    that blocked (capture, load, wait), report its outcome, and call advance() again before the next step. Wrong input
    raises ValueError.
    """

    def __init__(self, config: TunerConfig) -> None: ...
    def advance(self) -> list[TunerAction]: ...
    @property
    def quiet_steps(self) -> int | None: ...  # steps that need no report; None: all later steps

class GroupTuner(_EitherTuner):
    """One tuner for all ranks of a group, with a copy at each rank (runtime/tune/group_tuner.h). Reported events take
    effect at the next rank sync. Not thread-safe. Wrong input raises ValueError.
    """

    def __init__(self, config: TunerConfig, names: list[str]) -> None: ...  # one per rank: "rank 1 on node3"
    def advance(self) -> list[TunerAction]: ...  # the actions of the latest syncs
    def take_record(self) -> bytes: ...  # returns this rank's record for the next sync
    def sync(self, records: list[bytes]) -> None: ...  # one per rank; ValueError: the group has ended
    def leave(self, reason: str) -> None: ...  # stops tuning at this rank; the next sync informs the others
    def end(self, reason: str) -> None: ...  # no sync will follow
    def recheck(self) -> None: ...  # call it if all ranks are suspicious; syncs follow
    def postpone_recheck(self) -> None: ...  # call it if other ranks are not suspicious
    @property
    def num_quiet_syncs(self) -> int: ...  # how many of the next syncs all ranks skip
    @property
    def is_refining(self) -> bool: ...  # the latest sync asked for "refine"
    @property
    def is_settled(self) -> bool: ...  # no sync will follow for now
    @property
    def is_rechecking(self) -> bool: ...  # syncs compare the decision with eager again
    @property
    def is_suspicious(self) -> bool: ...  # this rank doubts the decision
    @property
    def is_over_because(self) -> str: ...  # why the group has ended; "" while it tunes and after a decision
    @property
    def quiet_steps(self) -> int | None: ...  # see Tuner

class TuningDatabase:
    """Decisions of earlier processes (runtime/tune/store/database_format.md). A file that cannot be trusted is ignored,
    and `warning` says why.

    A key must have graph, shapes, dtypes, device, threads, isa and versions; a record must have "arm". `now`:
    int(time.time()).
    """

    def __init__(self, path: str) -> None: ...
    @property
    def is_usable(self) -> bool: ...
    @property
    def warning(self) -> str: ...  # empty if there is nothing to report; show it once
    @property
    def path(self) -> str: ...
    def find(self, key: dict[str, Any], now: int) -> dict[str, Any] | None: ...
    def store(self, key: dict[str, Any], record: dict[str, Any], now: int) -> None: ...
    # Stores a record whose "arm" is "", unless there is a decision for the key. Returns whether it was stored.
    def store_unfinished(self, key: dict[str, Any], record: dict[str, Any], now: int) -> bool: ...
    def list(self) -> list[dict[str, Any]]: ...  # with key, record (None if damaged), created, used, uses, intact
    def prune(self, used_before: int, max_rows: int) -> int: ...
    def export_text(self) -> str: ...
    def import_text(self, text: str, now: int) -> int: ...

# --- end of tuner -----------------------------------------------------------------------------------------------------
