# SPDX-License-Identifier: Apache-2.0
"""The plain-text view says what was chosen, how certain and how correct it is, its cost, and what to do next."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from agspeed.reporting import compare, model, parts, summary, terminal
from agspeed.reporting import format as fmt
from tests.python.reporting import report_sample


@pytest.fixture
def data():
    return report_sample.report()


def answer(data, question: str) -> str:
    return dict(summary.answers(data))[question]


def test_text_answers_the_questions(data):
    text = str(model.Report(data))
    for part in ("CharGPT", "1.31× eager's speed", "native", "160 pairs", "Earned back at step 910", "gpt.py:142"):
        assert part in " ".join(text.split())
    assert "\x1b" not in text
    assert max(map(len, text.split("Reproduce: ")[0].splitlines())) <= 110
    assert data["reproduce"]["command"] in text  # unwrapped


def test_names_cannot_steer_the_terminal(data):
    data["header"]["subject"] = "\x1b[2Jgone\x9b31m\ud800"
    data["plans"][0]["reason"] = "\x1b]0;title\x07"
    text = str(model.Report(data))
    assert "\\x1b[2Jgone\\x9b31m\\ud800" in text
    assert not any(character in text for character in "\x1b\x9b\x07\ud800")


@pytest.mark.parametrize("character", ["\u202e", "\u2066", "\u200f", "\u061c", "\u200b", "\ufeff", "\u2028", "\u2029"])
def test_names_cannot_turn_the_direction_of_text_or_hide_in_it(data, character):
    data["header"]["subject"] = data["plans"][0]["reason"] = f"a{character}b"
    text = str(model.Report(data)) + str(fmt.printable({character: [character]}))
    assert character not in text and f"a\\u{ord(character):04x}b" in text


def test_narrow_terminal_shows_whole_cells(data):
    text = terminal.as_text(data, width=80)
    for part in ("inductor-max-autotune", "too much memory", "0.994–1.006×", "412 MiB", "  aot: not faster than"):
        assert part in text
    assert max(map(len, text.split("Reproduce: ")[0].splitlines())) <= 80


def test_rails_and_operations_are_listed_where_ranks_communicate(data):
    text = "\n".join(" ".join(line.split()) for line in terminal.as_text(data).splitlines())
    assert "eth1 10.1.0.5 1.0 GiB 25 % 1.0 GiB 1 0" in text
    assert "all_reduce 3,000 4.0 GiB 20.0 ms 0" in text
    data["communication"] = None
    assert "Rails" not in terminal.as_text(data)


def test_stragglers_are_named_or_their_absence_is(data):
    lines = terminal.as_text(data).splitlines()
    assert "Straggler: rank 5 (node2) computes 14 % longer since step 3,100." in lines
    assert "Straggler: rail eth2 of rank 6 (node3) no longer holds the others up." in lines
    data["stragglers"] = {"rounds": 90, "lasting": [], "ended": []}
    assert "Stragglers: none in 90 comparisons of all ranks." in terminal.as_text(data)
    data["stragglers"] = None
    assert "Straggler" not in terminal.as_text(data)


def test_the_codec_of_the_gradients_is_named(data):
    assert "Codec" not in terminal.as_text(data)
    bucket = {"parameters": ["weight"], "bytes": 4096, "sends": "int8", "why": "a step takes 8 ms instead of 10"}
    bucket |= {"dense_s": 0.004, "codec_s": {"int8": 0.002}, "errors": {"int8": 0.01}, "step_s": [0.01, 0.008]}
    data["codec"] = {"name": "auto", "text": "auto sends 1 of 1 buckets", "buckets": [bucket | {"saved_bytes": 3056}]}
    model.validate(data)
    assert "Codec: auto sends 1 of 1 buckets." in terminal.as_text(data).splitlines()


def test_a_candidate_that_is_wrong_in_its_plan_and_in_regions_counts_once(data):
    (wrong,) = [plan for plan in data["plans"] if plan["state"] == "wrong"]
    data["regions"][0]["candidates"].append(dict(wrong))
    assert f"rejected 1 wrong candidate: {wrong['name']}." in answer(data, "Is it right")


def test_tuning_says_what_is_left(data):
    data["status"] = {"state": "tuning", "reason": "timing native"}
    data["plans"][4]["state"] = "pending"
    assert summary.headline(data) == "still tuning"
    assert "Keep training: 1 candidate still to decide" in answer(data, "What to do next")


def test_eager_is_a_result_too():
    data = model.empty_report("tiny")
    data["decision"] |= {"why": "nothing beat it by 1 %", "source": "measured"}
    assert summary.headline(data) == "runs eagerly"
    data["status"]["reason"] = data["decision"]["why"]
    assert answer(data, "What was chosen") == "eager, because nothing beat it by 1 %. Status: eager."
    assert answer(data, "How sure") == "Nothing could be compared with eager in this run."
    assert "untouched model" in answer(data, "Is it right")
    assert answer(data, "What it cost") == "Nothing so far."
    assert answer(data, "What to do next") == "Nothing: training runs as it did before."


def test_eagers_step_time_comes_from_the_pairs(data):
    data["plans"][0]["step_ms"] = 12.0  # measured on other steps than the pairs
    assert "A step takes 16.0 ms instead of 21.0 ms." in answer(data, "What was chosen")


def test_a_choice_that_was_not_paired_with_eager_here_is_not_compared(data):
    data["decision"] |= {"source": "cache", "speedup": None}
    data["cost"] |= {"break_even_step": None, "saving_ms_per_step": None}
    assert " ms" not in answer(data, "What was chosen")
    assert "saving" not in answer(data, "What it cost")


def test_cost_says_whether_it_was_worth_it_here_and_will_be_next_time(data):
    assert answer(data, "What it cost") == (
        "3.0 s of training time and 31.4 s in the background. Worth it here: yes, 14.4 s saved. Earned back at step "
        "910; 3,198 steps have run. Next time: 0 s of tuning, the next run starts from this decision."
    )
    data["cost"] |= {"break_even_step": 5000, "next_run": "same"}
    text = answer(data, "What it cost")
    assert "only in a run beyond step 5,000; 3,198 steps have run. Next time: the same again." in text
    data["decision"]["source"] = "cache"
    assert answer(data, "What it cost").startswith("No tuning: 3.0 s of training time to capture, load and check")


def test_a_run_too_short_for_tuning_hears_that_first_with_the_mode_and_the_command_that_fit(data):
    data["status"] = {"state": "tuning", "reason": "timing native"}
    data["cost"] |= {"break_even_step": 161_844, "left_s": 150.0, "next_run": "resumes"}
    data["header"]["settings"]["mode"] = {"value": "max", "origin": "environment variable AGSPEED_MODE"}
    assert summary.headline(data) == "still tuning, pays only beyond step 161,844"
    first, *others = summary.next_steps(data)
    assert first == (
        'Tuning pays only in a run beyond step 161,844, and 3,198 have run: for a shorter one take mode="auto", which '
        "never spends more than a fifth of the time trained on tuning: AGSPEED_MODE=auto python train.py --batch-size "
        "64 --steps 3000."
    )
    assert not any("Keep training" in sentence for sentence in others)
    assert "about 2 min 30 s of tuning yet to come" in answer(data, "What it cost")
    data["header"]["settings"]["mode"]["origin"] = "keyword"
    assert 'pass mode="auto" to optimize' in summary.next_steps(data)[0]


def test_the_report_of_a_short_run_says_that_the_next_one_starts_tuned(data):
    data["cost"]["break_even_step"] = 161_844
    assert summary.next_steps(data)[0] == (
        "Tuning pays only in a run beyond step 161,844, and 3,198 have run: this one bought the decision from which "
        "the next starts, with 0 s of tuning: python train.py --batch-size 64 --steps 3000."
    )


def test_cold_times_are_marked_and_resumed_pairs_are_named(data):
    data["plans"][3] |= {"step_ms": 1120.0, "cold": True}
    data["decision"]["resumed_pairs"] = 24
    text = " ".join(terminal.as_text(data, width=200).split())
    assert "torchscript failed 1.12 s cold – –" in text
    assert "It resumed: 24 pairs of an earlier run." in text


def test_input_wait_is_named_when_it_matters(data):
    assert "waits for input" not in answer(data, "What to do next")
    data["time_shares"].append(parts.time_share("loader", "input-wait", 20.0))
    assert "% of a step waits for input" in answer(data, "What to do next")


def test_a_gate_that_did_not_run_is_admitted(data):
    for plan in data["plans"]:
        plan["gate"] = None
    for region in data["regions"]:
        for candidate in region["candidates"]:
            candidate["gate"] = None
    assert "has not run on native" in answer(data, "Is it right")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (fmt.milliseconds(0.0123), "12.3 µs"),
        (fmt.milliseconds(16.0), "16.0 ms"),
        (fmt.milliseconds(1234.0), "1.23 s"),
        (fmt.milliseconds(None), "–"),
        (fmt.seconds(0.25), "250 ms"),
        (fmt.seconds(125), "2 min 5 s"),
        (fmt.seconds(7300), "2 h 1 min"),
        (fmt.size(1536), "1.5 KiB"),
        (fmt.size(412 << 20), "412 MiB"),
        (fmt.ratio(1.0123), "1.012×"),
        (fmt.ratio(2.5), "2.50×"),
        (fmt.percent(0.005), "0.5 %"),
        (fmt.error("nan"), "nan"),
        (fmt.plural(1, "step"), "1 step"),
        (fmt.plural(2000, "step"), "2,000 steps"),
    ],
)
def test_numbers_read_well(text, expected):
    assert text == expected


def test_comparison_marks_changes_and_differing_conditions(data):
    other = report_sample.report()
    other["decision"]["chosen"] = "inductor"
    other["header"]["threads"]["intra_op"] = 8
    rows = {row.label: row for row in compare.compare(data, other)}
    assert rows["chosen"] == compare.Row("chosen", "native", "inductor", True)
    assert not rows["status"].changed
    assert [row.label for row in compare.differing_conditions(data, other)] == ["threads intra_op"]
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(compare.view(data, other))
    assert "Conditions that differ" in console.export_text()


def test_a_setting_that_an_older_report_does_not_know_is_no_differing_condition(data):
    other = report_sample.report()
    other["header"]["settings"]["added_later"] = {"value": 1, "origin": "default"}
    assert compare.differing_conditions(data, other) == compare.differing_conditions(other, data) == []
    data["header"]["settings"]["added_later"] = {"value": 2, "origin": "default"}
    assert [row.label for row in compare.differing_conditions(data, other)] == ["setting added_later"]
