# SPDX-License-Identifier: Apache-2.0
"""Determines the value of every setting, and which of four sources it came from.

    keyword argument  >  environment variable  >  agspeed.toml  >  default

Every mistake raises one `UserError` that names the source (keyword, variable, file and line) before anything changes.
Secrets come only from the environment, and no message shows one. Thread-safety: `resolve` reads the process's
environment and files and keeps no state.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agspeed.config.kinds import Secret, Setting, jsonable
from agspeed.config.paths import default_cache_dir, find_files, own_file, why_not_writable
from agspeed.config.table import INTERNAL_VARIABLES, SETTINGS, Values
from agspeed.errors import UserError, UserTypeError

__all__ = [
    "UNSET",
    "Origin",
    "Settings",
    "check_names",
    "check_paths",
    "choices_of",
    "for_cpp",
    "resolve",
    "shown_variables",
    "suggestion",
    "without_secrets",
]


class _Unset:
    """Marks a keyword that was not given, for keywords that accept None as a value."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()


@dataclass(frozen=True)
class Origin:
    """The source of a value: `source` is keyword, environment, file or default; `name` is the variable or file:line."""

    source: str
    name: str = ""

    def __str__(self) -> str:
        if self.source == "environment":
            return f"environment variable {self.name}"
        return self.name or self.source


@dataclass(frozen=True)
class Settings(Values):
    """The effective value of every setting. `cache_dir` is always an absolute path here."""

    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)
    replayed: str | None = field(default=None, repr=False)
    """A plan that other ranks of the job have decided on, to be replayed like the plan of a report."""
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """One sentence for each variable that looks like a setting but is not, and for each file that is ignored."""

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Returns `{name: {"value": ..., "origin": ...}}` with JSON values, in table order. Secrets: "set" or None."""
        return {
            setting.name: {"value": jsonable(getattr(self, setting.name)), "origin": str(self.origins[setting.name])}
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
    Raises: UserError for the first invalid value, unknown name or unreadable file and, if `strict` is set, for an
    unknown variable with the prefix AGSPEED_. Nothing has been changed then.
    """
    env = os.environ if environ is None else environ
    layers, ignored = _process_layers(env, cwd)
    values, origins = _values_of(SETTINGS, [_keyword_layer(keywords or {}), *layers])
    if values["cache_dir"] is None:
        values["cache_dir"] = default_cache_dir(env)
    unknown = _unknown_variables(env)
    if unknown and values["strict"]:
        raise UserError(f"{unknown[0]}, and strict ({origins['strict']}) allows none that is unknown.")
    warnings = (*(f"{sentence}; it is ignored" for sentence in unknown), *ignored)
    return Settings(**values, origins=origins, warnings=warnings)


def for_cpp(
    environ: Mapping[str, str] | None = None, cwd: str | os.PathLike[str] | None = None
) -> tuple[dict[str, bool | int | bytes], dict[str, str]]:
    """Returns the arguments of `_native.configure`: the values that C++ reads, and the origins of values that are not
    defaults.

    Raises: as `resolve`, for these settings only.
    """
    env = os.environ if environ is None else environ
    rows = [setting for setting in SETTINGS if setting.goes_to_cpp]
    values, origins = _values_of(rows, _process_layers(env, cwd)[0])
    places = {name: origin.name for name, origin in origins.items() if origin.source != "default"}
    return {name: _for_cpp(value) for name, value in values.items()}, places


def check_paths(settings: Settings) -> None:
    """Raises: UserError if a cache, dump, report or plan path from the settings cannot be used.

    The default cache directory is not checked: if it cannot be written, the cache is off.
    """
    if settings.origins["cache_dir"].source != "default":
        _check_writable(settings.cache_dir, "cache_dir", settings.origins["cache_dir"], "directory")
    if settings.dump is not None:
        _check_writable(settings.dump, "dump", settings.origins["dump"], "directory")
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
    """Raises: UserError for the first of `names` that is not in `known`, as in `check_names("backend", ...)`."""
    options = sorted(known)
    for name in names:
        if name not in options:
            raise UserError(
                f"Unknown {what} {name!r} ({origin}): use one of {', '.join(options)}{suggestion(name, options)}."
            )


def suggestion(word: object, options: Iterable[str], likeness: float = 0.6) -> str:
    """Returns `" (did you mean 'max'?)"`, or "" if no option is similar."""
    close = difflib.get_close_matches(str(word).lower(), list(options), n=1, cutoff=likeness)
    return f" (did you mean {close[0]!r}?)" if close else ""


def choices_of(name: str) -> tuple[str, ...]:
    """Returns the allowed words of a setting."""
    return next(setting.choices for setting in SETTINGS if setting.name == name)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables without secrets, for processes that need none."""
    secrets = {variable for setting in SETTINGS if setting.secret for variable in setting.variables}
    return {name: text for name, text in environ.items() if name not in secrets}


def shown_variables() -> dict[str, str]:
    """Returns the variables of this process that set settings, for a report: without secrets and unknown variables."""
    known = {variable for setting in SETTINGS for variable in setting.variables}
    return {name: text for name, text in without_secrets(os.environ).items() if name in known}


# ---------------------------------------------------------------------------------------------------------------------
# Layers: each maps a setting's name to (value, origin, came as text).

_Layer = dict[str, tuple[Any, Origin, bool]]


def _process_layers(env: Mapping[str, str], cwd: str | os.PathLike[str] | None) -> tuple[list[_Layer], list[str]]:
    """Returns the layers, and a sentence for each ignored file."""
    files = find_files(env, cwd)
    layers = [_environment_layer(env)]
    if files.nearest is not None:
        layers.append(_file_layer(files.nearest))
        _check_may_set(layers[-1], own_file(env))
    if files.own is not None:
        layers.append(_file_layer(files.own))
    return layers, files.ignored


def _check_may_set(layer: _Layer, own: Path | None) -> None:
    """Raises: UserError if a file in the working directory or above sets a protected setting. Such a file may come with
    a program, so it must not choose files to write, the cache, the job key or the protection of connections."""
    for setting in SETTINGS:
        if setting.own_file and setting.name in layer:
            remedy = f"set {setting.env}" if own is None else f"set {setting.env}, or write it to {own}"
            raise UserError(
                f"{setting.name} ({layer[setting.name][1]}) may not be set by a file in the working directory or above "
                f"it: remove it there, and {remedy}."
            )


def _keyword_layer(keywords: Mapping[str, Any]) -> _Layer:
    known = [setting.name for setting in SETTINGS if setting.keyword]
    for name in keywords:
        _refuse_secret(name, "keyword")
        if name not in known:
            raise UserError(f"Unknown keyword {name!r}: use one of {', '.join(known)}{suggestion(name, known)}.")
    return {
        name: (value, Origin("keyword"), False)
        for name, value in keywords.items()
        if value is not None and value is not UNSET
    }


def _environment_layer(env: Mapping[str, str]) -> _Layer:
    layer: _Layer = {}
    for setting in SETTINGS:
        variable = next((name for name in setting.variables if env.get(name, "").strip()), None)
        if variable is not None:
            layer[setting.name] = (env[variable], Origin("environment", variable), True)
    return layer


def _file_layer(path: Path) -> _Layer:
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}. Correct or remove the file.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}. Correct or remove the file.") from None
    known = [setting.toml_key for setting in SETTINGS if not setting.secret]
    layer: _Layer = {}
    for key, value in table.items():
        where = f"{path}:{_line_of(key, text)}"
        _refuse_secret(key, where)
        if key not in known:
            raise UserError(f"Unknown key {key!r} ({where}): use one of {', '.join(known)}{suggestion(key, known)}.")
        layer[key] = (value, Origin("file", where), False)
    return layer


def _refuse_secret(name: str, where: str) -> None:
    secret = next((setting for setting in SETTINGS if setting.secret and setting.name == name), None)
    if secret is not None:
        raise UserError(
            f"{name} ({where}) is a secret, which only the environment may hold: remove it there and set {secret.env}."
        )


def _unknown_variables(env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a sentence for each unknown variable with the prefix AGSPEED_, without the value: it may be a secret."""
    known = {name for setting in SETTINGS for name in setting.variables}.union(INTERNAL_VARIABLES)
    unknown = sorted(name for name in env if name.startswith("AGSPEED_") and name not in known)
    return tuple(f"{name} is not a setting{_nearest(name, known)}" for name in unknown)


def _nearest(variable: str, known: Iterable[str]) -> str:
    """Returns a suggestion for an unknown variable. Compares names without the prefix, which would make all similar."""
    names = [name.removeprefix("AGSPEED_").lower() for name in known if name.startswith("AGSPEED_")]
    close = difflib.get_close_matches(variable.removeprefix("AGSPEED_").lower(), names, n=1)
    return f" (did you mean AGSPEED_{close[0].upper()}?)" if close else " (`agspeed config --explain` lists all)"


def _values_of(rows: Iterable[Setting], layers: list[_Layer]) -> tuple[dict[str, Any], dict[str, Origin]]:
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for setting in rows:
        values[setting.name], origins[setting.name] = _first(setting, layers)
    return values, origins


def _first(setting: Setting, layers: list[_Layer]) -> tuple[Any, Origin]:
    for layer in layers:
        if setting.name in layer:
            value, origin, is_text = layer[setting.name]
            return _convert(setting, value, origin, is_text), origin
    return setting.default, Origin("default")


def _convert(setting: Setting, value: Any, origin: Origin, is_text: bool) -> Any:
    try:
        return setting.parse(value) if is_text else setting.check(value)
    except (ValueError, TypeError) as error:
        kind = UserTypeError if isinstance(error, TypeError) else UserError
    given = setting.name if setting.secret else f"{setting.name}={_shown(value)}"
    hint = suggestion(value, setting.choices) if isinstance(value, str) else ""
    raise kind(f"{given} ({origin}) is not valid: {setting.name} must be {setting.expects}{hint}.")


def _for_cpp(value: Any) -> bool | int | bytes:
    if isinstance(value, (bool, int)):
        return value
    return os.fsencode(value.reveal() if isinstance(value, Secret) else value or "")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _line_of(key: str, text: str) -> int:
    """Returns the line on which a top-level `key` or table starts, because tomllib reports no positions."""
    name = re.escape(key)
    pattern = re.compile(rf"""^\s*(\[+\s*)?["']?{name}["']?\s*[=.\]]""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 1)


def _check_writable(folder: Path, name: str, origin: Origin, what: str) -> None:
    if (reason := why_not_writable(folder)) is not None:
        raise UserError(
            f"{name} ({origin}): the {what} {str(folder)!r} cannot be used because {reason}. "
            "Choose another path or change its permissions."
        )
