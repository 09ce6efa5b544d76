# SPDX-License-Identifier: Apache-2.0
"""Every setting of the table in every place that may set it: keyword, each variable, file. Valid and invalid values."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from agspeed import config
from agspeed.config import SETTINGS, Secret, Setting
from agspeed.errors import UserError
from tests.python.support.settings_values import SECRET, as_toml, ids, valid

NOT_SECRET = [setting for setting in SETTINGS if not setting.secret]

# For each kind: values that have the wrong type, and texts that are no valid value.
MALFORMED: dict[str, tuple[list[Any], list[str]]] = {
    # keep-sorted
    "cache_folder": ([7, "", "a\0b", "~nobody-of-that-name/c"], ["~nobody-of-that-name/c"]),
    "choice": ([7, ["warn"], "nothing-of-that-kind"], ["nothing-of-that-kind"]),
    "flag": ([1, "yes", []], ["2", "maybe"]),
    "integer": ([True, 1.5, "7"], ["soon", "1.5", "1e3", "+1", "1_0", "9" * 400]),
    "names": ([[], [1], 7, {}], [","]),
    "path": ([7, "", "a\0b"], ["~nobody-of-that-name/c"]),
    "ratio": ([True, "1", -1, float("nan"), 10**400], ["much", "-1", "nan", "inf"]),
    "report": ([7, "report.pdf"], ["report.pdf"]),
    "seconds": ([True, "1", -1, float("inf"), 10**400], ["soon", "-1", "nan"]),
    "text": ([7, "", " ", "a\0b"], []),
    "tristate": ([1, "sometimes"], ["sometimes"]),
}


def places(kind: str) -> list[Any]:
    """Test parameters (setting, place, wrong value). The place is the keyword, the file or a variable."""
    found: list[tuple[Setting, str, Any]] = []
    for setting in NOT_SECRET:
        values, texts = MALFORMED[setting.kind]
        if setting.kind == "integer":
            assert setting.at_least is not None and setting.at_most is not None
            outside = [setting.at_least - 1, setting.at_most + 1]
            values, texts = [*values, *outside], [*texts, *map(str, outside)]
        if kind == "keyword" and setting.keyword:
            found += [(setting, "keyword", value) for value in values]
        if kind == "file":
            found += [(setting, "file", value) for value in values if as_toml(value) is not None]
        if kind == "variable":
            found += [(setting, variable, text) for variable in setting.variables for text in texts]
    return [pytest.param(*row, id=f"{row[0].name}-{row[1]}-{number}") for number, row in enumerate(found)]


class Place:
    """A home and a project for one test."""

    def __init__(self, root: Path) -> None:
        self.project = root / "project"
        self.project.mkdir()
        self._home = root

    def file(self, setting: Setting, value: Any) -> Path:
        """Writes the value to a settings file that may set it, and returns its path."""
        folder = self._home / ".config" / "agspeed" if setting.own_file else self.project
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / config.FILE_NAME
        path.write_text(f"# ours\n{setting.toml_key} = {as_toml(value)}\n")
        return path

    def resolve(self, keywords: dict[str, Any] | None = None, **variables: str) -> config.Settings:
        return config.resolve(keywords, environ={"HOME": str(self._home), **variables}, cwd=self.project)

    def for_cpp(self, **variables: str) -> Any:
        return config.for_cpp(environ={"HOME": str(self._home), **variables}, cwd=self.project)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# --- right ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ids([setting for setting in SETTINGS if setting.keyword]))
def test_a_keyword_sets_it(place: Place, setting: Setting) -> None:
    given, expected, _ = valid(setting)
    settings = place.resolve({setting.name: given}, **{setting.env: "never looked at"})
    assert getattr(settings, setting.name) == expected
    assert str(settings.origins[setting.name]) == "keyword"


@pytest.mark.parametrize("setting", ids(list(SETTINGS)))
def test_each_of_its_variables_sets_it(place: Place, setting: Setting) -> None:
    if not setting.secret:
        place.file(setting, valid(setting)[0])
    for variable in setting.variables:
        settings = place.resolve(**{variable: f" {valid(setting)[2]}"})
        assert getattr(settings, setting.name) == valid(setting)[1]
        assert str(settings.origins[setting.name]) == f"environment variable {variable}"


@pytest.mark.parametrize("setting", ids([setting for setting in SETTINGS if setting.env_aliases]))
def test_the_first_variable_that_says_something_counts(place: Place, setting: Setting) -> None:
    text = valid(setting)[2]
    everything = dict.fromkeys(setting.variables, text)
    assert place.resolve(**everything).origins[setting.name].name == setting.env
    assert place.resolve(**{**everything, setting.env: " "}).origins[setting.name].name == setting.env_aliases[0]


@pytest.mark.parametrize("setting", ids(NOT_SECRET))
def test_a_file_sets_it(place: Place, setting: Setting) -> None:
    given, expected, _ = valid(setting)
    path = place.file(setting, given)
    settings = place.resolve()
    assert getattr(settings, setting.name) == expected
    assert str(settings.origins[setting.name]) == f"{path}:2"


@pytest.mark.parametrize("setting", ids(list(SETTINGS)))
def test_an_empty_variable_leaves_the_default(place: Place, setting: Setting) -> None:
    settings = place.resolve(**dict.fromkeys(setting.variables, " \t"))
    assert settings.origins[setting.name].source == "default"
    if setting.name != "cache_dir":
        assert getattr(settings, setting.name) == setting.default


@pytest.mark.parametrize("setting", ids([setting for setting in SETTINGS if setting.goes_to_cpp]))
def test_what_cpp_reads_is_handed_over(place: Place, setting: Setting) -> None:
    values, origins = place.for_cpp(**{setting.env: valid(setting)[2]})
    expected = valid(setting)[1]
    expected = expected.reveal() if isinstance(expected, Secret) else expected
    assert values[setting.name] == (expected if isinstance(expected, (bool, int)) else os.fsencode(expected))
    assert origins == {setting.name: setting.env}


def test_only_what_cpp_reads_for_the_whole_process_is_handed_over(place: Place) -> None:
    values, origins = place.for_cpp(AGSPEED_MODE="trubo", AGSPEED_STRICT="maybe")
    assert "mode" not in values and "strict" not in values and origins == {}


def test_a_text_that_is_not_utf8_is_handed_over_as_it_is(place: Place) -> None:
    values, _ = place.for_cpp(
        AGSPEED_JOB_KEY=os.fsdecode(b"\xff" * 16), AGSPEED_FLIGHT_RECORD_DIR=os.fsdecode(b"/\xfe")
    )
    assert (values["job_key"], values["flight_record_dir"]) == (b"\xff" * 16, b"/\xfe")


def test_optimize_takes_the_keywords_of_the_table() -> None:
    api = pytest.importorskip("agspeed.frontend.api")
    taken = {
        name
        for name, parameter in inspect.signature(api.optimize).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert taken == {setting.name for setting in SETTINGS if setting.keyword} - {
        "memory_slack"
    }  # the options of torch.compile


# --- wrong ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("setting", "where", "value"), places("keyword"))
def test_a_wrong_keyword_is_one_sentence(place: Place, setting: Setting, where: str, value: Any) -> None:
    with pytest.raises(UserError) as raised:
        place.resolve({setting.name: value})
    assert f"({where}) is not valid: {setting.name} must be {setting.expects}" in str(raised.value)
    assert raised.value.__cause__ is None and len(str(raised.value)) < 400


@pytest.mark.parametrize(("setting", "variable", "text"), places("variable"))
def test_a_wrong_variable_is_one_sentence(place: Place, setting: Setting, variable: str, text: str) -> None:
    with pytest.raises(UserError) as raised:
        place.resolve(**{variable: text})
    expected = f"(environment variable {variable}) is not valid: {setting.name} must be {setting.expects}"
    assert expected in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(("setting", "where", "value"), places("file"))
def test_a_wrong_file_is_one_sentence(place: Place, setting: Setting, where: str, value: Any) -> None:
    path = place.file(setting, value)
    with pytest.raises(UserError) as raised:
        place.resolve()
    assert f"({path}:2) is not valid: {setting.name} must be {setting.expects}" in str(raised.value)


@pytest.mark.parametrize("setting", ids(NOT_SECRET))
def test_a_misspelt_name_is_reported_with_the_nearest(place: Place, setting: Setting) -> None:
    misspelt = setting.name + "x"
    (warning,) = place.resolve(**{f"{setting.env}X": "secret-value"}).warnings
    assert warning == f"{setting.env}X is not a setting (did you mean {setting.env}?); it is ignored"
    if setting.keyword:
        with pytest.raises(UserError, match=rf"Unknown keyword '{misspelt}'.*did you mean '{setting.name}'"):
            place.resolve({misspelt: "secret-value"})
    (place.project / config.FILE_NAME).write_text(f"\n{misspelt} = 1\n")
    with pytest.raises(UserError, match=rf"Unknown key '{misspelt}' \(.*:2\).*did you mean '{setting.name}'"):
        place.resolve()


@pytest.mark.parametrize("setting", ids([setting for setting in SETTINGS if not setting.keyword]))
def test_what_is_no_keyword_is_refused_as_one(place: Place, setting: Setting) -> None:
    with pytest.raises(UserError) as raised:
        place.resolve({setting.name: valid(setting)[0]})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("where", ["keyword", "variable", "file"])
def test_under_strict_an_unknown_variable_is_an_error(place: Place, where: str) -> None:
    if where == "file":
        (place.project / config.FILE_NAME).write_text("strict = true\n")
    variables = {"AGSPEED_STRICT": "1"} if where == "variable" else {}
    expected = r"AGSPEED_BUDGET is not a setting \(did you mean AGSPEED_BUDGET_S\?\), and strict"
    with pytest.raises(UserError, match=expected):
        place.resolve({"strict": True} if where == "keyword" else None, AGSPEED_BUDGET="3", **variables)


def test_variables_of_others_and_of_our_tests_are_no_mistakes(place: Place) -> None:
    assert place.resolve(AGSPEED_BUILD_DIR="/b", NCCL_DEBUG="INFO", AG_X="1").warnings == ()


def test_a_wrong_value_in_the_nearer_file_is_not_hidden_by_the_other(place: Place) -> None:
    own = place.project.parent / ".config" / "agspeed"
    own.mkdir(parents=True)
    (own / config.FILE_NAME).write_text("peer_timeout_ms = 5000\n")
    assert place.resolve().peer_timeout_ms == 5000
    nearer = place.project / config.FILE_NAME
    nearer.write_text("peer_timeout_ms = 0\n")
    with pytest.raises(UserError, match=rf"peer_timeout_ms=0 \({nearer}:1\)"):
        place.resolve()


def test_both_files_must_be_readable(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    own = place.project.parent / ".config" / "agspeed"
    own.mkdir(parents=True)
    (own / config.FILE_NAME).write_text("")
    (place.project / config.FILE_NAME).write_text("mode = 'max'\n")
    read_text = Path.read_text

    def refuse(self: Path, **arguments: Any) -> str:
        if self.parent == own:
            raise PermissionError(13, "Permission denied", str(self))
        return read_text(self, **arguments)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(UserError, match=r"agspeed\.toml cannot be read: .*Permission denied"):
        place.resolve()


def test_a_working_directory_that_was_deleted_has_no_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.project)
    place.project.rmdir()
    assert config.resolve(environ={"HOME": "/nonexistent"}).mode == "auto"
    with pytest.raises(UserError, match=r"report='r\.json'"):
        config.resolve({"report": "r.json"}, environ={"HOME": "/nonexistent"})


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [f'job_key = "{SECRET}"', f'[job_key]\nx = "{SECRET}"', f'job_key.x = "{SECRET}"'])
def test_a_secret_in_a_file_is_refused_and_not_shown(place: Place, text: str) -> None:
    path = place.project / config.FILE_NAME
    path.write_text(f"\n{text}\n")
    with pytest.raises(UserError) as raised:
        place.resolve(AGSPEED_JOB_KEY=SECRET)
    assert str(raised.value) == (
        f"job_key ({path}:2) is a secret, which only the environment may hold: remove it there and set AGSPEED_JOB_KEY."
    )


def test_a_secret_as_keyword_is_refused_and_not_shown(place: Place) -> None:
    with pytest.raises(
        UserError, match=r"job_key \(keyword\) is a secret, which only the environment may hold"
    ) as raised:
        place.resolve({"job_key": SECRET})
    assert SECRET not in str(raised.value)


def test_a_secret_that_is_too_short_is_not_shown(place: Place) -> None:
    with pytest.raises(UserError) as raised:
        place.resolve(AGSPEED_JOB_KEY="tinysecret")
    assert "job_key must be a secret of at least 16 bytes" in str(raised.value)
    assert "tinysecret" not in str(raised.value)


def test_nothing_shows_a_secret(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = place.resolve(AGSPEED_JOB_KEY=SECRET)
    assert settings.job_key is not None and settings.job_key.reveal() == SECRET
    assert settings.to_dict()["job_key"]["value"] == "set"
    for shown in (repr(settings), str(settings.job_key), f"{settings.job_key}", repr(settings.to_dict())):
        assert SECRET not in shown
    monkeypatch.setenv("AGSPEED_JOB_KEY", SECRET)
    monkeypatch.setenv("AGSPEED_JOB_KYE", SECRET)
    monkeypatch.setenv("AGSPEED_MODE", "max")
    monkeypatch.delenv("AGSPEED_TUNE_OPTIMIZER")  # set for all tests
    assert config.shown_variables() == {"AGSPEED_MODE": "max"}
    assert "AGSPEED_JOB_KEY" not in config.without_secrets(os.environ)
