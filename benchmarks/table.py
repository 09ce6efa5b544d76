# SPDX-License-Identifier: Apache-2.0
"""Markdown from result files: pure functions from a result (cells.py) to text.

Every table begins with the command, machine and date that made it. A void or failed cell is shown as such.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks import markdown
from benchmarks.comm import tables as comm_tables
from benchmarks.exchange import tables as exchange_tables
from benchmarks.horovod import tables as horovod_tables
from benchmarks.measure.statistics import geometric_mean

Cell = dict[str, Any]
_SHORT = {"inductor": "Inductor", "inductor-max-autotune": "max-autotune", "agspeed": "agspeed"}


def render(result: dict[str, Any]) -> str:
    """All cells of a result, one section per kind."""
    sections = [_heading(result)]
    for kind, section in _SECTIONS.items():
        cells = [cell for cell in result["cells"] if cell["kind"] == kind]
        if valid := [cell for cell in cells if cell["status"] == "ok"]:
            sections.append(section(valid))
        sections.append("\n".join(_excuses(cells)))
    return "\n\n".join(section for section in sections if section)


def render_changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Compares speed-ups of the steady cells that both results contain. A change counts if the intervals do not
    overlap."""
    old = {(cell["case"], cell["threads"]): cell for cell in before["cells"] if cell["kind"] == "steady"}
    rows = []
    for cell in after["cells"]:
        was = old.get((cell["case"], cell["threads"]), {}).get("candidates", {})
        for name, row in cell.get("candidates", {}).items():
            if (then := was.get(name, {}).get("speedup")) and (now := row.get("speedup")):
                label = [cell["case"], str(cell["threads"]), name]
                rows.append([*label, markdown.spread(then), markdown.spread(now), _verdict(then, now)])
    if not rows:
        return "Nothing to compare: no steady cell is in both results."
    return markdown.table(["workload", "threads", "candidate", "before", "after", "verdict"], rows)


def _verdict(was: Cell, now: Cell) -> str:
    if now["low"] > was["high"]:
        return "faster"
    return "slower" if now["high"] < was["low"] else "no change shown"


def _heading(result: dict[str, Any]) -> str:
    machine = result["machine"]
    described = f"{machine['cpu']}, {machine['cores']} cores, {machine['isa']}, torch {machine['torch']}"
    return f"`{result['command']}`  \n{described}; {result['date']}"


def _excuses(cells: list[Cell]) -> list[str]:
    """A line for every void or failed cell and for every candidate that failed inside a good one."""
    lines = []
    for cell in cells:
        if cell["status"] != "ok":
            lines.append(f"- {_label(cell)}: **{cell['status']}**, {cell.get('reason', 'no reason given')}")
        for name, row in cell.get("candidates", {}).items():
            if row["status"] == "failed":
                lines.append(f"- {_label(cell)}, {name}: **failed**, {row['reason']}")
    return lines


def _steady(cells: list[Cell]) -> str:
    names = list(dict.fromkeys(name for cell in cells for name in cell["candidates"]))
    columns = ["workload", "threads", "GEMM share", "eager ms", *(_SHORT.get(name, name) for name in names), "chosen"]
    rows = [
        [
            cell["case"],
            str(cell["threads"]),
            f"{cell['gemm_share']:.0%}" if "gemm_share" in cell else "",
            f"{cell['eager_ms']:.2f}",
            *(_speed(cell["candidates"].get(name)) for name in names),
            _chosen(cell),
        ]
        for cell in cells
    ]
    legend = "Speed-up over eager of a whole training step: median of paired ratios ± half of its 95 % interval."
    return "\n\n".join([markdown.table(columns, rows), legend, _summary(cells, names)])


def _speed(row: Cell | None) -> str:
    if row is None:
        return ""
    if row["status"] == "same-code":
        return f"same code as {_SHORT.get(row['as'], row['as'])}"
    return markdown.spread(row["speedup"]) if row["status"] == "timed" else row["status"]


def _chosen(cell: Cell) -> str:
    return decisions(cell["candidates"].get("agspeed", {}).get("chosen", {}))


def decisions(chosen: dict[str, str]) -> str:
    """agspeed's decisions for the modules of a session, each once."""
    return ", ".join(dict.fromkeys(chosen.values()))


def _summary(cells: list[Cell], names: list[str]) -> str:
    """Geometric means, worst cells, distance from the oracle, and how often each candidate won."""
    lines = []
    for name in names:
        ratios = {_label(cell): value for cell in cells if (value := _value(cell, name)) is not None}
        if ratios:
            worst = min(ratios, key=lambda label: ratios[label])
            mean = geometric_mean(ratios.values())
            lines.append(f"- {_SHORT.get(name, name)}: geomean {mean:.3f}, worst {ratios[worst]:.3f} ({worst})")
    for field, others in (
        ("agspeed_to_oracle", "eager and Inductor"),
        ("agspeed_to_levelled", "eager and Inductor on its allocator with fused optimizers"),
    ):
        distances = {_label(cell): cell[field] for cell in cells if field in cell}
        if distances:
            worst = min(distances, key=lambda label: distances[label])
            mean = geometric_mean(distances.values())
            lines.append(f"- agspeed / best of {others}: geomean {mean:.3f}, worst {distances[worst]:.3f} ({worst})")
    for title, winners in (
        ("Fastest without agspeed", Counter(cell["oracle"]["winner"] for cell in cells)),
        ("Fastest", Counter(cell["winner"] for cell in cells)),
        ("Chosen by agspeed", Counter(_chosen(cell) for cell in cells if _chosen(cell))),
    ):
        if winners:
            lines.append(f"- {title}: " + ", ".join(f"{name} {count}" for name, count in winners.most_common()))
    return "\n".join(lines)


def _label(cell: Cell) -> str:
    return f"{cell['case']}, {cell['threads']} threads"


def _value(cell: Cell, name: str) -> float | None:
    """The speed-up of a candidate."""
    row = timed(cell["candidates"].get(name, {}), cell)
    return row["speedup"]["value"] if row.get("status") == "timed" else None


def timed(row: Cell, cell: Cell) -> Cell:
    """The row of a candidate, or the row of the candidate that shares its code and was timed instead."""
    return cell["candidates"][row["as"]] if row.get("status") == "same-code" else row


def _overhead(cells: list[Cell]) -> str:
    rows = []
    for cell in cells:
        for name, row in cell["candidates"].items():
            shown = _microseconds(row["extra_us"]) if "extra_us" in row else row["status"]
            a_stage = f"{_microseconds(row['stage_us'])}, {row['stages']}" if "stage_us" in row else "-"
            rows.append([cell["case"], str(cell["threads"]), f"{cell['eager_ms'] * 1e3:.1f}", name, shown, a_stage])
    columns = ["case", "threads", "eager µs", "candidate", "extra µs (95 %)", "a stage µs (95 %), stages"]
    return markdown.table(columns, rows)


def _microseconds(extra: dict[str, float]) -> str:
    return f"{extra['value']:+.2f} ({extra['low']:+.2f} to {extra['high']:+.2f})"


def _regret(cells: list[Cell]) -> str:
    rows = [
        [
            cell["case"],
            str(cell["threads"]),
            f"{row['steps']:,} {row['basis']}",
            f"{row['seconds']:.1f}",
            f"{row['seconds'] / cell['tuning_seconds']:.0f} x" if cell["tuning_seconds"] else "-",
            f"{row['paid']:.3f}",
            f"{row['free']:.3f}",
        ]
        for cell in cells
        for row in cell["horizons"]
    ]
    columns = ["case", "threads", "steps", "seconds", "of tuning cost", "regret, compile paid", "regret, compile free"]
    return markdown.table(columns, rows)


def _time_to_speed(cells: list[Cell]) -> str:
    rows = []
    for cell in cells:
        inductor, best, auto = cell["ways"]
        rows.append(
            [
                cell["case"],
                str(cell["threads"]),
                *(_reached(way) for way in (inductor, best, auto)),
                " / ".join(f"{cell[key]:.2f}" if key in cell else "–" for key in ("ratio", "auto_ratio")),
                " / ".join(_seconds(way["inductors_speed_seconds"]) for way in (inductor, best)),
                *(f"{way['standstill_seconds']:.1f}" for way in (inductor, best, auto)),
                decisions(best["chosen"]),
            ]
        )
    columns = ["case", "threads", "Inductor s (ms)", "max s (ms)", "auto s (ms)", "max / Inductor, auto / max"]
    columns += ["Inductor, max at Inductor's speed s"]
    columns += [f"{name} standstill s" for name in ("Inductor", "max", "auto")]
    legend = (
        "Seconds from the first step until 20 in a row run at 0.97 of the final speed (its step); longest standstill."
    )
    return "\n\n".join([markdown.table([*columns, "chosen"], rows), legend])


def _seconds(value: float | None) -> str:
    return f"{value:.1f}" if value is not None else "–"


def _reached(way: Cell) -> str:
    seconds = f"{way['seconds']:.1f}" if way["seconds"] is not None else "still tuning"
    return f"{seconds} ({way['step_ms']:.0f})"


def _warm_start(cells: list[Cell]) -> str:
    rows = [
        [
            cell["case"],
            str(cell["threads"]),
            f"{cell['cold']['seconds']:.2f}",
            f"{cell['warm']['seconds']:.2f}",
            f"{cell['ratio']:.1%}",
            decisions(cell["warm"]["chosen"]),
        ]
        for cell in cells
    ]
    return markdown.table(["case", "threads", "cold s", "warm s", "warm / cold", "chosen"], rows)


def _shared_process(cells: list[Cell]) -> str:
    rows = [
        [
            str(cell["threads"]),
            row["model"],
            *(markdown.spread(row[way]["speedup"]) for way in ("alone", "again", "together")),
            markdown.interval(row["over_alone"]),
            ", ".join(dict.fromkeys(row[way]["chosen"] for way in ("alone", "again"))),
            row["together"]["chosen"],
        ]
        for cell in cells
        for row in cell["shared"]
    ]
    columns = ["threads", "model", "alone / eager", "again", "in one process / eager", "in one process / alone (95 %)"]
    return markdown.table([*columns, "chosen alone", "chosen in one process"], rows)


def _native_compile(cells: list[Cell]) -> str:
    rows = [
        [
            cell["case"],
            str(cell["threads"]),
            f"{cell['seconds']['value']:.3f}",
            f"{cell['seconds']['low']:.3f} to {cell['seconds']['high']:.3f}",
        ]
        for cell in cells
    ]
    return markdown.table(["case", "threads", "seconds", "range"], rows)


def _codes(cells: list[Cell]) -> str:
    rows = [
        [
            cell["case"],
            row["code"],
            f"{row['values']}, {row['dtype']}",
            f"{row['ratio']:.2f}",
            *(markdown.interval(row[f"{name}_gb_per_s"], "{:.2f}".format) for name in ("encode", "decode", "copy")),
        ]
        for cell in cells
        for row in cell["codes"]
    ]
    columns = ["case", "code", "values", "bytes / bytes of the code"]
    return markdown.table([*columns, "encode GB/s (95 %)", "decode GB/s (95 %)", "copy GB/s (95 %)"], rows)


def _operators(cells: list[Cell]) -> str:
    families = [
        [cell["case"], str(cell["threads"]), name, f"{mean:.2f}"]
        for cell in cells
        for name, mean in cell["families"].items()
    ]
    slower = [
        [
            str(cell["threads"]),
            row["family"],
            str(row["seed"]),
            row["call"],
            markdown.interval(row["native"]["speedup"]),
        ]
        for cell in cells
        for row in cell["operators"]
        if row["is_steady"] and row["native"]["speedup"]["high"] < 1
    ]
    means = markdown.table(["case", "threads", "family", "eager / native, geometric mean"], families)
    below = markdown.table(["threads", "family", "seed", "call", "eager / native (95 %)"], slower)
    return "\n\n".join([means, "Calls that are slower than eager's:", below if slower else "- none"])


def _losses(cells: list[Cell]) -> str:
    rows = [
        [
            cell["case"],
            row["model"],
            row["way"],
            f"{row['first']:.3f}",
            f"{row['mean']:.3f}",
            f"{row['lowest']:.3f} to {row['highest']:.3f}",
            "–" if row["over_dense"] is None else f"{row['over_dense']:.3f}",
            f"{row['mib_per_step']:.3f}",
        ]
        for cell in cells
        for row in cell["losses"]
    ]
    columns = ["case", "model", "way", "first loss", "held-out loss", "over seeds", "over dense"]
    columns += ["MiB sent per step and rank"]
    return markdown.table(columns, rows)


def _start(cells: list[Cell]) -> str:
    rows = [
        [
            cell["case"],
            str(cell["ranks"]),
            row["way"],
            *(f"{row[key]:.2f}" for key in ("init_seconds", "small_seconds", "large_seconds")),
            f"{row['descriptors']:.0f}, {row['threads']:.0f}, {row['resident_mib']:.0f} MiB",
        ]
        for cell in cells
        for row in cell["starts"]
    ]
    columns = ["case", "ranks", "over", "group s", "first 1 KiB reduced s", "first 1 MiB reduced s"]
    return markdown.table([*columns, "descriptors, threads, memory of a rank"], rows)


def _elastic(cells: list[Cell]) -> str:
    def seconds(job: Cell, name: str) -> str:
        return " / ".join(f"{job[name][key]:.2f}" for key in ("p50", "p95", "max")) if name in job else "–"

    rows = [
        [
            cell["case"],
            {"elastic": "agspeed.elastic", "restart": "torchrun, restarted"}[job["way"]],
            f"{job['faults']}; the next ended the job" if job["is_lost"] else str(job["faults"]),
            *(seconds(job, name) for name in ("noticed", "resumed", "joined_pause")),
            str(job["lost_steps"]),
            f"{job['goodput']:.2f}",
            " → ".join(f"{held['descriptors']}, {held['resident_kib'] / 1024:.0f} MiB" for held in job["held"]),
            "–" if job["memory_growth_per_hour"] is None else f"{job['memory_growth_per_hour']:+.1%}",
        ]
        for cell in cells
        for job in cell["jobs"]
    ]
    columns = ["case", "way", "faults", "error at all survivors s", "next step s", "pause of a join s", "lost steps"]
    legend = "Seconds: median / 95th percentile / longest. Lost steps: the most of any fault."
    columns += ["goodput", "descriptors, memory of the oldest rank: after the first fault → after the last"]
    columns += ["growth of its memory per hour"]
    return "\n\n".join([markdown.table(columns, rows), legend])


def _elastic_cost(cells: list[Cell]) -> str:
    rows = [
        [
            cell["case"],
            str(cell["ranks"]),
            f"{cell['elastic']['reference_ms']:.2f}",
            markdown.interval(cell["advance_us"], "{:.1f}".format),
            f"{cell['advance_us']['value'] / cell['elastic']['reference_ms'] / 10:.3f}",
            *(markdown.interval(cell[side]["slowdown"], "{:.3f}".format) for side in ("elastic", "control")),
        ]
        for cell in cells
    ]
    columns = ["case", "ranks", "plain loop ms", "`advance` µs (95 %)", "% of a step"]
    return markdown.table([*columns, "elastic.run / plain (95 %)", "plain / plain (95 %)"], rows)


def _nccl_net(cells: list[Cell]) -> str:
    rows = [
        [
            cell["case"],
            f"{operation['bytes']} in {operation['messages']}",
            name,
            markdown.interval(row["ms"]),
            f"{row['bits_per_second'] / 1e9:.3f}",
            f"{row['share']:.3f}" if "share" in row else "-",
            f"{row['rate_of_agspeed']:.2f}",
            f"{row['cpu_seconds_per_gb']:.2f}",
        ]
        for cell in cells
        for operation in cell.get("operations", [])
        for name, row in operation["ways"].items()
    ]
    columns = ["case", "bytes in messages", "way", "ms", "Gbit/s", "share of the ceiling", "agspeed / it"]
    ways = [markdown.table([*columns, "CPU s per GB, all ends"], rows)] if rows else []
    return "\n\n".join([*ways, *(_nccl_faults(cell) for cell in cells if "faults" in cell)])


def _nccl_faults(cell: Cell) -> str:
    rows = [
        [
            row["fault"],
            str(row["operations"]),
            str(row["strikes"]),
            str(row["wrong_bytes"]),
            f"{row['median_ms']:.1f}",
            ", ".join(f"{stall:.0f}" for stall in row["stalls_ms"]),
            "-" if row["limit_ms"] is None else f"{row['limit_ms']:.0f}",
        ]
        for row in cell["faults"]
    ]
    columns = ["fault", "operations", "strikes", "wrong bytes", "median ms", "longest less median, ms", "wanted"]
    return markdown.table(columns, rows)


def _published(cells: list[Cell]) -> str:
    lost = [
        f"- {_label(cell)}: {backend}: {reason}"
        for cell in cells
        for backend, reasons in cell["candidates"].get("agspeed", {}).get("lost", {}).items()
        for reason in reasons
    ]
    return "\n\n".join([_steady(cells), "Backends that agspeed could not run:", "\n".join(lost) or "- none"])


_SECTIONS: dict[str, Callable[[list[Cell]], str]] = {
    "steady": _steady,
    "published": _published,
    "overhead": _overhead,
    "regret": _regret,
    "time_to_speed": _time_to_speed,
    "warm_start": _warm_start,
    "shared_process": _shared_process,
    "native_compile": _native_compile,
    "operators": _operators,
    "codes": _codes,
    "losses": _losses,
    "start": _start,
    "elastic": _elastic,
    "elastic_cost": _elastic_cost,
    "nccl_net": _nccl_net,
    "comm": comm_tables.render,
    "horovod": horovod_tables.render,
    "bytes": exchange_tables.render,
}
