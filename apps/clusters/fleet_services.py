"""What people do with fleets: make, check beforehand, have lost machines replaced, delete."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from apps.audit.services import event, record
from apps.capacity.models import Reservation
from apps.capacity.states import ENDED
from apps.catalog.models import InstanceType
from apps.catalog.selectors import price_words, type_by_name
from apps.clusters.fleet_rules import MAX_CHOICES, MAX_NODES, ReservationFacts, source_problems, usd_of
from apps.clusters.models import Cluster, Fleet, FleetStep, Node, PreflightRun
from apps.clusters.permissions import can_operate_clusters
from apps.clusters.states import FLEET_STEPS, SOURCES_BLOCK, CapacitySource, FleetPhase, NodePhase
from apps.connections.models import CloudAccount
from apps.connections.states import AccountPhase
from apps.core import clock
from apps.core.errors import FieldProblem, Forbidden, InvalidInput, Refusal, TransitionConflict
from apps.core.said import said
from apps.intents.services import intent_ask
from apps.teams.models import Team
from apps.teams.permissions import Actor, system_actor

FLEET_INTENT = "fleet.reconcile"
PREFLIGHT_INTENT = "preflight.run"
_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,58}$")


class FleetInUse(Refusal):
    """Jobs still run on the fleet's nodes."""


def _operate(actor: Actor) -> None:
    if not can_operate_clusters(actor):
        raise Forbidden("only operators and administrators do this")


def reservation_facts(row: Reservation | None) -> ReservationFacts | None:
    """What the rules need of a reservation."""
    if row is None:
        return None
    return ReservationFacts(
        name=str(row),
        kind=row.kind,
        account_uid=row.account.uid,
        instance_type=row.instance_type,
        instances=row.instances,
        platform=row.platform,
        tenancy=row.tenancy,
        match_criteria=row.match_criteria,
        phase=row.phase,
        is_over=row.phase in ENDED or (row.end_at is not None and row.end_at <= clock.now()),
        end_at=row.end_at,
    )


def price_of(
    source: str, kind: InstanceType, reservation: Reservation | None, region: str
) -> tuple[Decimal | None, str]:
    """USD an hour of one machine and whose price it is, as it is stored."""
    usd, basis = usd_of(source, kind.usd_per_hour, reservation.usd_per_hour if reservation else None)
    if basis == "reservation":
        return usd, said(gettext_noop("%(name)s, paid up front, spread over its hours"), name=str(reservation))
    words = price_words(kind, region)
    if basis == "ceiling":
        return usd, said(gettext_noop("at most the price on demand: %(price)s"), price=words)
    return usd, words


def _spec_problems(
    account: CloudAccount | None, spec: dict[str, Any], reservation: Reservation | None
) -> list[FieldProblem]:
    problems: list[FieldProblem] = []
    source, instance_type = spec["source"], spec["instance_type"]
    for pointer, names in (
        ("/instance_type", [instance_type]),
        ("/other_instance_types", spec["other_instance_types"]),
    ):
        for name in names:
            kind = type_by_name(name)
            if kind is None:
                problems.append(
                    FieldProblem(pointer, "unknown", _("%(type)s is not in the catalog") % {"type": repr(name)})
                )
            elif kind.usd_per_hour is None and source not in SOURCES_BLOCK:
                text = _("%(type)s has no published on-demand price; it is sold through reservations") % {"type": name}
                problems.append(FieldProblem(pointer, "not-on-demand", text))
    if not 1 <= spec["nodes"] <= MAX_NODES:
        text = _("from 1 to %(most)s in one launch") % {"most": MAX_NODES}
        problems.append(FieldProblem("/nodes", "out-of-range", text))
    subnets = [("/subnet_id", spec["subnet_id"]), *(("/other_subnet_ids", s) for s in spec["other_subnet_ids"])]
    for pointer, value, prefix in (*((p, s, "subnet-") for p, s in subnets), ("/image_id", spec["image_id"], "ami-")):
        if not value.startswith(prefix):
            problems.append(FieldProblem(pointer, "invalid", _("must start with %(prefix)s") % {"prefix": prefix}))
    groups = spec["security_group_ids"]
    if not groups or any(not s.startswith("sg-") for s in groups):
        text = _("one or more, each starting with sg-")
        problems.append(FieldProblem("/security_group_ids", "invalid", text))
    choices = (1 + len(spec["other_instance_types"])) * (1 + len(spec["other_subnet_ids"]))
    if choices > MAX_CHOICES:
        text = _("at most %(most)s combinations of type and subnet") % {"most": MAX_CHOICES}
        problems.append(FieldProblem("/other_subnet_ids", "too-many", text))
    problems += [
        FieldProblem(*problem)
        for problem in source_problems(
            source,
            reservation_facts(reservation),
            account_uid=account.uid if account else "",
            account_name=account.name if account else "",
            instance_type=instance_type,
            nodes=spec["nodes"],
            other_types=len(spec["other_instance_types"]),
            other_subnets=len(spec["other_subnet_ids"]),
        )
    ]
    return problems


def _refuse(problems: list[FieldProblem]) -> None:
    if problems:
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=problems)


def _account(cluster: Cluster) -> CloudAccount:
    account = cluster.account
    if cluster.is_managed:
        text = _("machines of %(kind)s come in node groups; add one to the cluster instead of a fleet")
        raise TransitionConflict(text % {"kind": cluster.get_kind_display()})
    if cluster.is_kubernetes:
        text = _("machines of cluster %(name)s are not launched from here: whoever keeps its Kubernetes adds nodes")
        raise TransitionConflict(text % {"name": cluster.name})
    if account is None:
        raise TransitionConflict(f"cluster {cluster.name} has no cloud account, so machines cannot be launched for it")
    if account.phase != AccountPhase.CONNECTED:
        raise TransitionConflict(f"account {account.name} is not connected: {account.message or 'still checking'}")
    if account.is_paused:
        raise TransitionConflict(f"account {account.name} is paused; resume it first")
    return account


def _spec(
    *,
    instance_type: str,
    nodes: int,
    subnet_id: str,
    security_group_ids: Sequence[str],
    image_id: str,
    source: str,
    other_instance_types: Sequence[str],
    other_subnet_ids: Sequence[str],
) -> dict[str, Any]:
    return {
        "instance_type": instance_type,
        "nodes": nodes,
        "subnet_id": subnet_id,
        "security_group_ids": list(security_group_ids),
        "image_id": image_id,
        "source": source,
        "other_instance_types": list(dict.fromkeys(t for t in other_instance_types if t != instance_type)),
        "other_subnet_ids": list(dict.fromkeys(s for s in other_subnet_ids if s != subnet_id)),
    }


def fleet_create(
    *,
    actor: Actor,
    cluster: Cluster,
    name: str,
    instance_type: str,
    nodes: int,
    subnet_id: str,
    security_group_ids: Sequence[str],
    image_id: str,
    partition: str = "",
    team: Team | None = None,
    source: str = CapacitySource.ON_DEMAND,
    reservation: Reservation | None = None,
    other_instance_types: Sequence[str] = (),
    other_subnet_ids: Sequence[str] = (),
) -> Fleet:
    """Record a fleet with its steps and ask the worker to launch it.

    Raises Forbidden, InvalidInput, TransitionConflict.
    """
    _operate(actor)
    spec = _spec(
        instance_type=instance_type,
        nodes=nodes,
        subnet_id=subnet_id,
        security_group_ids=security_group_ids,
        image_id=image_id,
        source=source,
        other_instance_types=other_instance_types,
        other_subnet_ids=other_subnet_ids,
    )
    problems = _spec_problems(cluster.account, spec, reservation)
    if not _NAME.fullmatch(name):
        problems.insert(0, FieldProblem("/name", "invalid", _("lower-case letters, digits and dashes")))
    _refuse(problems)
    kind = type_by_name(instance_type)
    assert kind is not None
    account = _account(cluster)
    usd_per_hour, price_source = price_of(source, kind, reservation, account.region)
    fleet = Fleet(
        cluster=cluster,
        team=team,
        name=name,
        partition=partition or cluster.partition or "gpu",
        reservation=reservation,
        usd_per_hour=usd_per_hour,
        price_source=price_source,
        **spec,
    )
    try:
        with transaction.atomic():
            if Cluster.objects.select_for_update().get(pk=cluster.pk).delete_requested_at is not None:
                raise TransitionConflict(_("cluster %(name)s is being removed") % {"name": cluster.name})
            fleet.save()
            FleetStep.objects.bulk_create(
                FleetStep(fleet=fleet, ordinal=i, name=step, expected_s=expected)
                for i, (step, expected) in enumerate(FLEET_STEPS)
            )
            after = {
                "cluster": cluster.name,
                "name": name,
                "instance_type": instance_type,
                "nodes": nodes,
                "source": source,
                "reservation": str(reservation) if reservation else "",
                "usd_per_hour": str(usd_per_hour * nodes) if usd_per_hour is not None else "",
            }
            record(actor, "fleet.create", "fleet", fleet.uid, team_id=team.pk if team else None, after=after)
            event("fleet", fleet.uid, "FleetCreated", f"{nodes} × {instance_type} asked for by {actor.name}")
            intent_ask(FLEET_INTENT, fleet.uid)
    except IntegrityError:
        raise InvalidInput(
            f"cluster {cluster.name} already has a fleet named {name}",
            problems=[FieldProblem("/name", "taken", _("already used"))],
        ) from None
    return fleet


def preflight_ask(
    *,
    actor: Actor,
    cluster: Cluster,
    instance_type: str,
    nodes: int,
    subnet_id: str,
    security_group_ids: Sequence[str],
    image_id: str,
    source: str = CapacitySource.ON_DEMAND,
    reservation: Reservation | None = None,
    other_instance_types: Sequence[str] = (),
    other_subnet_ids: Sequence[str] = (),
) -> PreflightRun:
    """Ask the worker to check a launch that nobody has asked for yet; it reads AWS and makes nothing.

    Raises Forbidden, InvalidInput, TransitionConflict.
    """
    _operate(actor)
    spec = _spec(
        instance_type=instance_type,
        nodes=nodes,
        subnet_id=subnet_id,
        security_group_ids=security_group_ids,
        image_id=image_id,
        source=source,
        other_instance_types=other_instance_types,
        other_subnet_ids=other_subnet_ids,
    )
    _refuse(_spec_problems(cluster.account, spec, reservation))
    _account(cluster)
    with transaction.atomic():
        run = PreflightRun(cluster=cluster, reservation=reservation, spec=spec, asked_by=actor.name)
        run.save()
        # Old answers help nobody: what they say was true when they were asked for.
        stale = PreflightRun.objects.filter(cluster=cluster).order_by("-id").values_list("pk", flat=True)[50:]
        PreflightRun.objects.filter(pk__in=list(stale)).delete()
        intent_ask(PREFLIGHT_INTENT, run.uid)
    return run


def fleet_replace(*, actor: Actor, fleet: Fleet, expected_version: int) -> None:
    """Ask for machines in the place of lost ones. Raises Forbidden, TransitionConflict, StaleVersion."""
    _operate(actor)
    if fleet.phase != FleetPhase.DEGRADED or fleet.observed_nodes >= fleet.nodes:
        raise TransitionConflict(_("no machine of this fleet is missing"))
    with transaction.atomic():
        if fleet.replace_asked_at is None:
            fleet.spec_update(expected_version, replace_asked_at=clock.now())
            missing = fleet.nodes - fleet.observed_nodes
            record(actor, "fleet.replace", "fleet", fleet.uid, after={"name": fleet.name, "machines": missing})
            event("fleet", fleet.uid, "FleetReplaceAsked", f"replacement asked for by {actor.name}")
        intent_ask(FLEET_INTENT, fleet.uid)


def fleet_delete(*, actor: Actor, fleet: Fleet, expected_version: int) -> None:
    """Tear a fleet down. Raises FleetInUse while the scheduler runs anything on its GPUs."""
    _operate(actor)
    if fleet.phase == FleetPhase.DELETED:
        raise TransitionConflict("the fleet is already deleted")
    busy = sorted(
        Node.objects.filter(fleet=fleet, gpus_used__gt=0).exclude(phase=NodePhase.GONE).values_list("name", flat=True)
    )
    if busy:
        raise FleetInUse(f"jobs run on {', '.join(busy[:5])}; cancel them or wait for their end")
    with transaction.atomic():
        if fleet.delete_requested_at is None:
            fleet.spec_update(expected_version, delete_requested_at=clock.now(), generation=fleet.generation + 1)
            record(actor, "fleet.delete", "fleet", fleet.uid, before={"name": fleet.name, "nodes": fleet.nodes})
            event("fleet", fleet.uid, "FleetDeleteRequested", f"deletion asked for by {actor.name}")
        intent_ask(FLEET_INTENT, fleet.uid)


def fleet_end(fleet: Fleet, reason: str) -> None:
    """The portal's own decision to tear a fleet down whose capacity ends; jobs on it do not keep it."""
    with transaction.atomic():
        changed = Fleet.objects.filter(pk=fleet.pk, delete_requested_at__isnull=True).update(
            delete_requested_at=clock.now(), generation=fleet.generation + 1, version=fleet.version + 1
        )
        if changed:
            actor = system_actor("block clock")
            record(actor, "fleet.delete", "fleet", fleet.uid, before={"name": fleet.name}, after={"reason": reason})
            event("fleet", fleet.uid, "FleetDeleteRequested", f"deletion asked for by {reason}")
        intent_ask(FLEET_INTENT, fleet.uid)
