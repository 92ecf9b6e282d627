"""What the worker writes about the launch of fleets: batches, conditions, the network, checks asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.models import Sum

from apps.audit.services import event
from apps.clusters.models import Fleet, FleetBatch, Node, PreflightRun
from apps.clusters.observations import fleet_move, fleet_say
from apps.clusters.states import BatchPhase, FleetPhase, NodePhase, PreflightPhase
from apps.core import clock, ids
from apps.core.said import brief
from apps.intents.services import intent_ask


def fleet_batches(fleet: Fleet, sizes: Sequence[int]) -> list[FleetBatch]:
    """The batches of a fleet's launch, made when it is first asked for; replacements are not among them."""
    found = list(fleet.batches.filter(is_replacement=False))
    if found:
        return found
    made = [FleetBatch(fleet=fleet, ordinal=i, nodes=size) for i, size in enumerate(sizes)]
    if len(made) == 1 and fleet.launch_attempt and fleet.client_token:
        # A launch that was under way before fleets had batches: whether its call took effect is unknown.
        made[0].attempt, made[0].client_token, made[0].phase = (
            fleet.launch_attempt,
            fleet.client_token,
            BatchPhase.ASKED,
        )
        made[0].asked_at = clock.now()
    FleetBatch.objects.bulk_create(made, ignore_conflicts=True)
    return list(fleet.batches.filter(is_replacement=False))


def batch_ask(fleet: Fleet, batch: FleetBatch) -> None:
    """Write a batch's next attempt and token before the call that spends. Compare-and-set on the attempt."""
    attempt = batch.attempt + 1
    token = ids.idempotency_token(fleet.uid, attempt, f"launch/{batch.ordinal}")
    with transaction.atomic():
        changed = FleetBatch.objects.filter(pk=batch.pk, attempt=batch.attempt, phase=BatchPhase.WAITING).update(
            attempt=attempt, client_token=token, phase=BatchPhase.ASKED, asked_at=clock.now(), message=""
        )
        if changed:
            shown = max(attempt, fleet.launch_attempt)
            Fleet.objects.filter(pk=fleet.pk).update(launch_attempt=shown, client_token=token)
            fleet.launch_attempt, fleet.client_token = shown, token
    batch.refresh_from_db()


def _batch_move(batch: FleetBatch, old: Sequence[str], new: str, **columns: Any) -> None:
    FleetBatch.objects.filter(pk=batch.pk, attempt=batch.attempt, phase__in=old).update(phase=new, **columns)
    batch.refresh_from_db()


def batch_launched(batch: FleetBatch) -> None:
    """Its machines exist."""
    _batch_move(batch, [BatchPhase.ASKED], BatchPhase.LAUNCHED)


def batch_refused(batch: FleetBatch, message: str, *, is_final: bool) -> None:
    """It made nothing; ``is_final`` when asking again cannot help."""
    _batch_move(batch, [BatchPhase.ASKED], BatchPhase.REFUSED, message=brief(message, 500), is_final=is_final)


def batch_wait(batch: FleetBatch) -> None:
    """Its token is used up; the next visit takes a new one."""
    _batch_move(batch, [BatchPhase.ASKED, BatchPhase.REFUSED], BatchPhase.WAITING)


def fleet_launch_again(fleet: Fleet, message: str) -> None:
    """All batches once more, each with a new token when its turn comes, in one commit with the fleet's phase."""
    with transaction.atomic():
        fleet.batches.filter(is_replacement=False).update(phase=BatchPhase.WAITING, is_final=False)
        fleet_move(fleet, FleetPhase.LAUNCHING, message)


def replacement_batch(fleet: Fleet, missing: int) -> FleetBatch | None:
    """The batch that replaces lost machines: the one under way, or a new one; None when nothing is missing."""
    last = fleet.batches.order_by("-ordinal").first()
    if last is not None and last.is_replacement and last.phase in (BatchPhase.WAITING, BatchPhase.ASKED):
        return last
    if missing < 1:
        return None
    ordinal = last.ordinal + 1 if last is not None else 0
    return FleetBatch.objects.create(fleet=fleet, ordinal=ordinal, nodes=min(missing, 100), is_replacement=True)


def fleet_replaced(fleet: Fleet, message: str) -> None:
    """The wish for replacements is answered, one way or the other."""
    with transaction.atomic():
        Fleet.objects.filter(pk=fleet.pk).update(replace_asked_at=None)
        fleet_say(fleet, message, next_try_at=None)
        event("fleet", fleet.uid, "FleetReplaced", message)
    fleet.replace_asked_at = None


def fleet_chosen(
    fleet: Fleet,
    *,
    provider_id: str,
    instance_type: str,
    usd_per_hour: Decimal | None,
    price_source: str,
    refusals: Sequence[str],
) -> None:
    """Which of several choices AWS took, and at what price; what it refused meanwhile is told on the timeline."""
    with transaction.atomic():
        columns = {"provider_id": provider_id, "usd_per_hour": usd_per_hour, "price_source": price_source}
        Fleet.objects.filter(pk=fleet.pk).update(**columns)
        text = f"AWS took {instance_type}"
        if refusals:
            text += f"; refused: {'; '.join(refusals)}"
        event("fleet", fleet.uid, "FleetChosen", text, data={"instance_type": instance_type})
    for name, value in columns.items():
        setattr(fleet, name, value)


def fleet_condition(fleet: Fleet, kind: str, text: str) -> None:
    """Something a person should know now, told once on the timeline; an empty text takes it back."""
    known = next((c for c in fleet.conditions if c["kind"] == kind), None)
    if known is None and not text:
        return
    if known is not None and text and "".join(known["text"]) == "".join(text):
        return
    rest = [c for c in fleet.conditions if c["kind"] != kind]
    since = known["since"] if known is not None else clock.now().isoformat()
    conditions = [*rest, {"kind": kind, "text": text, "since": since}] if text else rest
    with transaction.atomic():
        Fleet.objects.filter(pk=fleet.pk).update(conditions=conditions)
        if text:
            event("fleet", fleet.uid, "FleetCondition", text, data={"condition": kind})
        else:
            event("fleet", fleet.uid, "FleetConditionOver", kind, data={"condition": kind})
    fleet.conditions = conditions


def fleet_provider_ids(fleet: Fleet) -> list[str]:
    """Instances of a fleet that have a row and are not gone."""
    rows = Node.objects.filter(fleet=fleet).exclude(phase=NodePhase.GONE).exclude(provider_id="")
    return list(rows.values_list("provider_id", flat=True))


def fleet_lost(fleet: Fleet, missing: int) -> None:
    """Since when machines are missing; nothing missing takes it back."""
    if (fleet.lost_at is not None) == (missing > 0):
        return
    fleet.lost_at = clock.now() if missing > 0 else None
    Fleet.objects.filter(pk=fleet.pk).update(lost_at=fleet.lost_at)


def fleet_topology_observe(fleet: Fleet, places: Mapping[str, Sequence[str]]) -> int:
    """Write the network places of nodes by instance id; how many rows changed."""
    changed = []
    for node in Node.objects.filter(fleet=fleet).exclude(phase=NodePhase.GONE):
        found = list(places.get(node.provider_id, ()))
        if found and found != node.network_nodes:
            node.network_nodes = found
            changed.append(node)
    with transaction.atomic():
        Node.objects.bulk_update(changed, ["network_nodes"], batch_size=200)
        Fleet.objects.filter(pk=fleet.pk).update(topology_read_at=clock.now())
    fleet.topology_read_at = clock.now()
    return len(changed)


def fleet_machines_asked(fleet: Fleet) -> int:
    """Machines that all launched batches together made."""
    found = fleet.batches.filter(phase=BatchPhase.LAUNCHED).aggregate(n=Sum("nodes", default=0))["n"]
    return int(found)


def cloud_events_observe(account_pk: int, planned: Mapping[str, Sequence[Mapping[str, Any]]]) -> int:
    """Write what AWS has planned for the machines of an account, by instance id; how many nodes changed."""
    rows = Node.objects.filter(cluster__account_id=account_pk).exclude(phase=NodePhase.GONE).exclude(provider_id="")
    changed = 0
    for node in rows.filter(provider_id__in=list(planned)) | rows.exclude(cloud_events=[]):
        found = list(planned.get(node.provider_id, ()))
        if found == node.cloud_events:
            continue
        changed += 1
        with transaction.atomic():
            Node.objects.filter(pk=node.pk).update(cloud_events=found)
            known = {e.get("code") for e in node.cloud_events}
            for each in found:
                if each.get("code") not in known:
                    text = f"{each['code']}: {each['description']}"
                    event("node", node.uid, "NodePlanned", text, data=dict(each))
    return changed


# --- checks asked for ---------------------------------------------------------------------------------


def preflight_done(run: PreflightRun, checks: Sequence[Mapping[str, Any]]) -> None:
    """What the check found."""
    PreflightRun.objects.filter(pk=run.pk, phase=PreflightPhase.PENDING).update(
        phase=PreflightPhase.DONE, checks=list(checks), checked_at=clock.now()
    )


def preflight_failed(run: PreflightRun, message: str) -> None:
    """Why it could not be made."""
    PreflightRun.objects.filter(pk=run.pk, phase=PreflightPhase.PENDING).update(
        phase=PreflightPhase.FAILED, message=brief(message, 500), checked_at=clock.now()
    )


def fleets_ask(account_pk: int) -> None:
    """Ask the worker to look at every fleet of an account that waits for its reservation."""
    for uid in Fleet.objects.filter(cluster__account_id=account_pk, phase=FleetPhase.PENDING).values_list(
        "uid", flat=True
    ):
        intent_ask("fleet.reconcile", uid)
