"""#SBATCH lines, templates, money and ends."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.jobs import rules
from apps.jobs.rules import end_of, hold_for, parse_time
from apps.jobs.sbatch import read_sbatch
from apps.jobs.template_rules import fill_template


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("#SBATCH --nodes=4", {"nodes": 4}),
        ("#SBATCH -N 4", {"nodes": 4}),
        ("#SBATCH -N4", {"nodes": 4}),
        ("#SBATCH --job-name my-job -p gpu", {"name": "my-job", "partition": "gpu"}),
        ('#SBATCH --job-name="my job"', {"name": "my job"}),
        ("#SBATCH --time=1-12:30:00", {"time_limit_min": 2190}),
        ("#SBATCH -t 90", {"time_limit_min": 90}),
        ("#SBATCH -t 100:00:00", {"time_limit_min": 6000}),
        ("#SBATCH --gres=gpu:h100:8", {"gpu_type": "h100", "gpus_per_node": 8}),
        ("#SBATCH --gres=gpu:8", {"gpu_type": "", "gpus_per_node": 8}),
        ("#SBATCH --gpus-per-node=h100:8", {"gpu_type": "h100", "gpus_per_node": 8}),
        ("#SBATCH --ntasks-per-node=8 --cpus-per-task=24", {"tasks_per_node": 8, "cpus_per_task": 24}),
        ("#SBATCH --mem=64G  # all of it", {"memory_per_node_mib": 65536}),
        ("#SBATCH --mem=0", {"memory_per_node_mib": 0}),
    ],
)
def test_a_directive_fills_its_field(line: str, fields: dict[str, Any]) -> None:
    reading = read_sbatch(f"#!/bin/bash\n{line}\n")
    assert reading.problems == []
    assert reading.fields == fields


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("#SBATCH", "no option"),
        ("#SBATCH nodes=4", "'nodes=4' is not an option"),
        ("#SBATCH --nodes=four", "whole number"),
        ("#SBATCH --nodes=0", "from 1"),
        ("#SBATCH --nodes", "no value"),
        ("#SBATCH --nodes=", "no value"),
        ("#SBATCH --time=soon", "not a time"),
        ("#SBATCH --time=0", "above zero"),
        ("#SBATCH --time=1:99:99", "99 is above 59"),
        ("#SBATCH --time=1-24:00", "24 is above 23"),
        ("#SBATCH --gpus-per-node=h100:many", "not a number of GPUs"),
        ("#SBATCH --mem=lots", "memory"),
        ('#SBATCH --job-name="open', "quote"),
    ],
)
def test_a_malformed_directive_names_its_line(line: str, word: str) -> None:
    reading = read_sbatch(f"#!/bin/bash\n\n# a comment\n{line}\necho hi\n")
    assert len(reading.problems) == 1
    assert reading.problems[0].detail.startswith("line 4: ")
    assert word in reading.problems[0].detail


def test_reading_stops_at_the_first_command_as_slurm_does() -> None:
    assert read_sbatch("#!/bin/bash\n#SBATCH -N 2\necho\n#SBATCH -N 9\n").fields == {"nodes": 2}


def test_what_the_portal_decides_or_does_not_know_is_said() -> None:
    reading = read_sbatch("#SBATCH --output=x.log\n#SBATCH --wckey=a100\n#SBATCH --requeue\n")
    assert reading.fields == {}
    assert [r.split(":")[0] for r in reading.remarks] == ["line 1", "line 2", "line 3"]


@given(st.text(max_size=300))
def test_any_text_is_read_without_breaking(text: str) -> None:
    read_sbatch(f"#SBATCH {text}")


@given(days=st.integers(0, 30), hours=st.integers(0, 23), minutes=st.integers(0, 59), seconds=st.integers(0, 59))
def test_times_round_up_to_minutes(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = days * 86_400 + hours * 3_600 + minutes * 60 + seconds
    if total:
        assert parse_time(f"{days}-{hours}:{minutes}:{seconds}") == -(-total // 60)


def test_scripts_that_are_none() -> None:
    for data, code in (
        (b"a\x00b", "binary"),
        (b"\xff\xfe", "binary"),
        (b" \n", "required"),
        (b"x" * 1_048_577, "too-large"),
    ):
        assert rules.check_script(data)[1][0].code == code
    assert rules.check_script(b"echo\r\n") == ("echo\n", [])


PARAMETERS = [
    {"name": "steps", "type": "integer", "default": 10, "minimum": 1, "maximum": 100},
    {"name": "rate", "type": "number", "default": 0.5, "minimum": 0, "maximum": 1},
    {"name": "data", "type": "path", "default": "/data"},
    {"name": "note", "type": "text", "default": "x"},
    {"name": "mode", "type": "choice", "choices": ["a", "b"], "default": "a"},
]


@given(st.text(alphabet=st.characters(blacklist_characters="\n\x00"), min_size=1, max_size=200))
def test_text_parameters_cannot_leave_their_quotes(text: str) -> None:
    import shlex

    filled, problems = fill_template("echo {{ note }}", PARAMETERS, {"note": text})
    assert problems == []
    assert shlex.split(filled) == ["echo", text]


@pytest.mark.parametrize("path", ["/a b", "/a;b", '/a"b', "/a`b`", "/a$(b)", "/a|b"])
def test_paths_cannot_hold_commands(path: str) -> None:
    assert fill_template("{{ data }}", PARAMETERS, {"data": path})[1]


def test_money_of_a_job() -> None:
    hours, usd = hold_for(4, 8, 90, Decimal("6.88"))
    assert (hours, usd) == (Decimal("48.000000"), Decimal("330.240000"))


@pytest.mark.parametrize(
    ("state", "stop", "fatal", "end"),
    [
        ("COMPLETED", "", False, ("SUCCEEDED", "")),
        ("COMPLETED", "NodeFailure", True, ("SUCCEEDED", "")),
        ("FAILED", "", False, ("FAILED", "ExitCode")),
        ("FAILED", "", True, ("NODE_FAILED", "NodeFailure")),
        ("OUT_OF_MEMORY", "", False, ("FAILED", "OutOfMemory")),
        ("CANCELLED", "", False, ("CANCELLED", "CancelledOutside")),
        ("CANCELLED", "NodeFailure", False, ("NODE_FAILED", "NodeFailure")),
        ("CANCELLED", "Cancelled", False, ("CANCELLED", "Cancelled")),
        ("CANCELLED", "Requeued", False, ("REQUEUED", "Requeued")),
        ("FAILED", "NodeFailure", False, ("NODE_FAILED", "NodeFailure")),
        ("NODE_FAIL", "", False, ("NODE_FAILED", "NodeFailure")),
        ("TIMEOUT", "", False, ("TIMED_OUT", "TimeLimit")),
        ("PREEMPTED", "", False, ("REQUEUED", "Preempted")),
    ],
)
def test_how_an_attempt_ended(state: str, stop: str, fatal: bool, end: tuple[str, str]) -> None:
    assert end_of(state, stop, node_has_fatal_finding=fatal) == end
