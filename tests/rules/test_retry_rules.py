"""Which failed attempts are followed by another, and by which rule."""

from __future__ import annotations

import time

import pytest

from apps.jobs.retry_rules import Failure, decide, found_in, parse_rules


@pytest.mark.parametrize(
    ("failure", "verb", "rule"),
    [
        (Failure("NODE_FAILED", node="p5-1"), "retry", "node"),
        (Failure("LOST"), "retry", "node"),
        (Failure("REQUEUED", restarts=99), "retry", "asked"),
        (Failure("FAILED", "ExitCode", exit_code=1), "stop", "exit"),
        (Failure("FAILED", "ExitCode", 1, log="  File x\nKeyError: 'lr'\n"), "stop", "user-error"),
        (
            Failure("FAILED", "ExitCode", 1, log="NCCL WARN x : connection closed\n"),
            "retry",
            "infrastructure",
        ),
        # Other ranks complain of NCCL when one of them died of its own mistake.
        (Failure("FAILED", "ExitCode", 1, log="TypeError: x\nncclRemoteError: a\n"), "stop", "user-error"),
        (Failure("FAILED", "OutOfMemory", log="ncclSystemError"), "stop", "end"),
        (Failure("TIMED_OUT", "TimeLimit"), "stop", "end"),
        (Failure("NODE_FAILED", restarts=3), "stop", "max-recoveries"),
        (Failure("NODE_FAILED", restarts=3, most_restarts=9, restarts_in_vain=3), "stop", "no-progress"),
        (Failure("NODE_FAILED", same_step=120), "stop", "same-step"),
        (Failure("FAILED", log="ncclSystemError", restarts=3), "stop", "max-recoveries"),
    ],
)
def test_rules_that_hold_for_every_job(failure: Failure, verb: str, rule: str) -> None:
    found = decide(failure, [])
    assert (found.verb, found.rule) == (verb, rule), found


@pytest.mark.parametrize(
    ("lines", "failure", "verb"),
    [
        (["retry exit 75,137"], Failure("FAILED", exit_code=75), "retry"),
        (["retry exit 75"], Failure("FAILED", exit_code=76), "stop"),
        (["retry signal SIGBUS"], Failure("FAILED", signal=7), "retry"),
        (["retry signal BUS"], Failure("FAILED", exit_code=135), "retry"),
        (["stop log *assert*", "retry exit 1"], Failure("FAILED", exit_code=1, log="an assertion failed"), "stop"),
        (["retry log data*loader stalled"], Failure("FAILED", exit_code=1, log="x\nData: loader stalled\n"), "retry"),
        (["retry log KeyError"], Failure("FAILED", exit_code=1, log="KeyError: shard"), "retry"),
        # Nobody's rule restarts for ever.
        (["retry exit 1"], Failure("FAILED", exit_code=1, restarts_in_vain=3), "stop"),
        # A machine that fails is not the program's to judge.
        (["stop exit 1"], Failure("NODE_FAILED", exit_code=1), "retry"),
    ],
)
def test_a_persons_rules_come_first(lines: list[str], failure: Failure, verb: str) -> None:
    assert decide(failure, parse_rules(lines)).verb == verb


@pytest.mark.parametrize(
    "line",
    [
        "retry",
        "again exit 1",
        "retry exit x",
        "retry exit 0",
        "stop signal NOPE",
        "retry log ***",
        "retry log " + "a" * 201,
    ],
)
def test_what_is_no_rule_is_refused_by_line(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_rules(["", line])


def test_no_pattern_takes_long() -> None:
    began = time.monotonic()
    assert not found_in("*a" * 100 + "b", "a" * 65_536)
    assert time.monotonic() - began < 0.5


def test_a_restart_too_many_is_blamed_on_what_failed() -> None:
    rules = parse_rules(["retry exit 75"])
    assert decide(Failure("FAILED", "ExitCode", exit_code=75, restarts=3), rules).reason == "ExitCode"
    assert decide(Failure("NODE_FAILED", node="p5-1", restarts=3), rules).reason == "NodeFailure"
