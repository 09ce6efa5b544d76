# SPDX-License-Identifier: Apache-2.0
"""The places that settings come from, the order of precedence, and the messages about mistakes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from agspeed import config
from agspeed.errors import UserError


@pytest.fixture
def home(tmp_path):
    """An empty home with an empty project inside."""
    project = tmp_path / "home" / "project" / "src"
    project.mkdir(parents=True)
    return tmp_path / "home"


def resolve(home: Path, keywords=None, **environ: str) -> config.Settings:
    return config.resolve(keywords, environ={"HOME": str(home), **environ}, cwd=home / "project" / "src")


def test_keyword_beats_environment_beats_file_beats_default(home):
    assert resolve(home).mode == "auto"
    (home / "project" / "agspeed.toml").write_text('mode = "off"\n')
    assert resolve(home).mode == "off"
    assert resolve(home, AGSPEED_MODE="max").mode == "max"
    assert resolve(home, {"mode": "fast-start"}, AGSPEED_MODE="max").mode == "fast-start"


def test_every_value_names_its_origin(home):
    (home / "project" / "agspeed.toml").write_text("# ours\n\nnumerics = 'exact'\n")
    settings = resolve(home, {"strict": True}, AGSPEED_MODE="max")
    assert str(settings.origins["strict"]) == "keyword"
    assert str(settings.origins["mode"]) == "environment variable AGSPEED_MODE"
    assert str(settings.origins["numerics"]) == f"{home}/project/agspeed.toml:3"
    assert str(settings.origins["budget_s"]) == "default"


def test_nearest_file_wins_and_the_users_file_fills_the_rest(home):
    (home / "agspeed.toml").write_text('mode = "off"\n')
    (home / "project" / "agspeed.toml").write_text('mode = "max"\n')
    own = home / ".config" / "agspeed"
    own.mkdir(parents=True)
    (own / "agspeed.toml").write_text('mode = "fast-start"\nnumerics = "exact"\n')
    settings = resolve(home)
    assert (settings.mode, settings.numerics) == ("max", "exact")


@pytest.mark.parametrize("not_given", [None, config.UNSET])
def test_keyword_that_was_not_given_leaves_the_choice_to_others(home, not_given):
    assert resolve(home, {"mode": not_given}, AGSPEED_MODE="max").mode == "max"


def test_table_and_settings_have_the_same_fields():
    others = ("origins", "replayed", "warnings")
    fields = [field.name for field in dataclasses.fields(config.Settings) if field.name not in others]
    assert fields == [setting.name for setting in config.SETTINGS]


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("AGSPEED_BACKENDS", "native, inductor,native", ("native", "inductor")),
        ("AGSPEED_BUDGET_S", "12.5", 12.5),
        ("AGSPEED_DEBUG", "INFO", "info"),
        ("AGSPEED_DISABLE", "1", True),
        ("AGSPEED_DYNAMIC", "auto", None),
        ("AGSPEED_DYNAMIC", "no", False),
        ("AGSPEED_MEMORY_SLACK", "0.5", 0.5),
        ("AGSPEED_MODE", "  max ", "max"),
        ("AGSPEED_MODE", "", "auto"),
        ("AGSPEED_PROGRESS", "off", False),
        ("AGSPEED_REPORT", "/tmp/run.html", Path("/tmp/run.html")),
        ("AGSPEED_STRICT", "true", True),
    ],
)
def test_text_of_the_environment_becomes_a_value(home, variable, text, expected):
    name = variable.removeprefix("AGSPEED_").lower()
    assert getattr(resolve(home, **{variable: text}), name) == expected


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"mode": "maximum"}, "mode='maximum' (keyword) is not valid: mode must be one of auto, max, fast-start,"),
        ({"mode": "detreministic"}, "(did you mean 'deterministic'?)"),
        ({"mode": 3}, "mode=3 (keyword)"),
        ({"numerics": "fast"}, "one of standard, exact, off"),
        ({"backends": []}, "a non-empty list of names"),
        ({"backends": [1]}, "a non-empty list of names"),
        ({"dynamic": "sometimes"}, "true, false or auto"),
        ({"strict": "yes"}, "true or false"),
        ({"budget_s": -1}, "a number of seconds that is not negative"),
        ({"budget_s": float("nan")}, "a number of seconds that is not negative"),
        ({"budget_s": True}, "a number of seconds that is not negative"),
        ({"report": "report.pdf"}, "ends in .json or .html"),
        ({"cache_dir": ""}, "the path of a directory"),
        ({"cache_dir": 7}, "the path of a directory"),
        ({"budget": 7}, "Unknown keyword 'budget': use one of"),
        ({"disable": True}, "Unknown keyword 'disable'"),
    ],
)
def test_wrong_keyword_is_one_clear_sentence(home, keywords, expected):
    with pytest.raises(UserError) as raised:
        resolve(home, keywords)
    assert expected in str(raised.value)
    assert isinstance(raised.value, ValueError)


def test_wrong_variable_names_the_variable(home):
    with pytest.raises(UserError, match=r"mode='trubo' \(environment variable AGSPEED_MODE\) is not valid"):
        resolve(home, AGSPEED_MODE="trubo")
    with pytest.raises(UserError, match="environment variable AGSPEED_BUDGET_S"):
        resolve(home, AGSPEED_BUDGET_S="soon")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mode = 'auto'\nnumerics = 'loose'\n", "agspeed.toml:2) is not valid: numerics must be one of"),
        ("# first\nmoed = 'auto'\n", "Unknown key 'moed' ("),
        ("# first\nmoed = 'auto'\n", "agspeed.toml:2): use one of"),
        ("moed = 'auto'\n", "(did you mean 'mode'?)"),
        ("[tuning]\nmode = 'auto'\n", "Unknown key 'tuning'"),
        ("mode = \n", "is not valid TOML"),
        ("mode = 'auto'\nmode = 'max'\n", "is not valid TOML"),
        ("strict = 1\n", "strict must be true or false"),
    ],
)
def test_wrong_file_names_the_line(home, text, expected):
    (home / "project" / "agspeed.toml").write_text(text)
    with pytest.raises(UserError) as raised:
        resolve(home)
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b"a = " + 5000 * b"[" + 5000 * b"]", b"budget_s = 1" + 5000 * b"0"],
    ids=["not text", "nested deep", "many digits"],
)
def test_file_that_cannot_be_read_is_refused(home, content):
    (home / "project" / "agspeed.toml").write_bytes(content)
    with pytest.raises(UserError, match=r"agspeed\.toml cannot be read"):
        resolve(home)


def test_an_overridden_wrong_value_does_not_matter(home):
    assert resolve(home, {"mode": "max"}, AGSPEED_MODE="trubo").mode == "max"


def test_unknown_name_lists_the_known_ones_and_the_nearest():
    with pytest.raises(UserError, match=r"Unknown backend 'indcutor' \(keyword\): use one of eager, inductor, native"):
        config.check_names("backend", ["eager", "indcutor"], ["native", "inductor", "eager"])
    config.check_names("backend", ["eager"], ["eager"])


def test_path_that_cannot_be_written_is_refused_only_when_asked_for(home):
    config.check_paths(resolve(home))
    config.check_paths(resolve(home, {"cache_dir": home / "new" / "cache", "report": home / "r.json"}))
    blocker = home / "file"
    blocker.write_text("")
    for keywords in ({"cache_dir": blocker / "cache"}, {"report": blocker / "report.json"}):
        with pytest.raises(UserError, match="is not a directory"):
            config.check_paths(resolve(home, keywords))
    with pytest.raises(UserError, match="cannot be used because"):
        config.check_paths(resolve(home, {"cache_dir": "/proc/agspeed"}))
    with pytest.raises(UserError, match="is not a readable file"):
        config.check_paths(resolve(home, {"plan": home / "missing.json"}))
    assert not (home / "new").exists()


def test_default_cache_follows_the_xdg_variable(home):
    assert resolve(home).cache_dir == home / ".cache" / "agspeed"
    assert resolve(home, XDG_CACHE_HOME="/elsewhere").cache_dir == Path("/elsewhere/agspeed")
    assert resolve(home, XDG_CACHE_HOME="relative").cache_dir == home / ".cache" / "agspeed"


def test_effective_values_are_json(home):
    document = resolve(home, {"backends": ["native"], "report": "r.json"}).to_dict()
    assert json.loads(json.dumps(document))["backends"] == {"value": ["native"], "origin": "keyword"}


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text(), max_size=3), st.binary()
)


@given(name=st.sampled_from([setting.name for setting in config.SETTINGS]), value=values)
@hypothesis_settings(max_examples=100)
def test_any_keyword_value_resolves_or_is_a_user_error(name, value):
    try:
        config.resolve({name: value}, environ={"HOME": "/nonexistent"}, cwd="/")
    except UserError as error:
        assert len(str(error)) < 600
