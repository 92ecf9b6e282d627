"""Logs read in parts come out whole: no line twice, none lost, whatever their instants and wherever a read ends."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from worker.providers.kubernetes.ends import Scene
from worker.providers.kubernetes.informer import Known
from worker.providers.kubernetes.told import order, parse_lines, tellings
from worker.providers.kubernetes.works import gather


def _served(lines: list[tuple[str, str]], since: str, limit: int) -> bytes:
    """What an API server gives: from the second of ``since`` on, cut at ``limit`` bytes."""
    second = order(since)[0] if since else ""
    shown = [f"{stamp} {text}\n" for stamp, text in lines if order(stamp)[0] >= second]
    return "".join(shown).encode()[:limit]


@pytest.mark.parametrize("seed", range(40))
def test_parts_make_the_whole(seed: int) -> None:
    dice = random.Random(seed)
    lines, at = [], 0
    for number in range(dice.randint(1, 60)):
        # Many lines of one instant, and instants with fewer digits than others.
        at += dice.choice([0, 0, 0, 1, 400, 1200])
        part = f"{at % 1000:03d}".rstrip("0")
        stamp = f"2026-11-30T10:{at // 60000:02d}:{at // 1000 % 60:02d}" + (f".{part}Z" if part else "Z")
        lines.append((stamp, f"line {number} " + "x" * dice.randint(0, 30)))
    got: list[str] = []
    after, taken, written = "", 0, 0
    limit = dice.randint(80, 400)
    for _ in range(400):
        written = min(len(lines), written + dice.randint(0, 5))
        size = limit
        while True:
            content = _served(lines[:written], after, size)
            is_cut = len(content) >= size
            is_over = written == len(lines) and not is_cut
            found, after_, taken_ = parse_lines(content, after, taken, is_whole=is_over)
            if found or not is_cut:
                break
            size *= 2
        # A crash between the read and the save: the read is made again.
        if dice.random() < 0.3:
            continue
        got += [text.decode().rstrip("\n") for _stamp, text in found]
        after, taken = after_, taken_
        if is_over:
            break
    assert got == [text for _stamp, text in lines]


def test_an_instant_is_compared_by_value_not_by_letters() -> None:
    assert order("2026-11-30T10:00:00Z") == order("2026-11-30T10:00:00.000Z")
    assert order("2026-11-30T10:00:00.5Z") > order("2026-11-30T10:00:00.123456789Z")


def _job(uid: str) -> dict[str, Any]:
    head = {"namespace": "nlp", "name": "mine", "uid": uid, "resourceVersion": uid}
    return {"kind": "Job", "apiVersion": "batch/v1", "metadata": head, "spec": {"template": {"spec": {}}}}


def _event(uid: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "nlp", "name": f"e-{uid}", "uid": f"e-{uid}"},
        "involvedObject": {"kind": "Job", "namespace": "nlp", "name": "mine", "uid": uid},
        "reason": "FailedCreate",
        "message": 'pods "mine-0" is forbidden: exceeded quota',
        "type": "Warning",
        "lastTimestamp": "2026-11-30T10:00:00Z",
    }


def test_what_was_said_of_an_earlier_object_of_the_name_is_not_told_of_this_one() -> None:
    events = {("nlp", f"e-{uid}"): _event(uid) for uid in ("old", "new")}
    known = Known(
        version=1,
        kinds={"Job": {("nlp", "mine"): _job("new")}, "Event": events},
        seen={"Event": dict.fromkeys(events, 1)},
        gone={"Job": {"old": _job("old")}},
        problems={},
        versions={},
    )
    told = tellings(known, gather(known), Scene(datetime(2026, 11, 30, 11, tzinfo=UTC)), 0)
    assert [one.key for one in told] == ["e-new:1"]
