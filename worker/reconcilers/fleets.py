"""Fleets: from nothing to joined nodes and back to nothing, one idempotent step a visit.

Every step asks by a name or token derived from the fleet's uid that was written before the call, so
a worker killed anywhere is continued by the next: names find what exists, the launch token makes a
repeated launch return the first one's machines, the uid tag finds machines of a reply that was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from django.utils.translation import gettext_noop as _

from apps.catalog.selectors import type_by_name
from apps.clusters import observations
from apps.clusters.models import Fleet
from apps.clusters.selectors import fleet_by_uid, live_nodes
from apps.clusters.states import FleetPhase, NodePhase
from apps.connections.states import AccountPhase
from apps.core import clock, ids
from apps.core.said import said
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.providers import values as v
from worker.providers.aws.layouts import interface_layout
from worker.providers.errors import (
    Conflict,
    InsufficientCapacity,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    Unavailable,
)
from worker.providers.ports import Compute
from worker.userdata import bootstrap_script

NEXT_S = 0.2
POLL_S = 2.0
#: A launch that waits for capacity tries again after so many seconds, the last one for ever.
CAPACITY_BACKOFF_S = (60, 120, 240, 300, 600)
BOOT_LIMIT = timedelta(minutes=30)
WATCH_S = 60.0


def reconcile(uid: str) -> Outcome:
    """One step towards what the fleet's spec wants."""
    fleet = fleet_by_uid(uid)
    if fleet is None or fleet.phase == FleetPhase.DELETED:
        return DONE
    account = fleet.cluster.account
    if account is None:
        return DONE
    if account.is_paused:
        text = _("account %(name)s is paused; nothing is changed until it is resumed")
        observations.fleet_say(fleet, said(text, name=account.name))
        return again(30)
    if not account.is_settled or account.phase == AccountPhase.FAILED:
        # Whoever answers may be another account, in which none of our machines are: believe nothing until it is known.
        text = _("account %(name)s is being checked, or failed its check; waiting for it")
        observations.fleet_say(fleet, said(text, name=account.name))
        return again(10)
    compute = doors.compute_for(account)
    if fleet.delete_requested_at is not None:
        return _delete(fleet, compute)
    step = _STEPS.get(fleet.phase)
    return step(fleet, compute) if step is not None else DONE


def tags_of(fleet: Fleet) -> dict[str, str]:
    """The tags on everything made for a fleet."""
    return {
        v.TAG_UID: fleet.uid,
        v.TAG_ATTEMPT: str(max(1, fleet.launch_attempt)),
        v.TAG_TEAM: fleet.team.slug if fleet.team else "shared",
        "Name": f"{fleet.cluster.name}-{fleet.name}",
    }


def group_name(fleet: Fleet) -> str:
    """Placement group and launch template are named by the uid: asking twice finds the first."""
    return f"quarterdeck-{fleet.uid}"


def _said(text: v.Text) -> str:
    """A provider's sentence as one to store."""
    return said(text.template, **{k: _said(f) if isinstance(f, v.Text) else f for k, f in text.facts.items()})


def _asking(fleet: Fleet) -> str:
    text = _("asking EC2 for %(n)s × %(type)s, all or nothing")
    return said(text, n=fleet.nodes, type=fleet.instance_type)


def _running(count: int, fleet: Fleet) -> str:
    return said(_("%(n)s of %(all)s machines run"), n=count, all=fleet.nodes)


def _fail(fleet: Fleet, message: str) -> Outcome:
    if fleet.observed_nodes:
        text = _("%(message)s. %(n)s machines still run and are billed; delete the fleet")
        message = said(text, message=message, n=fleet.observed_nodes)
    observations.fleet_move(fleet, FleetPhase.FAILED, message)
    return again(WATCH_S) if fleet.launched_at is not None else DONE


def _watch_failed(fleet: Fleet, compute: Compute) -> Outcome:
    """Machines of a failed fleet cost money until someone deletes it: they stay counted."""
    machines = _live(compute, fleet)
    _observe(fleet, machines)
    return again(WATCH_S) if machines else DONE


def _start(fleet: Fleet, compute: Compute) -> Outcome:
    observations.fleet_move(
        fleet,
        FleetPhase.PREFLIGHT,
        said(_("checking before anything is created")),
        observed_generation=fleet.generation,
    )
    return again(0)


def _preflight(fleet: Fleet, compute: Compute) -> Outcome:
    kind = type_by_name(fleet.instance_type)
    if kind is None:
        return _fail(fleet, said(_("%(type)s is no longer in the catalog"), type=fleet.instance_type))
    plan = v.LaunchPlan(
        instance_type=fleet.instance_type,
        nodes=fleet.nodes,
        vcpus_per_node=kind.vcpus,
        subnet_id=fleet.subnet_id,
        security_group_ids=tuple(fleet.security_group_ids),
        image_id=fleet.image_id,
        interfaces=interface_layout(fleet.instance_type),
    )
    checks = compute.preflight(plan)
    shown = [{"name": c.name, "passed": c.passed, "detail": _said(c.text)} for c in checks]
    failed = [c for c in checks if not c.passed]
    passed = said(_("%(n)s of %(all)s checks passed"), n=len(checks) - len(failed), all=len(checks))
    observations.fleet_say(fleet, passed, checks=shown)
    if failed:
        return _fail(fleet, said("%(check)s: %(detail)s", check=failed[0].name, detail=_said(failed[0].text)))
    observations.fleet_move(fleet, FleetPhase.PLACEMENT_GROUP, said(_("creating the cluster placement group")))
    return again(0)


def _placement_group(fleet: Fleet, compute: Compute) -> Outcome:
    group = compute.placement_group_ensure(group_name(fleet), tags_of(fleet))
    observations.fleet_move(
        fleet,
        FleetPhase.LAUNCH_TEMPLATE,
        said(_("creating the launch template")),
        outcome=said(_("%(name)s is %(state)s"), name=group.name, state=group.state),
        placement_group=group.name,
    )
    return again(0)


def _launch_template(fleet: Fleet, compute: Compute) -> Outcome:
    kind = type_by_name(fleet.instance_type)
    spec = v.LaunchTemplateSpec(
        name=group_name(fleet),
        instance_type=fleet.instance_type,
        image_id=fleet.image_id,
        subnet_id=fleet.subnet_id,
        security_group_ids=tuple(fleet.security_group_ids),
        interfaces=interface_layout(fleet.instance_type),
        user_data=bootstrap_script(
            cluster_uid=fleet.cluster.uid,
            controller_url=fleet.cluster.scheduler_url,
            partition=fleet.partition,
            gpu_type=kind.gpu_type if kind else "",
            gpus=kind.gpus if kind else 0,
        ),
        tags=tags_of(fleet),
    )
    template = compute.launch_template_ensure(spec, ids.idempotency_token(fleet.uid, 1, "template"))
    observations.fleet_move(
        fleet,
        FleetPhase.LAUNCHING,
        _asking(fleet),
        outcome=said(
            _("%(template)s version %(version)s, %(n)s interfaces a node"),
            template=template.provider_id,
            version=template.version,
            n=len(spec.interfaces),
        ),
        launch_template_id=template.provider_id,
        launch_template_version=template.version,
    )
    return again(0)


def _live(compute: Compute, fleet: Fleet) -> list[v.Instance]:
    return [i for i in compute.instances({v.TAG_UID: fleet.uid}) if i.state not in ("terminated", "shutting-down")]


def _launch(fleet: Fleet, compute: Compute) -> Outcome:
    """All or nothing. The attempt number rises only after a look by tag showed that the last one made nothing."""
    existing = _live(compute, fleet)
    if existing:
        return _launched(fleet, existing)
    if fleet.launch_attempt == 0 or not fleet.client_token:
        observations.fleet_launch_attempt(fleet)
    request = v.LaunchRequest(
        launch_template_id=fleet.launch_template_id,
        launch_template_version=fleet.launch_template_version,
        count=fleet.nodes,
        client_token=fleet.client_token,
        placement_group=fleet.placement_group,
        tags=tags_of(fleet),
    )
    observations.fleet_say(fleet, _asking(fleet))
    try:
        made = compute.launch(request)
    except InsufficientCapacity as error:
        return _wait_for_capacity(fleet, str(error))
    except (QuotaExceeded, InvalidRequest) as error:
        return _fail(fleet, str(error))
    except Conflict as error:
        # The token was used with other parameters, or its machines were terminated: nothing of ours
        # lives (we just looked), so the next attempt gets a new token.
        observations.fleet_launch_attempt(fleet)
        observations.fleet_say(fleet, said(_("%(error)s; trying with a new token"), error=str(error)))
        return again(POLL_S)
    except Unavailable as error:
        # In doubt: the same token is asked again, which returns the machines if they were made.
        text = _("no clear answer (%(error)s); asking again with the same token")
        observations.fleet_say(fleet, said(text, error=str(error)))
        return again(POLL_S)
    return _launched(fleet, list(made))


def _launched(fleet: Fleet, machines: list[v.Instance]) -> Outcome:
    _observe(fleet, machines)
    observations.fleet_move(
        fleet,
        FleetPhase.BOOTING,
        said(_("waiting for %(n)s machines to run"), n=len(machines)),
        outcome=said(_("%(n)s machines launched"), n=len(machines)),
        launched_at=clock.now(),
        next_try_at=None,
    )
    return again(POLL_S)


def _wait_for_capacity(fleet: Fleet, message: str) -> Outcome:
    wait = CAPACITY_BACKOFF_S[min(fleet.capacity_refusals, len(CAPACITY_BACKOFF_S) - 1)]
    columns: dict[str, Any] = {
        "capacity_refusals": fleet.capacity_refusals + 1,
        "next_try_at": clock.now() + timedelta(seconds=wait),
    }
    observations.fleet_move(fleet, FleetPhase.WAITING_CAPACITY, message, **columns)
    return again(wait)


def _retry_capacity(fleet: Fleet, compute: Compute) -> Outcome:
    now = clock.now()
    if fleet.next_try_at is not None and fleet.next_try_at > now:
        return again((fleet.next_try_at - now).total_seconds())
    # A refused launch made nothing, so the token may be used for the next try's machines; a fresh one is
    # cleaner: AWS remembers tokens of failed calls differently by error.
    if not _live(compute, fleet):
        observations.fleet_launch_attempt(fleet)
    observations.fleet_move(fleet, FleetPhase.LAUNCHING, said(_("trying again")))
    return again(0)


def _observe(fleet: Fleet, machines: list[v.Instance]) -> None:
    observations.fleet_nodes_observe(
        fleet,
        [
            observations.SeenInstance(
                name=m.name,
                provider_id=m.provider_id,
                private_ip=m.private_ip,
                zone_id=m.zone_id,
                is_running=m.state == "running",
            )
            for m in machines
        ],
    )


def _boot(fleet: Fleet, compute: Compute) -> Outcome:
    machines = _live(compute, fleet)
    if len(machines) < fleet.nodes:
        dead = [i for i in compute.instances({v.TAG_UID: fleet.uid}) if i.state in ("terminated", "shutting-down")]
        why: str = next((i.state_reason for i in dead if i.state_reason), "") or said(_("EC2 gave no reason"))
        if dead:
            text = _("%(n)s of %(all)s machines died while starting: %(why)s")
            return _fail(fleet, said(text, n=len(dead), all=fleet.nodes, why=why))
    _observe(fleet, machines)
    running = sum(1 for m in machines if m.state == "running")
    if running >= fleet.nodes:
        observations.fleet_move(
            fleet,
            FleetPhase.JOINING,
            said(_("waiting for the machines to join the scheduler")),
            outcome=_running(running, fleet),
        )
        return again(POLL_S)
    if clock.now() - fleet.phase_since > BOOT_LIMIT:
        text = _("only %(n)s of %(all)s machines run after %(minutes)s min")
        return _fail(fleet, said(text, n=running, all=fleet.nodes, minutes=BOOT_LIMIT.seconds // 60))
    observations.fleet_say(fleet, _running(running, fleet))
    return again(POLL_S)


def _join(fleet: Fleet, compute: Compute) -> Outcome:
    joined = _joined(fleet)
    if joined >= fleet.nodes:
        done = said(_("%(n)s nodes are in the scheduler"), n=joined)
        observations.fleet_move(fleet, FleetPhase.READY, done, outcome=done)
        return again(WATCH_S)
    if clock.now() - fleet.phase_since > BOOT_LIMIT:
        text = _("only %(n)s of %(all)s nodes joined the scheduler after %(minutes)s min")
        return _fail(fleet, said(text, n=joined, all=fleet.nodes, minutes=BOOT_LIMIT.seconds // 60))
    observations.fleet_say(
        fleet, said(_("%(n)s of %(all)s nodes have joined the scheduler"), n=joined, all=fleet.nodes)
    )
    return again(POLL_S)


def _joined(fleet: Fleet) -> int:
    return sum(
        1
        for n in live_nodes(fleet.cluster).values()
        if n.fleet_id == fleet.pk and n.phase not in (NodePhase.PENDING, NodePhase.BOOTING, NodePhase.DOWN)
    )


def _watch(fleet: Fleet, compute: Compute) -> Outcome:
    """A ready fleet: machines may vanish or come back."""
    machines = _live(compute, fleet)
    _observe(fleet, machines)
    joined = _joined(fleet)
    whole = len(machines) >= fleet.nodes and joined >= fleet.nodes
    if fleet.phase == FleetPhase.READY and not whole:
        text = _("%(n)s of %(all)s machines exist, %(joined)s are in the scheduler")
        left = said(text, n=len(machines), all=fleet.nodes, joined=joined)
        observations.fleet_move(fleet, FleetPhase.DEGRADED, left)
    elif fleet.phase == FleetPhase.DEGRADED and whole:
        observations.fleet_move(fleet, FleetPhase.READY, said(_("all machines are back")))
    return again(WATCH_S)


def _delete(fleet: Fleet, compute: Compute) -> Outcome:
    """Reverse order, each thing until AWS says it is gone: machines, interfaces, template, group."""
    if fleet.phase != FleetPhase.DELETING:
        observations.fleet_move(fleet, FleetPhase.DELETING, said(_("deletion has begun")))
    tag = {v.TAG_UID: fleet.uid}
    every = compute.instances(tag)
    live = [i for i in every if i.state not in ("terminated", "shutting-down")]
    if live:
        compute.terminate([i.provider_id for i in live])
        observations.fleet_say(fleet, said(_("terminating %(n)s machines"), n=len(live)))
        return again(POLL_S)
    stopping = [i for i in every if i.state == "shutting-down"]
    if stopping:
        observations.fleet_say(fleet, said(_("%(n)s machines are shutting down"), n=len(stopping)))
        return again(POLL_S)
    _observe(fleet, [])
    left = compute.interfaces(tag)
    for interface in left:
        _gone(partial(compute.interface_delete, interface.provider_id))
    if left:
        observations.fleet_say(fleet, said(_("removing %(n)s network interfaces"), n=len(left)))
        return again(POLL_S)
    if not _gone(lambda: compute.launch_template_delete(fleet.launch_template_id or _template_id(fleet, compute))):
        observations.fleet_say(fleet, said(_("removing the launch template")))
        return again(NEXT_S)
    if not _gone(lambda: compute.placement_group_delete(group_name(fleet))):
        observations.fleet_say(fleet, said(_("removing the placement group")))
        return again(NEXT_S)
    if any(o.uid == fleet.uid for o in compute.owned()):
        observations.fleet_say(fleet, said(_("something with the fleet's tag is still there; looking again")))
        return again(POLL_S)
    observations.fleet_move(
        fleet,
        FleetPhase.DELETED,
        said(_("AWS holds nothing of it any more")),
        ended_at=clock.now(),
        observed_generation=fleet.generation,
    )
    return DONE


def _template_id(fleet: Fleet, compute: Compute) -> str:
    """The template of a fleet whose id was never saved: found by tag. Raises NotFound when there is none."""
    for thing in compute.owned():
        if thing.kind == "launch-template" and thing.uid == fleet.uid:
            return thing.provider_id
    raise NotFound("no launch template carries the fleet's tag", source="aws")


def _gone(delete: Callable[[], None]) -> bool:
    """Whether a deletion has nothing left to do; a conflict (still in use) is a later try."""
    try:
        delete()
    except NotFound:
        return True
    except Conflict:
        return False
    return False


_STEPS: dict[str, Callable[[Fleet, Compute], Outcome]] = {
    FleetPhase.PENDING: _start,
    FleetPhase.PREFLIGHT: _preflight,
    FleetPhase.PLACEMENT_GROUP: _placement_group,
    FleetPhase.LAUNCH_TEMPLATE: _launch_template,
    FleetPhase.LAUNCHING: _launch,
    FleetPhase.WAITING_CAPACITY: _retry_capacity,
    FleetPhase.BOOTING: _boot,
    FleetPhase.JOINING: _join,
    FleetPhase.READY: _watch,
    FleetPhase.DEGRADED: _watch,
    FleetPhase.FAILED: _watch_failed,
}
