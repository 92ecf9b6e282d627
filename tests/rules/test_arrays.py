"""Job arrays in Slurm's words."""

from __future__ import annotations

import time

import pytest

from apps.jobs.array_rules import compressed, parse_array, state_of, tasks_in
from apps.jobs.sbatch import read_sbatch


@pytest.mark.parametrize(
    ("text", "tasks", "limit", "again"),
    [
        ("0-3", (0, 1, 2, 3), 0, "0-3"),
        ("1,3,5", (1, 3, 5), 0, "1,3,5"),
        ("0-15:5%2", (0, 5, 10, 15), 2, "0,5,10,15%2"),
        (" [1-3, 3] ", (1, 2, 3), 0, "1-3"),
        ("7", (7,), 0, "7"),
    ],
)
def test_read_and_written(text: str, tasks: tuple[int, ...], limit: int, again: str) -> None:
    array = parse_array(text)
    assert (array.tasks, array.limit, array.text) == (tasks, limit, again)


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-5:0", "-3", "1,,2", "1-5%", "1-5%x", "0-9999999", "0-200000"])
def test_what_is_none_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="array|%|task"):
        parse_array(text)


def test_ten_thousand_tasks() -> None:
    array = parse_array("0-9999%100")
    assert (len(array.tasks), array.at_once, array.text) == (10_000, 100, "0-9999%100")
    assert compressed(range(10_000)) == "0-9999"


def test_a_list_that_slurm_cut_off_is_nothing() -> None:
    assert tasks_in("1,3,5,...") == ()
    assert tasks_in("") == ()


@pytest.mark.parametrize(
    ("states", "started", "state"),
    [
        ({}, False, ""),
        ({"PENDING": 10}, False, "PENDING"),
        ({"PENDING": 8, "RUNNING": 2}, True, "RUNNING"),
        ({"PENDING": 8, "COMPLETED": 2}, True, "RUNNING"),
        ({"COMPLETED": 9}, True, "RUNNING"),
        ({"COMPLETED": 10}, True, "COMPLETED"),
        ({"COMPLETED": 9, "FAILED": 1}, True, "FAILED"),
        ({"COMPLETED": 8, "FAILED": 1, "NODE_FAIL": 1}, True, "NODE_FAIL"),
        ({"COMPLETED": 8, "CANCELLED": 2}, True, "CANCELLED"),
        ({"CANCELLED": 100_000}, False, "CANCELLED"),
    ],
)
def test_all_tasks_together(states: dict[str, int], started: bool, state: str) -> None:
    assert state_of(states, 10, has_started=started) == state


def test_sbatch_lines_fill_the_array() -> None:
    reading = read_sbatch("#!/bin/bash\n#SBATCH --array=0-9%2\n#SBATCH -N1\necho\n")
    assert reading.problems == []
    assert reading.fields["array"] == "0-9%2"
    assert read_sbatch("#!/bin/bash\n#SBATCH -a 3-1\n").problems


def test_a_text_that_names_tasks_again_and_again_keeps_nothing_busy() -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match="at most"):
        parse_array(",".join(["0-99999"] * 50_000))
    # The bound stops it in the second part; counting all of them takes minutes.
    assert time.monotonic() - began < 5
