# SPDX-License-Identifier: Apache-2.0
"""Writes RESULTS*.md from the kept results in `benchmarks/results`: `python -m benchmarks.results --help`.

A page is a template with a line `<!-- table: steady/one_thread -->` for each table. A table is the folder of that name
(`benchmarks.kept`).
"""

import argparse
import itertools
import re
import sys
from pathlib import Path

from benchmarks.kept import files, runs
from benchmarks.kept.tables import Table, file_names

PAGES = ("RESULTS.md", "RESULTS_RANKS.md", "RESULTS_COMM.md")
FOLDER = Path(__file__).resolve().parent / "results"
_PLACE = re.compile(r"^<!-- table: (\S+) -->$", re.M)


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if bool(arguments.keep) != bool(arguments.table):
        _parser().error("--keep and --table belong together")
    if arguments.keep and arguments.check:
        _parser().error("--check writes nothing, so it cannot be combined with --keep")
    try:
        if arguments.keep:
            keep(arguments.keep, FOLDER / arguments.table)
        found = pages(FOLDER)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not arguments.check:
        for path, text in found.items():
            path.write_text(text, encoding="utf-8")
        return 0
    differences = [sentence for path, text in found.items() if (sentence := difference(path, text))]
    print("\n".join(differences), end="\n" if differences else "")
    return 1 if differences else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.results", description="Writes the pages of results from the kept results."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is not current")
    parser.add_argument("--keep", nargs="+", type=Path, metavar="RESULT.json", help="results of run.py to keep first")
    parser.add_argument("--table", metavar="NAME", help="the table that they belong to, such as steady/one_thread")
    return parser


def tables(folder: Path) -> dict[str, Table]:
    """Reads all tables of a folder, by name. Raises ValueError that names the file and the field at fault."""
    paths = sorted(path.parent for path in folder.rglob("table.json"))
    return {path.relative_to(folder).as_posix(): Table.read(path) for path in paths}


def pages(folder: Path) -> dict[Path, str]:
    """Renders all pages: path -> text. Raises ValueError if a file is at fault, or a table is not on just one page."""
    made = {name: table.markdown() for name, table in tables(folder).items()}
    templates = {page: folder / f"{Path(page).stem}.template.md" for page in PAGES}
    texts = {page: path.read_text(encoding="utf-8") for page, path in templates.items()}
    places = [(page, name) for page, text in texts.items() for name in _PLACE.findall(text)]
    for page, name in places:
        if name not in made:
            raise ValueError(f"{files.shown(templates[page])} has the table {name}, and no {name}/table.json exists")
    for name in made:
        found = [page for page, placed in places if placed == name]
        if len(found) != 1:
            raise ValueError(f"the table {name} must be on one page, and is on {', '.join(found) or 'none'}")
    return {folder.parent / page: _PLACE.sub(lambda place: made[place[1]], text) for page, text in texts.items()}


def difference(path: Path, text: str) -> str | None:
    """A sentence about the first line in which a page differs from `text`, or None."""
    current = path.read_text(encoding="utf-8") if path.exists() else ""
    if current == text:
        return None
    lines = itertools.zip_longest(current.split("\n"), text.split("\n"), fillvalue="(no line)")
    number, (has, wanted) = next((at, pair) for at, pair in enumerate(lines, 1) if pair[0] != pair[1])
    return f"{files.shown(path)}:{number} has {has!r}, and the kept results give {wanted!r}; run make results"


def keep(paths: list[Path], folder: Path) -> None:
    """Writes the cells of runs into a table's folder, in place of earlier ones. The last valid cell of a case counts.

    Raises ValueError, and writes nothing, if a file or cell is bad, or if the table's files would not fit together.
    """
    definition = files.read_table(folder / "table.json")
    found = [runs.kept(path, definition, file_names(definition)) for path in paths]
    new = {name: result for each in found for name, result in each.files.items()}
    if refused := [reason for each in found for name, reason in each.refused.items() if name not in new]:
        raise ValueError(refused[0])
    if not new:
        raise ValueError(f"{', '.join(map(str, paths))}: no cell for {files.shown(folder)}")
    Table.read(folder, new).markdown()
    for name, result in new.items():
        (folder / f"{name}.json").write_text(files.text_of(result), encoding="utf-8")
    unknown = list(dict.fromkeys(case for each in found for case in each.unknown))
    print(f"kept {', '.join(new)}" + (f"; left out {', '.join(unknown)}" if unknown else ""))
    print(f"now read the notes of {files.shown(folder)}/table.json again: they describe the run")


if __name__ == "__main__":
    sys.exit(main())
