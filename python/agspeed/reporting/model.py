# SPDX-License-Identifier: Apache-2.0
"""The report as an object: a dictionary that conforms to schema.json, with loading, saving and a plain-text view.

Ownership: a `Report` keeps a deep copy of its dictionary. Thread-safety: read-only after construction.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import html
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agspeed import bounded_json, files
from agspeed.errors import UserError

__all__ = [
    "KILL_SWITCH",
    "NOTICE",
    "SCHEMA_VERSION",
    "Report",
    "empty_report",
    "load",
    "schema",
    "validate",
    "write_page",
]

SCHEMA_VERSION = 1
NOTICE = (
    "This report contains source lines, names and shapes of your model, file paths and the command line. "
    "Read it before you share it."
)
KILL_SWITCH = (
    "AGSPEED_DISABLE=1 runs everything eagerly; `with agspeed.paused():` does so for a block; "
    "agspeed.restore(model) undoes optimize."
)
_MAX_BYTES = 256 << 20
_COLUMNS = ("step", "at_s", "ms", "max_ms", "wait_ms")
_ADDED: dict[str, dict[str, Any]] = {
    "communication": {"shared_memory_bytes_sent": 0, "bytes_before_coding": 0, "bytes_after_coding": 0},
    "cost": {"saved_s": 0.0, "left_s": None, "next_run": "same"},
    "decision": {"resumed_pairs": 0},
    "memory": {"retained": None},
}
"""{section: keys that files of version 1 may lack, with their defaults}."""


@functools.cache
def schema() -> dict[str, Any]:
    """Returns the parsed schema.json; callers must not change it."""
    text = Path(__file__).with_name("schema.json").read_text(encoding="utf-8")
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def empty_report(subject: str = "") -> dict[str, Any]:
    """Returns a valid report of a model about which nothing is known yet. Fill it in, then pass it to `Report`."""
    return {
        "kind": "agspeed.report",
        "schema_version": SCHEMA_VERSION,
        "notice": NOTICE,
        "header": {
            "created_at": "",
            "subject": subject,
            "parameters": 0,
            "parameter_bytes": 0,
            "versions": {},
            "machine": {"cpu": "", "isa": "", "cores": 0, "memory_bytes": 0, "os": "", "accelerators": []},
            "threads": {"intra_op": 0, "inter_op": 0},
            "rank": None,
            "world_size": 1,
            "seed": None,
            "wall_s": 0.0,
            "settings": {},
        },
        "status": {"state": "eager", "reason": "nothing has been captured yet"},
        "decision": {
            "chosen": "eager",
            "why": "nothing has been decided yet",
            "source": "none",
            "speedup": None,
            "drift": None,
            "resumed_pairs": 0,
        },
        "plans": [],
        "regions": [],
        "timeline": {
            **{name: [] for name in _COLUMNS},
            "steps": 0,
            "steps_per_point": 1,
            "phases": [],
            "pauses": [],
        },
        "time_shares": [],
        "graph_breaks": [],
        "recompiles": [],
        "cost": {
            "entries": [],
            "foreground_s": 0.0,
            "background_s": 0.0,
            "budget_s": None,
            "saving_ms_per_step": None,
            "break_even_step": None,
            "saved_s": 0.0,
            "left_s": None,
            "next_run": "same",
        },
        "memory": {
            "eager_peak_bytes": None,
            "chosen_peak_bytes": None,
            "limit_bytes": None,
            "gate_peak_bytes": None,
            "retained": None,
        },
        "fallbacks": [],
        "cache": {"directory": None, "usable": False, "note": None, "stores": []},
        "optimizers": [],
        "group": None,
        "stragglers": None,
        "codec": None,
        "units": None,
        "comparison": None,
        "communication": None,
        "warnings": [],
        "reproduce": {"command": "", "environment": {}, "plan": None},
        "kill_switch": KILL_SWITCH,
    }


def validate(data: Mapping[str, Any]) -> None:
    """Raises: UserError that names the first place at which `data` violates schema.json."""
    if not isinstance(data, Mapping) or data.get("kind") != "agspeed.report":
        raise UserError('This is not an agspeed report: its "kind" is not "agspeed.report".')
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"The report has schema version {version!r} and this agspeed reads version {SCHEMA_VERSION}: "
            "open it with the agspeed that wrote it."
        )
    problem = next(_validator().iter_errors(data), None)
    if problem is not None:
        raise UserError(f"The report is not valid at {problem.json_path}: {problem.message[:300]}.")
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"The report holds a value that JSON cannot: {error}.") from None
    timeline = data["timeline"]
    if len({len(timeline[name]) for name in _COLUMNS}) != 1:
        raise UserError("The report is not valid at $.timeline: its columns differ in length.")


def _completed(data: dict[str, Any]) -> dict[str, Any]:
    """Returns `data` with defaults for keys that files of version 1 may lack."""
    lacking = ("codec", "communication", "comparison", "group", "stragglers", "units")
    data = {**dict.fromkeys(lacking), "optimizers": [], **data}
    if (only := data.pop("optimizer", None)) is not None:
        data["optimizers"] = [only]
    for section, added in _ADDED.items():
        if isinstance(data.get(section), dict):
            data[section] = {**added, **data[section]}
    found = data.get("regions")
    regions = [region for region in found if isinstance(region, dict)] if isinstance(found, list) else []
    for holder, name in [(data, "plans"), *((region, "candidates") for region in regions)]:
        if isinstance(holder.get(name), list):
            holder[name] = [{"cold": False, **plan} if isinstance(plan, dict) else plan for plan in holder[name]]
    if isinstance(data.get("timeline"), dict) and "at_s" not in data["timeline"]:
        with contextlib.suppress(KeyError, TypeError, ValueError):  # `validate` reports what is wrong
            data["timeline"] = {"at_s": _begins(data["timeline"]), "pauses": [], **data["timeline"]}
    completed: dict[str, Any] = _with_defaults(data)
    return completed


_DEFAULTS = (
    ({"failovers", "stalls"}, {"bytes_per_second": 0.0}),
    ({"worst", "eager_rms"}, {"allowed_max": None, "allowed_rms": None}),
    ({"native_operators", "shapes"}, {"source": None, "graph": None, "generated": None}),
    ({"since_step", "until_step"}, {"num_ranks": 1, "is_starved": False}),
)
"""(Keys that identify an object of version 1, keys that it may lack with their defaults)."""


def _with_defaults(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_defaults(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    lacking = {key: default for known, more in _DEFAULTS if known <= value.keys() for key, default in more.items()}
    return {**lacking, **{key: _with_defaults(inner) for key, inner in value.items()}}


def _begins(timeline: Mapping[str, Any]) -> list[float]:
    """Returns the seconds at which the points began, computed from their own times alone."""
    found, now = [], 0.0
    for step, following, ms, wait in zip(
        timeline["step"], [*timeline["step"][1:], timeline["steps"]], timeline["ms"], timeline["wait_ms"], strict=True
    ):
        found.append(now)
        now += (following - step) * (ms + wait) / 1000
    return found


def load(path: str | os.PathLike[str]) -> Report:
    """Reads and validates a report.json. Raises: UserError with the reason if that is impossible."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise UserError(f"The report {os.fspath(path)!r} is larger than a report may be ({_MAX_BYTES >> 20} MiB).")
        data = bounded_json.loads(text)
    except OSError as error:
        raise UserError(f"The report {os.fspath(path)!r} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"The report {os.fspath(path)!r} is not valid JSON: {error}.") from None
    if isinstance(data, dict):
        data = _completed(data)
    try:
        return Report(data)
    except UserError as error:
        raise UserError(f"{os.fspath(path)}: {error}") from None


class Report:
    """A validated snapshot, as `agspeed.report(model)` returns it."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        validate(data)
        self._data: dict[str, Any] = copy.deepcopy(dict(data))

    def to_dict(self) -> dict[str, Any]:
        """Returns a copy of the JSON document."""
        return copy.deepcopy(self._data)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes JSON or a self-contained HTML page, depending on the suffix. The file is written whole or not at all.

        Returns: the absolute path. Raises: UserError for another suffix, and if the path cannot be written.
        """
        target = _absolute(path)
        suffix = target.suffix.lower()
        if suffix == ".json":
            text = json.dumps(self._data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        elif suffix == ".html":
            from agspeed.reporting.html.page import render

            text = render(self._data)
        else:
            raise UserError(f"A report is saved as .json or .html, and {os.fspath(path)!r} ends in neither.")
        _write(target, text)
        return target

    def __str__(self) -> str:
        from agspeed.reporting.terminal import as_text

        return as_text(self._data)

    def _repr_html_(self) -> str:
        """Returns the page in its own frame, for notebooks: its styles and scripts do not affect the notebook."""
        from agspeed.reporting.html.page import render

        page = html.escape(render(self._data), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'

    def __repr__(self) -> str:
        return f"<agspeed report: {self._data['header']['subject']}, {self._data['status']['state']}>"


@functools.cache
def _validator() -> Any:
    import jsonschema

    return jsonschema.Draft202012Validator(schema())


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Writes a page, whole or not at all. Returns: the absolute path. Raises: UserError if that is impossible."""
    target = _absolute(path)
    if target.suffix.lower() != ".html":
        raise UserError(f"The page is written to a file that ends in .html, and {os.fspath(path)!r} does not.")
    _write(target, text)
    return target


def _absolute(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except (OSError, RuntimeError):
        raise UserError(
            f"The report cannot be written to {os.fspath(path)!r}: there is no such home, or the working directory is "
            "gone. Name an absolute path."
        ) from None


def _write(target: Path, text: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        files.write(target, text)
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {str(target)!r}: {error.strerror}. Choose a path that you may write to."
        ) from None
