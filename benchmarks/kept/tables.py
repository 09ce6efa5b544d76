# SPDX-License-Identifier: Apache-2.0
"""A table of kept results: a folder with a table.json and a file for each case, as Markdown.

The files of a table come from one machine, torch and date, unless `mixes` of its table.json names what differs.
"""

import datetime
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import markdown
from benchmarks.kept import files, runs, values

_MACHINE = ("cpu", "isa", "cores")


@dataclass(frozen=True)
class _Line:
    """A line of the table: a template for each cell, the values that these may name, and its place in messages."""

    cells: list[str]
    names: Mapping[str, Any]
    where: str


class Table:
    """Immutable. Files are checked when a table is made, and its templates when it is shown."""

    def __init__(self, where: str, definition: dict[str, Any], results: dict[str, dict[str, Any]]) -> None:
        """`results` has the contents of the files by their names. Raises ValueError if they do not fit together."""
        self.where, self.definition, self.results = where, definition, results
        self._values = {name: values.read(value) for name, value in definition.get("values", {}).items()}
        self._check_names()
        self.rows = {name: self._rows_of(name) for name in results}
        """File -> the figures and texts of each row."""
        self.columns = self._columns()
        """Name -> the figures of all rows under it."""
        self.facts = self._common_facts()
        """Machine, torch and date, where all files agree."""

    @classmethod
    def read(cls, folder: Path, new: Mapping[str, dict[str, Any]] | None = None) -> "Table":
        """Reads a table's folder; `new` has contents that stand in for its files, or are added to them.

        Raises ValueError that names the file and the field at fault.
        """
        definition = files.read_table(folder / "table.json")
        paths = [path for path in sorted(folder.glob("*.json")) if path.name != "table.json"]
        return cls(
            files.shown(folder), definition, {path.stem: files.read_result(path) for path in paths} | (new or {})
        )

    def markdown(self) -> str:
        """Notes, table and remarks. Raises ValueError if a template names a value that its row lacks."""
        titles = [column["title"] for column in self.definition["columns"]]
        table = markdown.table(titles, [_filled(line, titles) for line in self._all_lines()])
        return "\n\n".join(part for part in (self._paragraph("notes"), table, self._paragraph("remarks")) if part)

    # --- lines --------------------------------------------------------------------------------------------------------

    def _all_lines(self) -> Iterator[_Line]:
        for at, entry in enumerate(self.definition["rows"]):
            yield from self._lines(entry, f"{self._own_file}: rows[{at}]")

    def _lines(self, entry: Any, where: str) -> Iterator[_Line]:
        entry = {"file": entry} if isinstance(entry, str) else entry
        if "turns" in entry:
            turns = [list(self._lines(each, where)) for each in entry["turns"]]
            for at in range(_common((len(lines) for lines in turns), where)):
                yield from (lines[at] for lines in turns)
            return
        own, sides = entry.get("file"), entry.get("files", {})
        labels = {name: values.read(value) for name, value in entry.get("labels", {}).items()}
        cells = self._cells(entry, where)
        for at in range(1 if "cells" in entry else _common((len(self.rows[name]) for name in _files(entry)), where)):
            names = self._names(own, at) if own else {}
            aliases = {alias: SimpleNamespace(**self._names(name, at)) for alias, name in sides.items()}
            place = f"{self.where}/{own}.json: rows[{at}]" if own else where
            yield _Line(cells, ChainMap(names, aliases, labels, self._values), place)

    def _cells(self, entry: dict[str, Any], where: str) -> list[str]:
        """The templates of an entry's lines: its own cells, and the column's cell in place of null."""
        columns = self.definition["columns"]
        cells = entry.get("cells", [None] * len(columns))
        if len(cells) != len(columns):
            raise ValueError(f"{where}: {len(cells)} cells for {len(columns)} columns")
        found = [column.get("cell") if cell is None else cell for cell, column in zip(cells, columns, strict=True)]
        if None in found:
            raise ValueError(f"{where}: no cell for the column {columns[found.index(None)]['title']!r}")
        return found

    def _names(self, name: str, at: int) -> dict[str, Any]:
        """The names that a template may use: values of the row, facts of its file, and all rows of the file."""
        result, rows = self.results[name], self.rows[name]
        facts = {"date": datetime.date.fromisoformat(result["date"])}
        facts |= {key: result[key] for key in ("case", "threads", "torch") if key in result}
        return facts | rows[at] | {"rows": [SimpleNamespace(**row) for row in rows]}

    def _paragraph(self, kind: str) -> str:
        shown, names = [], ChainMap(self._values, {"rows": self.rows}, self.facts, self.columns)
        for at, sentence in enumerate(self.definition.get(kind, [])):
            try:
                shown.append(values.expand(sentence, names))
            except ValueError as error:
                raise ValueError(f"{self._own_file}: {kind}[{at}] {error}") from error
        return markdown.paragraph(" ".join(shown))

    # --- files --------------------------------------------------------------------------------------------------------

    @property
    def _own_file(self) -> str:
        return f"{self.where}/table.json"

    def _rows_of(self, name: str) -> list[dict[str, Any]]:
        result = self.results[name]
        try:
            rows = result["rows"] if "rows" in result else runs.rows(result["samples"], self.definition)
        except ValueError as error:
            raise ValueError(f"{self.where}/{name}.json: samples: {error}") from error
        return [{key: values.read(value) for key, value in row.items()} for row in rows]

    def _columns(self) -> dict[str, values.Column]:
        found: dict[str, list[values.Figure]] = {}
        for row in (row for rows in self.rows.values() for row in rows):
            for name, value in row.items():
                if isinstance(value, values.Figure):
                    found.setdefault(name, []).append(value)
        if both := sorted(found.keys() & self._values):
            raise ValueError(f"{self._own_file}: values has {both[0]}, and so have the rows; remove one of them")
        return {name: values.Column(figures) for name, figures in found.items()}

    def _check_names(self) -> None:
        used = file_names(self.definition)
        for name, result in self.results.items():
            case = result.get("case") or result["program"]
            if name.split(".")[0] != files.stem(case):
                raise ValueError(f"{self.where}/{name}.json: the file of {case} is named {files.stem(case)}.json")
            if name not in used:
                raise ValueError(f"{self._own_file}: rows does not name {name}, and the folder has {name}.json")
        if absent := [name for name in used if name not in self.results]:
            raise ValueError(f"{self._own_file}: rows names {absent[0]}, and the folder has no {absent[0]}.json")

    def _common_facts(self) -> dict[str, Any]:
        """Raises ValueError if the files differ in facts that `mixes` does not name, or agree in one that it names."""
        first, facts = next(iter(self.results), None), {}
        for fact, of in _FACTS.items():
            differing = [name for name in self.results if of(self.results[name]) != of(self.results[first])]
            if bool(differing) != (fact in self.definition.get("mixes", [])):
                reason = f"{differing[0]} has another {fact} than {first}" if differing else f"no {fact} differs"
                raise ValueError(f"{self._own_file}: mixes: {reason}; a table has one {fact} unless mixes names it")
            if not differing and first is not None:
                facts[fact] = of(self.results[first])
        return facts


_FACTS = {
    "machine": lambda result: tuple(result["machine"].get(key) for key in _MACHINE),
    "torch": lambda result: str(result["torch"]).partition("+")[0] if "torch" in result else None,
    "date": lambda result: result["date"],
}


def file_names(definition: Mapping[str, Any]) -> list[str]:
    """The files that a table.json names, in the order of its lines."""
    return [name for entry in definition["rows"] for name in _files(entry)]


def _filled(line: _Line, titles: list[str]) -> list[str]:
    shown = []
    for title, template in zip(titles, line.cells, strict=True):
        try:
            shown.append(values.expand(template, line.names))
        except ValueError as error:
            raise ValueError(f"{line.where} {error}, which the column {title!r} shows: {template}") from error
    return shown


def _files(entry: Any) -> list[str]:
    """The files that an entry of `rows` names."""
    if isinstance(entry, str):
        return [entry]
    nested = [name for each in entry.get("turns", []) for name in _files(each)]
    return [*nested, *([entry["file"]] if "file" in entry else []), *entry.get("files", {}).values()]


def _common(counts: Iterator[int], where: str) -> int:
    """The number of rows that files side by side have."""
    different = set(counts)
    if len(different) != 1:
        raise ValueError(f"{where}: these files have different numbers of rows: {sorted(different)}")
    return different.pop()
