# SPDX-License-Identifier: Apache-2.0
"""Attributes the wall time of training steps to native kernels, calls and the rest. Pure functions, no torch.

The profiler records operators, autograd nodes, ranges and native kernels, each with its thread, start and end. The
runtime puts an event around each run of a compiled program. Inside it, the compiler's instruction list says which
operators are calls of the program, and why.

Every moment of a step counts once. It belongs to the innermost event of the thread that runs the step. If that thread
is in no event, as while it waits for another thread's backward, it belongs to the innermost event of another thread.
Thread-safety: any thread may call any function.
"""

import dataclasses
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

STEP = "agspeed.coverage step"
"""Name of the range around a step."""

CATEGORIES = {
    "kernels": "native kernels",
    "products": "products, convolutions, attention, LSTM: library calls",
    "calls": "other operators that stay calls",
    "dispatch": "the rest of the native regions",
    "outside": "loss, backward and others outside of regions",
    "optimizer": "the optimizer's step",
    "python": "no operator: Python, guards, autograd's engine",
}

_REGION = re.compile(r"AgspeedRegion(?:Forward|Backward\w*)$")
"""A region's call, and its autograd nodes. Regions of all compilers have them."""
_RUN = re.compile(r"agspeed::(?:forward|backward)$")
"""A run of a program, or of a stage of it."""
_KERNEL = "ag_kernel_"
_ENGINE = "autograd::engine::evaluate_function: "
_DYNAMO = ("TorchDynamo ", "Torch-Compiled Region", "Pregraph bytecode")
_OPTIMIZER = "Optimizer.step#"
_RUNTIME = frozenset(
    f"aten::{name}" for name in ("alias", "as_strided", "clone", "contiguous", "copy_", "empty_strided", "permute")
)
"""The runtime's own operators between the calls of a program, such as the copy of a result into another layout."""


@dataclass(frozen=True)
class Event:
    """A record of the profiler on one thread: an operator, an autograd node or a range. Times in microseconds."""

    name: str
    thread: int
    start: float
    end: float


@dataclass(frozen=True)
class Call:
    """An operator that stays a call in a native region, and the reason."""

    operator: str
    """Name with overload, like "aten.mm.default"."""
    reason: str
    result: str = ""
    """Type of the result, like "f32[8,64]"."""
    is_product: bool = False

    @property
    def event(self) -> str:
        """The profiler's name of the operator, like "aten::mm"."""
        return "::".join(self.operator.split(".")[:2])


@dataclass(frozen=True)
class Kernel:
    """A launch of a native kernel."""

    name: str
    """Also the name of its event."""


Program = Sequence[Call | Kernel]
"""The instructions of one stage of one direction of a native region, in order."""


@dataclass(frozen=True)
class StepTime:
    """Where the time of one step went, in microseconds. `times` has all categories; their sum is the step's time."""

    times: Mapping[str, float]
    calls: Mapping[Call, float]
    counts: Mapping[Call, int]
    unknown_ranges: int
    """Runs of programs that fit no known one, so that the reasons of their calls are not known."""


@dataclass(frozen=True)
class Share:
    microseconds: float
    share: float


def shares_of(steps: Sequence[StepTime]) -> dict[str, Share]:
    """Returns by category the median over steps, and its share of the sum of all medians.

    Raises: ValueError if there is no step.
    """
    if not steps:
        raise ValueError("the profiler has recorded no step")
    medians = {name: statistics.median(step.times[name] for step in steps) for name in CATEGORIES}
    total = sum(medians.values())
    return {name: Share(value, value / total if total else 0.0) for name, value in medians.items()}


def attribute(events: Iterable[Event], programs: Sequence[Program]) -> list[StepTime]:
    """Attributes the time of each range STEP.

    Args:
        events: of all threads, in any order. Events outside of steps are ignored.
        programs: the programs of all native regions. A run takes the longest one that fits its calls, if possible one
            with the same kernels.
    """
    by_thread: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        by_thread[event.thread].append(event)
    windows = sorted((event for own in by_thread.values() for event in own if event.name == STEP), key=_start)
    return [_step_time(_slices_of_step(window, by_thread, programs)) for window in windows]


@dataclass
class _Owner:
    """The purpose of a slice of time."""

    category: str
    call: Call | None = None
    is_unknown: bool = False
    """It is a run that fits no program."""


@dataclass(frozen=True)
class _Slice:
    start: float
    end: float
    owner: _Owner


@dataclass
class _Node:
    """An event with the events inside it."""

    event: Event
    start: float
    end: float
    children: list["_Node"] = field(default_factory=list)


def _start(event: Event) -> float:
    return event.start


def _slices_of_step(
    window: Event, by_thread: Mapping[int, Sequence[Event]], programs: Sequence[Program]
) -> list[_Slice]:
    slices: list[_Slice] = []
    for thread in sorted(
        by_thread, key=lambda thread: (thread != window.thread, thread)
    ):  # the step's own thread first
        root = _tree(window, by_thread[thread])
        own = list(_slices(root, "python", programs))
        slices = own if thread == window.thread else _filled(slices, own)
    return slices


def _tree(window: Event, events: Sequence[Event]) -> _Node:
    """Returns the step with the events of one thread inside it. Events that reach beyond their parent are cut."""
    root = _Node(window, window.start, window.end)
    stack = [root]
    for event in events:
        if event is window or event.name == STEP or event.start >= window.end or event.end <= window.start:
            continue
        start = max(event.start, window.start)
        while len(stack) > 1 and start >= stack[-1].end:
            stack.pop()
        node = _Node(event, start, min(event.end, stack[-1].end))
        stack[-1].children.append(node)
        stack.append(node)
    return root


def _slices(node: _Node, category: str, programs: Sequence[Program]) -> Iterator[_Slice]:
    """Yields slices that cover the node without gaps. `category`: that of the node's own time."""
    own, at = _Owner(category), node.start
    for child in node.children:
        yield from _slice(at, child.start, own)
        if _RUN.match(child.event.name):
            yield from _run_slices(child, programs)
        else:
            yield from _slices(child, _category(child, category), programs)
        at = child.end
    yield from _slice(at, node.end, own)


def _category(node: _Node, outer: str) -> str:
    """Returns the category of an event's own time. `outer`: that of the event around it."""
    name = node.event.name
    if outer == "optimizer" or name.startswith(_OPTIMIZER):
        return "optimizer"
    if _REGION.match(name.removeprefix(_ENGINE)):
        return "dispatch" if _has_run(node) else "outside"
    if name.startswith(_DYNAMO):
        return outer
    return "dispatch" if outer == "dispatch" else "outside"


def _has_run(node: _Node) -> bool:
    return any(_RUN.match(child.event.name) or _has_run(child) for child in node.children)


def _run_slices(node: _Node, programs: Sequence[Program]) -> Iterator[_Slice]:
    names = [child.event.name for child in node.children]
    calls = _aligned([name for name in names if not name.startswith(_KERNEL)], _program_of(names, programs))
    is_unknown, at = calls is None, node.start
    own = _Owner("dispatch", is_unknown=is_unknown)
    for child in node.children:
        yield from _slice(at, child.start, own)
        if child.event.name.startswith(_KERNEL):
            owner = _Owner("kernels")
        else:
            call = calls.pop(0) if calls is not None else _unknown(child.event.name)
            owner = _Owner("dispatch" if call is None else "products" if call.is_product else "calls", call)
        yield from _slice(child.start, child.end, owner)
        at = child.end
    yield from _slice(at, node.end, own)


def _program_of(names: Sequence[str], programs: Sequence[Program]) -> Program | None:
    kernels = [name for name in names if name.startswith(_KERNEL)]
    operators = [name for name in names if not name.startswith(_KERNEL)]

    def fit(program: Program) -> tuple[bool, int]:
        return [each.name for each in program if isinstance(each, Kernel)] == kernels, len(program)

    return max((found for found in programs if _aligned(operators, found) is not None), key=fit, default=None)


def _aligned(names: Sequence[str], program: Program | None) -> list[Call | None] | None:
    """Returns for each operator its Call, or None if it is the runtime's own.

    Returns None unless the operators are the program's calls in order, with only operators of the runtime in between.
    """
    expected = [call for call in program or () if isinstance(call, Call)]
    found: list[Call | None] = []
    for name in names:
        if expected and name == expected[0].event:
            found.append(expected.pop(0))
        elif name in _RUNTIME:
            found.append(None)
        else:
            return None
    return None if expected or program is None else found


def _unknown(name: str) -> Call:
    return Call(name.replace("::", "."), "the region ran another code than the compiled one")


def _slice(start: float, end: float, owner: _Owner) -> Iterator[_Slice]:
    if end > start:
        yield _Slice(start, end, owner)


def _filled(slices: Sequence[_Slice], others: Sequence[_Slice]) -> list[_Slice]:
    """Returns `slices` with their "python" time given to the other thread's slices, if these are not "python", too."""
    busy = [piece for piece in others if piece.owner.category != "python"]
    result: list[_Slice] = []
    first = 0
    for piece in slices:
        while first < len(busy) and busy[first].end <= piece.start:
            first += 1
        if piece.owner.category != "python":
            result.append(piece)
            continue
        at = piece.start
        for other in busy[first:]:
            if other.start >= piece.end:
                break
            begin = max(at, other.start)
            result += _slice(at, begin, piece.owner)
            at = min(piece.end, other.end)
            result += _slice(begin, at, other.owner)
        result += _slice(at, piece.end, piece.owner)
    return result


def _step_time(slices: Sequence[_Slice]) -> StepTime:
    times = dict.fromkeys(CATEGORIES, 0.0)
    calls: dict[Call, float] = defaultdict(float)
    owners: dict[int, _Owner] = {}
    for piece in slices:
        owner, duration = piece.owner, piece.end - piece.start
        owners[id(owner)] = owner
        times[owner.category] += duration
        if owner.call is not None:
            calls[owner.call] += duration
    counts = Counter(owner.call for owner in owners.values() if owner.call is not None)
    return StepTime(times, dict(calls), dict(counts), sum(owner.is_unknown for owner in owners.values()))


def dearest_calls(steps: Sequence[StepTime]) -> list[tuple[Call, Share, float]]:
    """Returns the calls, dearest first, as (call, time, calls in a step). Calls of one operator with one reason are
    one row, with the result of the dearest of them. Times are medians over steps; shares are of all categories' sum."""
    total = sum(share.microseconds for share in shares_of(steps).values())
    single = {call for step in steps for call in step.calls}
    rows: dict[Call, list[Call]] = defaultdict(list)
    for call in sorted(single, key=lambda call: -statistics.median(step.calls.get(call, 0.0) for step in steps)):
        rows[dataclasses.replace(call, result="")].append(call)
    found = []
    for calls in rows.values():
        time = statistics.median(sum(step.calls.get(call, 0.0) for call in calls) for step in steps)
        count = statistics.median(sum(step.counts.get(call, 0) for call in calls) for step in steps)
        found.append((calls[0], Share(time, time / total if total else 0.0), count))
    return sorted(found, key=lambda row: -row[1].microseconds)
