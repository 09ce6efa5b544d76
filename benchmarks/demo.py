# SPDX-License-Identifier: Apache-2.0
"""The demonstration behind `make demo`, in five acts: gain, second start, two ranks, a lost process, the report.

python -m benchmarks.demo [--workload NAME] [--folder FOLDER]

Each act trains in a process of its own. The folder keeps their caches and reports; the first act empties it.
"""

import argparse
import itertools
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agspeed
from benchmarks import demo_elastic, demo_ranks, planted_fault, workloads
from benchmarks.measure import candidates
from benchmarks.measure.candidates import Candidate
from benchmarks.measure.pairing import Comparison, Limits, compare_all
from benchmarks.workloads.base import Training, Workload

_BUDGET_SECONDS, _LONGEST_SECONDS = 80.0, 110.0
"""For tuning: the budget that agspeed gets, and the time after which an act goes on without a decision."""
_INDUCTOR_SECONDS = 80.0
_ACT_SECONDS = 240.0
_TIMING = Limits(max_pairs=160, seconds=30)
_BACKENDS = ["native", "inductor", planted_fault.NAME]

Act = Callable[[Workload, Path, Limits], None]


def gain(workload: Workload, folder: Path, limits: Limits) -> None:
    """Act 1: shows the refusal of the planted fault, tunes, and times eager, Inductor and agspeed in turns."""
    print(
        f'optimize(model, mode="deterministic", backends=["{planted_fault.NAME}"]), which rounds a result to bfloat16:'
    )
    print(f"{_refusal(workload.build(), folder)}\n")
    print(f'optimize(model, mode="max", backends={_BACKENDS}):')
    sides = {name: workload.build() for name in ("inductor", "agspeed")}
    print(_trained(sides["agspeed"], _agspeed(), folder))
    _save(sides["agspeed"], folder / "report")
    print(f"\nnow torch.compile; then eager, torch.compile and agspeed in turns, {limits.seconds:.0f} s at most\n")
    candidates.prepare(candidates.CANDIDATES["inductor"], sides["inductor"], folder)
    try:
        candidates.settle(candidates.CANDIDATES["inductor"], sides["inductor"], _INDUCTOR_SECONDS)
    except TimeoutError as error:
        print(f"torch.compile is left out: {error}\n")
        del sides["inductor"]
    eager = workload.build()
    print(_table(compare_all(eager, sides, limits)))


def second_start(workload: Workload, folder: Path, limits: Limits) -> None:
    """Act 2: the same loop in a new process, which finds the decision in the cache."""
    training = workload.build()
    print(_trained(training, _agspeed(), folder))
    for batch in itertools.islice(itertools.cycle(training.batches), 50):
        training.step(batch)
    _save(training, folder / "second-report")


def ranks(workload: Workload, folder: Path, limits: Limits) -> None:
    """Act 3: two ranks on shaped links, one of which is cut."""
    demo_ranks.show(folder)


def loss(workload: Workload, folder: Path, limits: Limits) -> None:
    """Act 4: a process is killed, and a new one takes its place."""
    demo_elastic.show()


def look(workload: Workload, folder: Path, limits: Limits) -> None:
    """Act 5: prints where the reports are and which parts to read."""
    print(
        "What to look at: the answers at the top; the hatched blocks of the timeline, in which training stood still;\n"
        f"the plans, {planted_fault.NAME} with its error beside the limit; source and graph of each region, folded.\n"
        "The second run's page has hardly a hatched block.\n\n"
        "In the terminal (agspeed is `PYTHONPATH=python .venv/bin/python -m agspeed` in a clone):\n"
        f"  agspeed report show {folder}/report.json\n"
        f"  agspeed report compare {folder}/report.json {folder}/second-report.json\n\n"
        "In a browser:\n"
        f"  {(folder / 'second-report.html').absolute()}\n"
        f"  {(folder / 'report.html').absolute()}"
    )


_ACTS: tuple[tuple[str, str, Act], ...] = (
    ("a model with a clear gain, and a candidate with a planted fault that is refused", "1 to 4 min", gain),
    ("the same again in a new process: tuned from the first step", "15 s to 1 min", second_start),
    ("two ranks, two links, and one of them is cut", "1 to 2 min", ranks),
    ("four processes, and one of them is killed", "half a minute", loss),
    ("the report", "at once", look),
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="dropout_heavy", choices=workloads.names(), metavar="NAME")
    parser.add_argument("--folder", type=Path, default=Path("build/demo"))
    parser.add_argument("--act", type=int, choices=range(1, len(_ACTS) + 1), help="this one alone, in this process")
    given = parser.parse_args(argv)
    if given.act is not None:
        _ACTS[given.act - 1][2](workloads.load(given.workload), given.folder, _TIMING)
        return 0
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    workload = workloads.load(given.workload)
    print(f"Training {workload.name}: {workload.stresses}.")
    for number, (title, duration, _) in enumerate(_ACTS, 1):
        print(f"\n=== Act {number} of {len(_ACTS)}: {title} ({duration}) ===\n", flush=True)
        if (code := _run_act(number, given.workload, given.folder)) != 0:
            return code
    return 0


def _run_act(number: int, workload: str, folder: Path) -> int:
    """Runs the act in a new process and returns its exit code. Inductor begins with an empty cache, as on a new
    machine. An act that exceeds its time, which happens on a busy machine only, is ended and returns 1.
    """
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str((folder / "inductor").absolute())}
    command = [sys.executable, "-m", "benchmarks.demo", "--act", str(number), "--workload", workload]
    command += ["--folder", str(folder)]
    try:
        return subprocess.run(command, env=environment, timeout=_ACT_SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"act {number} was ended after {_ACT_SECONDS:.0f} s: is the machine busy? For more time:")
        print(shlex.join(command))
        return 1


def _agspeed(**settings: Any) -> Candidate:
    """Returns the candidate agspeed, with the demonstration's settings or with the given ones."""
    chosen = settings or {"mode": "max", "backends": _BACKENDS, "budget_s": _BUDGET_SECONDS}

    def prepare(module: Any, cache_dir: Path) -> None:
        agspeed.optimize(module, cache_dir=str(cache_dir), **chosen)

    return Candidate("agspeed", prepare, tunes=True)


def _trained(training: Training, way: Candidate, folder: Path) -> str:
    """Trains that way until everything is decided or the time is over. Returns a sentence with the result."""
    started, steps = time.perf_counter(), 0
    batches = itertools.cycle(training.batches)
    with planted_fault.installed():
        candidates.prepare(way, training, folder / "cache")
        while candidates.is_tuning(way, training) and time.perf_counter() - started < _LONGEST_SECONDS:
            training.step(next(batches))
            steps += 1
    state = "; ".join(str(agspeed.status(module)) for module in training.modules.values())
    return f"after {steps} training steps, {time.perf_counter() - started:.1f} s: {state}"


def _save(training: Training, stem: Path) -> None:
    """Saves the report of the training's one model, as data and as a page."""
    (module,) = training.modules.values()
    for suffix in (".json", ".html"):
        agspeed.report(module).save(stem.with_suffix(suffix))


def _refusal(training: Training, folder: Path) -> str:
    """Returns the gate's verdict on the planted fault, which is the only candidate here."""
    alone = _agspeed(mode="deterministic", backends=[planted_fault.NAME])
    _trained(training, alone, folder)
    (report,) = candidates.reports(training).values()
    ((state, reason),) = {
        (row["state"], row["reason"]) for region in report["regions"][:1] for row in region["candidates"]
    }
    candidates.restore(alone, training)
    return f"{state}: {reason}"


def _table(results: dict[str, Comparison]) -> str:
    """Returns a line for each side: the time of a step, and its speed-up over eager."""
    first = next(iter(results.values())).to_dict()
    lines = [f"{'':>15}{'step':>12}{'eager / it':>14}", f"{'eager':>15}{first['reference_ms']:>9.2f} ms"]
    for name, result in results.items():
        label = "torch.compile" if name == "inductor" else name
        speed = result.speedup
        lines.append(
            f"{label:>15}{result.to_dict()['ms']:>9.2f} ms{speed.value:>12.2f} × "
            f"({speed.low:.2f} to {speed.high:.2f}, {speed.count} pairs)"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
