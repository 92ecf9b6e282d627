"""Complete, in progress or torn, for each layout."""

from __future__ import annotations

from typing import Any

import pytest

from apps.checkpoints.rules import judge

DCP = {"__0_0.distcp": 10, "__1_0.distcp": 10}
TRAINER = {"trainer_state.json": 5, "model.safetensors": 9, "optimizer.pt": 9}


@pytest.mark.parametrize(
    ("files", "facts", "quiet", "alive", "state", "word"),
    [
        (DCP | {".metadata": 4}, {}, 0, True, "COMPLETE", "2 shards"),
        (DCP | {".metadata": 4}, {}, 9999, False, "COMPLETE", "2 shards"),
        (DCP, {}, 5, True, "IN_PROGRESS", "no .metadata"),
        (DCP, {}, 5, False, "TORN", "has ended"),
        (DCP, {}, 700, True, "TORN", "nothing changed"),
        (DCP | {".metadata": 0}, {}, 5, False, "TORN", "empty"),
        (DCP | {".metadata.tmp": 4}, {}, 5, False, "TORN", ".metadata.tmp was left"),
        (DCP | {".metadata": 4, "__2_0.distcp": 0}, {}, 5, False, "TORN", "__2_0.distcp is empty"),
        ({".metadata": 4}, {}, 5, False, "TORN", "without any shard"),
        (TRAINER, {"trainer_state_ok": True, "safetensors_ok": True}, 5, True, "COMPLETE", "whole"),
        (TRAINER, {"trainer_state_ok": False}, 5, False, "TORN", "does not parse"),
        (TRAINER, {"safetensors_ok": False, "safetensors_reason": "shard 2 is cut short"}, 5, False, "TORN", "shard 2"),
        ({k: v for k, v in TRAINER.items() if k != "optimizer.pt"}, {}, 5, False, "TORN", "optimizer"),
        ({k: v for k, v in TRAINER.items() if k != "model.safetensors"}, {}, 5, False, "TORN", "no weights"),
        (TRAINER | {"trainer_state.json": 0}, {}, 5, True, "IN_PROGRESS", "missing or empty"),
        ({"notes.txt": 3}, {}, 5, True, "IN_PROGRESS", "layout"),
        ({"notes.txt": 3}, {}, 5, False, "UNKNOWN", "no layout"),
        ({}, {}, 5, False, "UNKNOWN", "no layout"),
    ],
)
def test_verdicts(
    files: dict[str, int], facts: dict[str, Any], quiet: float, alive: bool, state: str, word: str
) -> None:
    verdict = judge(files, facts, quiet_s=quiet, writer_is_alive=alive)
    assert verdict.state == state, verdict
    assert word in verdict.reason
