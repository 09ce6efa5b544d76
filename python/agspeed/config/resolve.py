# SPDX-License-Identifier: Apache-2.0
"""Settings: one table, four places a value may come from, and a record of which place won.

    keyword argument  >  environment variable  >  agspeed.toml  >  default

The table `SETTINGS` is the only list of settings: names, types, defaults, environment variables, keys of agspeed.toml,
the documentation printed by `agspeed config`, and the checks all come from it. agspeed.toml is looked for in the
working directory and its parents (the nearest one counts), then as ~/.config/agspeed/agspeed.toml; a key in the nearer
file wins. A file in a directory that everybody may write to counts only when this user owns it.

To add a setting: one row in `SETTINGS` and one field of the same name in `Settings`.

Every mistake raises one `UserError` that names the place (keyword, variable, file and line) before anything changes.
Thread-safety: `resolve` reads only the process environment and files; it keeps no state.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agspeed.errors import UserError

__all__ = [
    "FILE_NAME",
    "MODES",
    "NUMERICS",
    "SETTINGS",
    "UNSET",
    "Origin",
    "Setting",
    "Settings",
    "check_names",
    "check_paths",
    "find_files",
    "resolve",
    "suggestion",
]

FILE_NAME = "agspeed.toml"
MODES = ("auto", "max", "fast-start", "deterministic", "off")
NUMERICS = ("standard", "exact", "off")
REPORT_SUFFIXES = (".json", ".html")


class _Unset:
    """Marks a keyword that was not given, where None would be a value of its own."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()


@dataclass(frozen=True)
class Setting:
    """One row of the table. `expects` ends the sentence "<name> must be ..."."""

    name: str
    kind: str
    default: Any
    doc: str
    choices: tuple[str, ...] = ()
    keyword: bool = True

    @property
    def env(self) -> str:
        return f"AGSPEED_{self.name.upper()}"

    @property
    def toml_key(self) -> str:
        return self.name

    @property
    def expects(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        return _KINDS[self.kind].expects


# Ordered as `agspeed config` prints them: what users set most often first.
# fmt: off
SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("mode", "choice", "auto", "how much tuning may cost: auto earns its budget, max tunes everything first, "
            "fast-start uses cached decisions, deterministic never times, off changes nothing", MODES),
    Setting("backends", "names", None, "the candidates to consider, in order; unset means all that are available"),
    Setting("dynamic", "tristate", None, "whether to compile for changing sizes; auto decides once sizes have changed"),
    Setting("numerics", "choice", "standard", "what the gate accepts: standard compares errors against fp64 with "
            "eager's own, exact wants equal bits, off checks nothing", NUMERICS),
    Setting("budget_s", "seconds", None, "upper limit on seconds spent tuning; unset means the mode decides"),
    Setting("plan", "path", None, "a report.json whose decision is repeated; in deterministic mode only"),
    Setting("cache_dir", "directory", None, "where decisions and kernels are kept; unset means ~/.cache/agspeed"),
    Setting("report", "report", None, "write the report to this .json or .html file when tuning ends and at exit"),
    Setting("strict", "flag", False, "raise instead of falling back to eager"),
    Setting("memory_slack", "ratio", 0.15, "a candidate that needs this share more memory than eager loses"),
    Setting("disable", "flag", False, "kill switch: every optimized model runs eagerly", keyword=False),
    Setting("progress", "flag", True, "show progress while tuning", keyword=False),
    Setting("debug", "choice", "warn", "how much to log", ("warn", "info", "trace"), keyword=False),
)
# fmt: on


@dataclass(frozen=True)
class Origin:
    """Where a value came from: `source` is keyword, environment, file or default; `where` is for people."""

    source: str
    where: str

    def __str__(self) -> str:
        return self.where


@dataclass(frozen=True)
class Settings:
    """The effective value of every setting. `cache_dir` is always an absolute path here."""

    mode: str
    backends: tuple[str, ...] | None
    dynamic: bool | None
    numerics: str
    budget_s: float | None
    plan: Path | None
    cache_dir: Path
    report: Path | None
    strict: bool
    memory_slack: float
    disable: bool
    progress: bool
    debug: str
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """`{name: {"value": ..., "origin": ...}}` with JSON values, in table order."""
        return {
            setting.name: {"value": _jsonable(getattr(self, setting.name)), "origin": str(self.origins[setting.name])}
            for setting in SETTINGS
        }


def resolve(
    keywords: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Settings:
    """Combines keywords, environment and files into `Settings`.

    A keyword of None or `UNSET` counts as not given. `environ` and `cwd` replace the process's own (for tests).
    Raises: UserError for the first invalid value, unknown name or unreadable file; nothing else has happened then.
    """
    env = os.environ if environ is None else environ
    layers = [_keyword_layer(keywords or {}), _environment_layer(env)]
    layers += [_file_layer(path) for path in find_files(env, cwd)]
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for setting in SETTINGS:
        values[setting.name], origins[setting.name] = _first(setting, layers)
    if values["cache_dir"] is None:
        values["cache_dir"] = _default_cache_dir(env)
    return Settings(**values, origins=origins)


def check_paths(settings: Settings) -> None:
    """Raises UserError when a cache, report or plan path that somebody asked for cannot be used.

    The default cache directory is not checked: where it cannot be written, the cache is simply off.
    """
    if settings.origins["cache_dir"].source != "default":
        _check_writable(settings.cache_dir, "cache_dir", settings.origins["cache_dir"], "directory")
    if settings.report is not None:
        _check_writable(settings.report.parent, "report", settings.origins["report"], "directory of the report")
        if settings.report.is_dir():
            raise UserError(
                f"report={str(settings.report)!r} ({settings.origins['report']}) is a directory: name a "
                "file that ends in .json or .html."
            )
    if settings.plan is not None and not settings.plan.is_file():
        raise UserError(
            f"plan={str(settings.plan)!r} ({settings.origins['plan']}) is not a readable file: give the "
            "path of a plan that agspeed wrote."
        )


def check_names(what: str, names: Iterable[str], known: Iterable[str], origin: Origin | str = "keyword") -> None:
    """Raises UserError for the first of `names` that is not `known`, e.g. `check_names("backend", ...)`."""
    options = sorted(known)
    for name in names:
        if name not in options:
            raise UserError(
                f"Unknown {what} {name!r} ({origin}): use one of {', '.join(options)}{suggestion(name, options)}."
            )


def suggestion(word: object, options: Iterable[str], likeness: float = 0.6) -> str:
    """`"; did you mean 'max'?"` without the question mark's sentence, or an empty string."""
    close = difflib.get_close_matches(str(word).lower(), list(options), n=1, cutoff=likeness)
    return f" (did you mean {close[0]!r}?)" if close else ""


def find_files(environ: Mapping[str, str] | None = None, cwd: str | os.PathLike[str] | None = None) -> list[Path]:
    """The agspeed.toml files in force, nearest first: at most one from the working directory up, one of the user."""
    env = os.environ if environ is None else environ
    start = Path(cwd or os.getcwd()).absolute()
    nearest = (folder / FILE_NAME for folder in (start, *start.parents))
    found = next((path for path in nearest if _is_trusted_file(path)), None)
    own = _home_folder(env, "XDG_CONFIG_HOME", ".config") / FILE_NAME
    files = [] if found is None else [found]
    return files + ([own] if own != found and own.is_file() else [])


# ---------------------------------------------------------------------------------------------------------------------
# Layers: each maps a setting's name to (value, origin, came as text).

_Layer = dict[str, tuple[Any, Origin, bool]]


def _keyword_layer(keywords: Mapping[str, Any]) -> _Layer:
    known = [setting.name for setting in SETTINGS if setting.keyword]
    for name in keywords:
        if name not in known:
            raise UserError(f"Unknown keyword {name!r}: use one of {', '.join(known)}{suggestion(name, known)}.")
    return {
        name: (value, Origin("keyword", "keyword"), False)
        for name, value in keywords.items()
        if value is not None and value is not UNSET
    }


def _environment_layer(env: Mapping[str, str]) -> _Layer:
    return {
        setting.name: (env[setting.env], Origin("environment", f"environment variable {setting.env}"), True)
        for setting in SETTINGS
        if env.get(setting.env, "").strip()
    }


def _file_layer(path: Path) -> _Layer:
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}. Correct or remove the file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}. Correct or remove the file.") from None
    known = [setting.toml_key for setting in SETTINGS]
    layer: _Layer = {}
    for key, value in table.items():
        where = f"{path}:{_line_of(key, text)}"
        if key not in known:
            raise UserError(f"Unknown key {key!r} ({where}): use one of {', '.join(known)}{suggestion(key, known)}.")
        layer[key] = (value, Origin("file", where), False)
    return layer


def _first(setting: Setting, layers: list[_Layer]) -> tuple[Any, Origin]:
    for layer in layers:
        if setting.name in layer:
            value, origin, is_text = layer[setting.name]
            return _convert(setting, value, origin, is_text), origin
    return setting.default, Origin("default", "default")


def _convert(setting: Setting, value: Any, origin: Origin, is_text: bool) -> Any:
    kind = _KINDS[setting.kind]
    try:
        converted = kind.convert(kind.parse(value) if is_text else value)
        if setting.choices and converted not in setting.choices:
            raise ValueError
    except (ValueError, TypeError):
        hint = suggestion(value, setting.choices) if isinstance(value, str) else ""
        raise UserError(
            f"{setting.name}={_shown(value)} ({origin}) is not valid: {setting.name} must be {setting.expects}{hint}."
        ) from None
    return converted


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _line_of(key: str, text: str) -> int:
    """The line on which a top-level `key` or table of that name starts; tomllib reports no positions."""
    name = re.escape(key)
    pattern = re.compile(rf"""^\s*(\[+\s*)?["']?{name}["']?\s*[=.\]]""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 1)


# ---------------------------------------------------------------------------------------------------------------------
# Kinds: how text becomes a value, and what a value must be.


@dataclass(frozen=True)
class _Kind:
    expects: str
    convert: Callable[[Any], Any]
    parse: Callable[[str], Any] = str.strip


_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _parse_flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(word)
    return word in _TRUE


def _parse_tristate(text: str) -> bool | str:
    return "auto" if text.strip().lower() == "auto" else _parse_flag(text)


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _tristate(value: Any) -> bool | None:
    return None if isinstance(value, str) and value == "auto" else _flag(value)


def _choice(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError
    return float(value)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = _parse_names(value)
    names = tuple(value)
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError
    return tuple(dict.fromkeys(names))


def _path(value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value) or "\0" in str(value):
        raise ValueError
    return Path(value).expanduser().absolute()


def _report_path(value: Any) -> Path:
    path = _path(value)
    if path.suffix.lower() not in REPORT_SUFFIXES:
        raise ValueError
    return path


_KINDS: Final[dict[str, _Kind]] = {
    "choice": _Kind("a word", _choice, lambda text: text.strip().lower()),
    "directory": _Kind("the path of a directory", _path),
    "flag": _Kind("true or false", _flag, _parse_flag),
    "names": _Kind("a non-empty list of names", _names, _parse_names),
    "path": _Kind("the path of a file", _path),
    "ratio": _Kind("a number that is not negative", _number, float),
    "report": _Kind("the path of a file that ends in .json or .html", _report_path),
    "seconds": _Kind("a number of seconds that is not negative", _number, float),
    "tristate": _Kind("true, false or auto", _tristate, _parse_tristate),
}


# ---------------------------------------------------------------------------------------------------------------------
# Paths.


def _home_folder(env: Mapping[str, str], variable: str, fallback: str) -> Path:
    base = env.get(variable, "")
    if not os.path.isabs(base):
        base = os.path.join(env.get("HOME") or os.path.expanduser("~"), fallback)
    return Path(base) / "agspeed"


def _default_cache_dir(env: Mapping[str, str]) -> Path:
    return _home_folder(env, "XDG_CACHE_HOME", ".cache").absolute()


def _is_trusted_file(path: Path) -> bool:
    try:
        folder_mode = path.parent.stat().st_mode
        info = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and (not folder_mode & stat.S_IWOTH or info.st_uid == os.geteuid())


def _check_writable(folder: Path, name: str, origin: Origin, what: str) -> None:
    """`folder` may not exist yet: then its nearest existing parent must allow creating it."""
    existing = folder
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK) and not _is_kernel_filesystem(existing):
        return
    why = "cannot be written" if existing.is_dir() else "is not a directory"
    raise UserError(
        f"{name} ({origin}): the {what} {str(folder)!r} cannot be used because {str(existing)!r} {why}. "
        "Choose another path or change its permissions."
    )


def _is_kernel_filesystem(path: Path) -> bool:
    """/proc and /sys say they are writable to root, yet nothing can be created there."""
    return path.parts[1:2] in (("proc",), ("sys",))


def _jsonable(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
