#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates files from runtime/base/settings.toml, the table of all settings: the rows that C++ reads (settings.def),
their documentation (settings.md) and the table of the Python package (config/table.py)."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = "runtime/base/settings.toml"
_KINDS = "python/agspeed/config/kinds.py"
_NOTICE = "Generated from settings.toml by `make format`: edit that."
# Columns that the package's Setting has as fields of the same name, in the order of its fields.
_FIELDS = ("reader", "env", "doc", "choices", "at_least", "at_most", "keyword", "secret", "own_file", "env_aliases")
_COLUMNS = {"name", "type", "default", "guards", *_FIELDS}
_CPP_TYPES = {
    "choice": "std::string",
    "flag": "bool",
    "integer": "int64_t",
    "path": "std::string",
    "text": "std::string",
}
_PYTHON_TYPES = {
    # keep-sorted
    "cache_folder": "Path",
    "choice": "str",
    "flag": "bool",
    "integer": "int",
    "names": "tuple[str, ...]",
    "path": "Path",
    "ratio": "float",
    "report": "Path",
    "seconds": "float",
    "text": "str",
    "tristate": "bool",
}


def generate() -> dict[str, str]:
    """Returns the text of each generated file, by its path from the root."""
    table = tomllib.loads((ROOT / TABLE).read_text(encoding="utf-8"))
    rows, internal = table["setting"], table["internal"]
    for row in rows:
        _check(row)
    return {
        "python/agspeed/config/table.py": _python(rows, internal),
        "runtime/base/settings.def": _definitions(rows, internal),
        "runtime/base/settings.md": _markdown(rows),
    }


def _check(row: dict[str, Any]) -> None:
    """Ends the program with an error message if the row contradicts itself."""
    unknown = set(row) - _COLUMNS
    if unknown:
        sys.exit(f"{TABLE}: {row['name']} has unknown columns: {', '.join(sorted(unknown))}")
    if row["reader"] not in ("python", "c++", "both") or (row["reader"] != "python" and row["type"] not in _CPP_TYPES):
        sys.exit(f"{TABLE}: {row['name']}: {row['reader']} does not read {row['type']}")
    if row.get("secret") and (row.get("keyword") or row["type"] != "text"):
        sys.exit(f"{TABLE}: {row['name']}: a secret is a text and no keyword")
    if "default" in row:
        _setting(row).check(row["default"])


# --- Python -----------------------------------------------------------------------------------------------------------


def _setting(row: dict[str, Any]) -> Any:
    """Returns the row as the package's Setting, made without the package's own table."""
    kinds = sys.modules.get("settings_kinds")
    if kinds is None:
        spec = importlib.util.spec_from_file_location("settings_kinds", ROOT / _KINDS)
        assert spec is not None and spec.loader is not None
        kinds = sys.modules["settings_kinds"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kinds)
    return kinds.Setting(**dict(_arguments(row)))


def _arguments(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the arguments of `Setting` in their order; arguments at their defaults are left out."""
    yield from (("name", row["name"]), ("kind", row["type"]), ("default", row.get("default")))
    for column in _FIELDS:
        if column in row:
            yield column, tuple(row[column]) if isinstance(row[column], list) else row[column]


def _python(rows: list[dict[str, Any]], internal: list[str]) -> str:
    fields = "\n".join(f"    {row['name']}: {_annotation(row)}" for row in rows)
    table = "\n".join(_python_row(row) for row in rows)
    return f'''# SPDX-License-Identifier: Apache-2.0
"""The table of all settings, and the fields of their values.

{_NOTICE}
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agspeed.config.kinds import Secret, Setting

__all__ = ["INTERNAL_VARIABLES", "SETTINGS", "Values"]

# fmt: off
INTERNAL_VARIABLES: Final[tuple[str, ...]] = {_literal(tuple(internal))}

SETTINGS: Final[tuple[Setting, ...]] = (
{table}
)


@dataclass(frozen=True)
class Values:
    """The effective value of every setting."""

{fields}
# fmt: on
'''


def _annotation(row: dict[str, Any]) -> str:
    name = "Secret" if row.get("secret") else _PYTHON_TYPES[row["type"]]
    return name if "default" in row or row["type"] == "cache_folder" else f"{name} | None"


def _python_row(row: dict[str, Any]) -> str:
    lines = ["    Setting("]
    for name, value in _arguments(row):
        if name == "doc":
            lines += ["        doc=(", *(f"            {_quoted(part)}" for part in _wrapped(value, 100)), "        ),"]
        else:
            lines.append(f"        {name}={_literal(value)},")
    return "\n".join([*lines, "    ),"])


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_literal, value)) + ("," if len(value) == 1 else "") + ")"
    return _quoted(value) if isinstance(value, str) else repr(value)


# --- C++ --------------------------------------------------------------------------------------------------------------


def _definitions(rows: list[dict[str, Any]], internal: list[str]) -> str:
    variables = [name for row in rows for name in (row["env"], *row.get("env_aliases", ()))] + internal
    known = "\n".join(f"AG_VARIABLE({_quoted(name)})" for name in sorted(variables))
    read = "\n".join(_cpp_row(row) for row in rows if row["reader"] != "python")
    return f"""// SPDX-License-Identifier: Apache-2.0
// {_NOTICE}
//
// AG_SETTING(member, type, default, "name", what is valid, "what it must be", malformed, variables in their order): a
// setting that C++ reads.
// AG_VARIABLE("NAME"): an environment variable of agspeed, read by C++, Python or tests.
#ifndef AG_SETTING
#define AG_SETTING(...)
#endif
#ifndef AG_VARIABLE
#define AG_VARIABLE(name)
#endif

{read}

{known}

#undef AG_SETTING
#undef AG_VARIABLE
"""


def _cpp_row(row: dict[str, Any]) -> str:
    words = row["name"].split("_")
    member = words[0] + "".join(word.capitalize() for word in words[1:])
    default = row.get("default", "")
    default = (
        str(default).lower() if isinstance(default, bool) else _quoted(default) if isinstance(default, str) else default
    )
    rule = "anything()"
    if "choices" in row:
        rule = "oneOf({" + ", ".join(map(_quoted, row["choices"])) + "})"
    elif row["type"] == "integer":
        rule = f"between({row['at_least']}, {row['at_most']})"
    malformed = "Malformed::kRefused" if row.get("guards") else "Malformed::kDefault"
    variables = ", ".join(map(_quoted, (row["env"], *row.get("env_aliases", ()))))
    return (
        f"AG_SETTING({member}, {_CPP_TYPES[row['type']]}, {default}, {_quoted(row['name'])}, {rule},\n"
        f"           {_quoted(_setting(row).expects)}, {malformed},\n"
        f"           {variables})"
    )


# --- documentation ----------------------------------------------------------------------------------------------------


def _markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Settings",
        "",
        _NOTICE,
        "",
        "A value comes from the first source that has one: the keyword argument, the environment variable,",
        "`agspeed.toml` (the name is the key), the default. `agspeed config` shows the source. An empty variable",
        "counts as unset. C++ without Python reads the environment only.",
        "",
        "agspeed looks for `agspeed.toml` in the working directory and its parents, where the nearest one counts,",
        "then in `~/.config/agspeed`. It uses a file only if you or root own it and its folder, and no other user",
        "may write to them. It ignores any other file, with a warning.",
        "",
        "A setting with `own` in the column file is allowed in `~/.config/agspeed` only. A file beside a",
        "program may have come with the program, so it must not choose files to write, caches, keys or protection.",
        "",
        "| setting | variable | keyword | file | default | must be | what it does |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        variables = ", ".join(f"`{name}`" for name in (row["env"], *row.get("env_aliases", ())))
        default = f"`{str(row['default']).lower()}`" if "default" in row else "unset"
        keyword = "yes" if row.get("keyword") else "no"
        file = "no" if row.get("secret") else "own" if row.get("own_file") else "any"
        columns = (f"`{row['name']}`", variables, keyword, file, default, _setting(row).expects, row["doc"])
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Returns the text as a string literal that is valid in Python and C++."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _wrapped(text: str, width: int) -> list[str]:
    parts = textwrap.wrap(text, width)
    return [part + " " for part in parts[:-1]] + parts[-1:]


if __name__ == "__main__":
    for path, text in generate().items():
        (ROOT / path).write_text(text, encoding="utf-8")
