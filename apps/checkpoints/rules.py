"""When a checkpoint folder is complete, in progress or torn: from names, sizes and times, never by opening a file.

The layouts and their completion marks are those of PyTorch DCP (``.metadata`` is renamed into place
last, after every rank has reported) and of the Hugging Face Trainer (``trainer_state.json`` must
parse, every weight shard must be there, the optimizer too).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_noop as _

from apps.checkpoints.states import CheckpointState, Layout
from apps.core.said import said

#: A folder that changed less than this long ago is still being written.
QUIET_S = 600.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Layout, state and the sentence behind it."""

    layout: str
    state: str
    reason: str


def layout_of(files: Mapping[str, int]) -> str:
    """The layout a set of file names (relative, with sizes) shows."""
    names = set(files)
    if any(n.endswith(".distcp") for n in names) or ".metadata" in names or ".metadata.tmp" in names:
        return Layout.DCP
    if "trainer_state.json" in names or any(
        n.startswith(("model-", "pytorch_model-")) or n in ("model.safetensors", "pytorch_model.bin", "optimizer.pt")
        for n in names
    ):
        return Layout.HF_TRAINER
    return Layout.UNKNOWN


def judge(files: Mapping[str, int], facts: Mapping[str, Any], *, quiet_s: float, writer_is_alive: bool) -> Verdict:
    """The verdict on one listing.

    ``files`` maps relative names to sizes in bytes; ``facts`` are what the runner read from JSON and
    safetensors headers; ``quiet_s`` is the time since the newest change; ``writer_is_alive`` whether
    the attempt that writes it still runs. What is unfinished is in progress while its writer lives
    and it is not long quiet, and torn afterwards.
    """
    layout = layout_of(files)
    if layout == Layout.UNKNOWN:
        if writer_is_alive and quiet_s < QUIET_S:
            return Verdict(layout, CheckpointState.IN_PROGRESS, said(_("no known layout yet")))
        return Verdict(layout, CheckpointState.UNKNOWN, said(_("the files show no layout the portal knows")))
    missing = _missing_dcp(files) if layout == Layout.DCP else _missing_trainer(files, facts)
    if not missing:
        return Verdict(layout, CheckpointState.COMPLETE, _complete_reason(layout, files))
    if writer_is_alive and quiet_s < QUIET_S:
        return Verdict(layout, CheckpointState.IN_PROGRESS, missing)
    if not writer_is_alive:
        why = said(_("%(missing)s, and the attempt that wrote it has ended"), missing=missing)
    else:
        minutes = f"{quiet_s / 60:.0f}"
        why = said(_("%(missing)s, and nothing changed for %(minutes)s min"), missing=missing, minutes=minutes)
    return Verdict(layout, CheckpointState.TORN, why)


def _complete_reason(layout: str, files: Mapping[str, int]) -> str:
    if layout == Layout.DCP:
        shards = sum(1 for n in files if n.endswith(".distcp"))
        return said(_(".metadata was written after %(n)s shards"), n=shards)
    return said(_("trainer_state.json, weights and optimizer are whole"))


def _missing_dcp(files: Mapping[str, int]) -> str:
    shards = [n for n in files if n.endswith(".distcp")]
    if ".metadata" not in files:
        if ".metadata.tmp" in files:
            return said(_("%(n)s shards but no .metadata; .metadata.tmp was left"), n=len(shards))
        return said(_("%(n)s shards but no .metadata"), n=len(shards))
    if files[".metadata"] <= 0:
        return said(_(".metadata is empty"))
    if not shards:
        return said(_(".metadata without any shard"))
    empty = sorted(n for n in shards if files[n] <= 0)
    if empty:
        return said(_("shard %(name)s is empty"), name=empty[0])
    return ""


def _missing_trainer(files: Mapping[str, int], facts: Mapping[str, Any]) -> str:
    if files.get("trainer_state.json", 0) <= 0:
        return said(_("trainer_state.json is missing or empty"))
    if facts.get("trainer_state_ok") is False:
        return said(_("trainer_state.json does not parse"))
    weights = [n for n in files if n.endswith(".safetensors") or (n.startswith("pytorch_model") and n.endswith(".bin"))]
    if not weights:
        return said(_("no weights"))
    if facts.get("safetensors_ok") is False:
        detail = facts.get("safetensors_reason")
        return str(detail)[:200] if detail else said(_("a shard named in the index is missing or cut short"))
    if any(files[n] <= 0 for n in weights):
        return said(_("a weight file is empty"))
    if not any(n.startswith("optimizer") for n in files) and not any(n.endswith("optim_states.pt") for n in files):
        return said(_("the optimizer state is missing"))
    return ""
