# SPDX-License-Identifier: Apache-2.0
"""The subcommands as users type them: output, exit codes, and messages about mistakes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import agspeed as package
from agspeed import config


def test_version(agspeed):
    assert agspeed("--version").out == f"agspeed {package.__version__}\n"


def test_without_a_command_it_explains_itself(agspeed):
    result = agspeed()
    assert result.code == 0
    for word in ("doctor", "report", "cache", "config", "bench", "exit codes"):
        assert word in result.out


def test_unknown_command_is_a_usage_error(agspeed):
    result = agspeed("tune")
    assert result.code == 2
    assert "invalid choice: 'tune'" in result.err


def test_an_unknown_option_is_one_sentence_that_names_the_command(agspeed):
    result = agspeed("run", "-np", "2", "--hosts-discovery", "x", "true")
    assert result.code == 2
    assert (
        result.err
        == "agspeed: agspeed run does not take --hosts-discovery; `agspeed run --help` lists what it takes.\n"
    )


def test_config_shows_which_place_won(agspeed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agspeed.toml").write_text('numerics = "exact"\nmode = "off"\n')
    monkeypatch.setenv("AGSPEED_MODE", "max")
    shown = json.loads(agspeed("config", "--json").out)
    assert shown["mode"] == {"value": "max", "origin": "environment variable AGSPEED_MODE"}
    assert shown["numerics"] == {"value": "exact", "origin": f"{tmp_path}/agspeed.toml:1"}
    table = "".join(agspeed("config").out.split())  # without white space, because long paths are wrapped
    assert "environmentvariableAGSPEED_MODE" in table and f"{tmp_path}/agspeed.toml:1" in table


def test_config_explains_every_setting(agspeed):
    text = agspeed("config", "--explain").out
    for setting in config.SETTINGS:
        assert setting.name in text and all(variable in text for variable in setting.variables)


def test_config_shows_every_setting_and_no_secret(agspeed, monkeypatch):
    monkeypatch.setenv("AGSPEED_JOB_KEY", "correct horse battery staple")
    assert list(json.loads(agspeed("config", "--json").out)) == [setting.name for setting in config.SETTINGS]
    for result in (agspeed("config"), agspeed("config", "--json"), agspeed("config", "--explain")):
        assert result.code == 0 and "horse" not in result.out + result.err
    shown = json.loads(agspeed("config", "--json").out)["job_key"]
    assert shown == {"value": "set", "origin": "environment variable AGSPEED_JOB_KEY"}


def test_config_warns_of_unknown_variables(agspeed, monkeypatch):
    monkeypatch.setenv("AGSPEED_BUDGET", "3")
    result = agspeed("config")
    expected = "agspeed: AGSPEED_BUDGET is not a setting (did you mean AGSPEED_BUDGET_S?); it is ignored\n"
    assert (result.code, result.err) == (0, expected)


def test_wrong_setting_is_one_sentence_and_exit_code_2(agspeed, monkeypatch):
    monkeypatch.setenv("AGSPEED_MODE", "trubo")
    result = agspeed("config")
    assert result.code == 2
    assert result.err.startswith("agspeed: mode='trubo' (environment variable AGSPEED_MODE) is not valid")
    assert result.err.count("\n") == 1


def test_report_show(agspeed, report_file):
    result = agspeed("report", "show", report_file)
    assert result.code == 0
    assert "What to do next" in result.out and "native" in result.out
    assert json.loads(agspeed("report", "show", "--json", report_file).out) == json.loads(report_file.read_text())


def test_report_html_goes_beside_the_report_or_where_asked(agspeed, report_file, tmp_path):
    assert agspeed("report", "html", report_file).out.strip() == str(tmp_path / "report.html")
    assert agspeed("report", "html", report_file, tmp_path / "other.html").code == 0
    assert (tmp_path / "other.html").read_text() == (tmp_path / "report.html").read_text()
    refused = agspeed("report", "html", report_file, tmp_path / "other.txt")
    assert refused.code == 2 and "ends in .html" in refused.err


def test_report_compare(agspeed, report_file):
    rows = json.loads(agspeed("report", "compare", "--json", report_file, report_file).out)
    assert {row["label"] for row in rows["figures"]} >= {"chosen", "plan native", "break-even step"}
    assert rows["conditions"] == []
    assert "Same machine" in agspeed("report", "compare", report_file, report_file).out


def test_report_compare_as_a_page(agspeed, report_file, tmp_path):
    made = agspeed("report", "compare", report_file, report_file, "--html", tmp_path / "both.html")
    assert made.out.strip() == str(tmp_path / "both.html")
    assert "Two runs" in (tmp_path / "both.html").read_text()
    refused = agspeed("report", "compare", report_file, report_file, "--html", tmp_path / "both.txt")
    assert refused.code == 2 and "ends in .html" in refused.err


@pytest.mark.parametrize("action", ["show", "html"])
def test_report_that_cannot_be_read(agspeed, tmp_path, action):
    result = agspeed("report", action, tmp_path / "missing.json")
    assert (result.code, result.out) == (2, "")
    assert "cannot be read: No such file" in result.err


def test_bench_in_a_checkout_reaches_the_runner():
    command = [sys.executable, "-m", "agspeed", "bench", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "benchmarks/run.py" in done.stdout


def test_bench_outside_a_checkout_says_so(tmp_path):
    installed = tmp_path / "site" / "agspeed"
    shutil.copytree(Path(package.__file__).parent, installed, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    script = "import sys; sys.path[:0] = [sys.argv.pop(1)]; from agspeed.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, str(installed.parent), "bench"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "run `agspeed bench` inside a checkout" in done.stderr


def test_reader_that_stops_early_is_no_error(report_file):
    command = f"{sys.executable} -m agspeed report show --json {report_file} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{\n", "")
