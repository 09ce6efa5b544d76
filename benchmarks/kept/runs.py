# SPDX-License-Identifier: Apache-2.0
"""From the result of a run (benchmarks/cells.py) to kept results: their files, and the rows of a table in their cells.

A table.json says by `pick` where a cell has the values of a row. A place is a path such as
`candidates.agspeed.speedup`. Fields in braces are filled in from the cell: `candidates.agspeed.over.{oracle[winner]}`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import cells, table
from benchmarks.kept import files

Cell = dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """The parts of a run for one table: contents of files by their names, reasons by the same names for cells that are
    void or failed, and cases that the table does not name."""

    files: dict[str, dict[str, Any]]
    refused: dict[str, str]
    unknown: list[str]


def rows(cell: Cell, definition: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows that a table takes from a cell. A row lacks the values that the cell lacks."""
    if "pick" not in definition:
        raise ValueError("its table.json has no `pick` that says where a cell has the values of a row")
    parts = _at(cell, definition["each"], cell) if "each" in definition else [cell]
    if not parts:
        raise ValueError(f"the cell has no {definition['each']}")
    found = []
    for part in parts:
        if part.get("status") not in (None, "ok"):
            raise ValueError(f"a part of the cell is {part['status']}: {part.get('reason', 'no reason given')}")
        picked = {name: _first(part, places, cell) for name, places in definition["pick"].items()}
        found.append({name: value for name, value in picked.items() if value is not None})
    return found


def kept(path: Path, definition: Mapping[str, Any], known: Collection[str]) -> Kept:
    """Reads the result of a run, and takes the cells whose files are `known`. Raises ValueError if it is no result."""
    result, found = cells.read(path), Kept({}, {}, [])
    for cell in result["cells"]:
        name, label = files.stem(cell["case"]), f"{path}: {cell['case']} at {cell['threads']} threads"
        if definition.get("threads", cell["threads"]) != cell["threads"]:
            continue
        if name not in known:
            found.unknown.append(cell["case"])
        elif cell["status"] != "ok":
            found.refused[name] = f"{label} is {cell['status']}: {cell.get('reason', 'no reason given')}"
        elif name in found.files:
            raise ValueError(f"{label} is not the only cell of this case: name one number as `threads` of table.json")
        else:
            head = {"case": cell["case"], "machine": result["machine"], "torch": result["machine"]["torch"]}
            head |= {"date": result["date"], "threads": cell["threads"], "command": result["command"]}
            found.files[name] = files.checked_result(head | {"samples": cell}, label)
    return found


def _first(part: Cell, places: str | list[str], cell: Cell) -> Any:
    options = [places] if isinstance(places, str) else places
    return next((value for place in options if (value := _at(part, place, cell)) is not None), None)


def _at(part: Cell, place: str, cell: Cell) -> Any:
    """Returns the value at a place of a cell, or None. Decisions by module become one text."""
    found: Any = part
    for step in place.format_map(cell).split("."):
        if not isinstance(found, dict) or step not in found:
            return None
        found = found[step]
        if isinstance(found, dict) and "status" in found:
            found = table.timed(found, cell)
    is_decision = place.endswith(".chosen") and isinstance(found, dict)
    return table.decisions(found) if is_decision else found
