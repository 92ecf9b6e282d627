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

from apps.catalog.selectors import type_by_name
from apps.clusters import observations
from apps.clusters.models import Fleet
from apps.clusters.selectors import fleet_by_uid, live_nodes
from apps.clusters.states import FleetPhase, NodePhase
from apps.connections.states import AccountPhase
from apps.core import clock, ids
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
        observations.fleet_say(fleet, f"account {account.name} is paused; nothing is changed until it is resumed")
        return again(30)
    if not account.is_settled or account.phase == AccountPhase.FAILED:
        # Whoever answers may be another account, in which none of our machines are: believe nothing until it is known.
        observations.fleet_say(fleet, f"account {account.name} is being checked, or failed its check; waiting for it")
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


def _fail(fleet: Fleet, message: str) -> Outcome:
    if fleet.observed_nodes:
        message = f"{message}. {fleet.observed_nodes} machines still run and are billed; delete the fleet"
    observations.fleet_move(fleet, FleetPhase.FAILED, message)
    return again(WATCH_S) if fleet.launched_at is not None else DONE


def _watch_failed(fleet: Fleet, compute: Compute) -> Outcome:
    """Machines of a failed fleet cost money until someone deletes it: they stay counted."""
    machines = _live(compute, fleet)
    _observe(fleet, machines)
    return again(WATCH_S) if machines else DONE


def _start(fleet: Fleet, compute: Compute) -> Outcome:
    observations.fleet_move(
        fleet, FleetPhase.PREFLIGHT, "checking before anything is created", observed_generation=fleet.generation
    )
    return again(0)


def _preflight(fleet: Fleet, compute: Compute) -> Outcome:
    kind = type_by_name(fleet.instance_type)
    if kind is None:
        return _fail(fleet, f"{fleet.instance_type} is no longer in the catalog")
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
    shown = [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in checks]
    failed = [c for c in checks if not c.passed]
    observations.fleet_say(fleet, f"{len(checks) - len(failed)} of {len(checks)} checks passed", checks=shown)
    if failed:
        return _fail(fleet, f"{failed[0].name}: {failed[0].detail}")
    observations.fleet_move(fleet, FleetPhase.PLACEMENT_GROUP, "creating the cluster placement group")
    return again(0)


def _placement_group(fleet: Fleet, compute: Compute) -> Outcome:
    group = compute.placement_group_ensure(group_name(fleet), tags_of(fleet))
    observations.fleet_move(
        fleet,
        FleetPhase.LAUNCH_TEMPLATE,
        "creating the launch template",
        outcome=f"{group.name} is {group.state}",
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
            controller_url=fleet.cluster.api_url,
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
        f"asking EC2 for {fleet.nodes} × {fleet.instance_type}, all or nothing",
        outcome=f"{template.provider_id} version {template.version}, {len(spec.interfaces)} interfaces a node",
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
    observations.fleet_say(fleet, f"asking EC2 for {fleet.nodes} × {fleet.instance_type}, all or nothing")
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
        observations.fleet_say(fleet, f"{error}; trying with a new token")
        return again(POLL_S)
    except Unavailable as error:
        # In doubt: the same token is asked again, which returns the machines if they were made.
        observations.fleet_say(fleet, f"no clear answer ({error}); asking again with the same token")
        return again(POLL_S)
    return _launched(fleet, list(made))


def _launched(fleet: Fleet, machines: list[v.Instance]) -> Outcome:
    _observe(fleet, machines)
    observations.fleet_move(
        fleet,
        FleetPhase.BOOTING,
        f"waiting for {len(machines)} machines to run",
        outcome=f"{len(machines)} machines launched",
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
    observations.fleet_move(fleet, FleetPhase.LAUNCHING, "trying again")
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
        why = next((i.state_reason for i in dead if i.state_reason), "EC2 gave no reason")
        if dead:
            return _fail(fleet, f"{len(dead)} of {fleet.nodes} machines died while starting: {why}")
    _observe(fleet, machines)
    running = sum(1 for m in machines if m.state == "running")
    if running >= fleet.nodes:
        observations.fleet_move(
            fleet,
            FleetPhase.JOINING,
            "waiting for the machines to join the scheduler",
            outcome=f"{running} of {fleet.nodes} machines run",
        )
        return again(POLL_S)
    if clock.now() - fleet.phase_since > BOOT_LIMIT:
        return _fail(fleet, f"only {running} of {fleet.nodes} machines run after {BOOT_LIMIT}")
    observations.fleet_say(fleet, f"{running} of {fleet.nodes} machines run")
    return again(POLL_S)


def _join(fleet: Fleet, compute: Compute) -> Outcome:
    joined = _joined(fleet)
    if joined >= fleet.nodes:
        text = f"{joined} nodes are in the scheduler"
        observations.fleet_move(fleet, FleetPhase.READY, text, outcome=text)
        return again(WATCH_S)
    if clock.now() - fleet.phase_since > BOOT_LIMIT:
        return _fail(fleet, f"only {joined} of {fleet.nodes} nodes joined the scheduler after {BOOT_LIMIT}")
    observations.fleet_say(fleet, f"{joined} of {fleet.nodes} nodes have joined the scheduler")
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
        text = f"{len(machines)} of {fleet.nodes} machines exist, {joined} are in the scheduler"
        observations.fleet_move(fleet, FleetPhase.DEGRADED, text)
    elif fleet.phase == FleetPhase.DEGRADED and whole:
        observations.fleet_move(fleet, FleetPhase.READY, "all machines are back")
    return again(WATCH_S)


def _delete(fleet: Fleet, compute: Compute) -> Outcome:
    """Reverse order, each thing until AWS says it is gone: machines, interfaces, template, group."""
    if fleet.phase != FleetPhase.DELETING:
        observations.fleet_move(fleet, FleetPhase.DELETING, "deletion has begun")
    tag = {v.TAG_UID: fleet.uid}
    every = compute.instances(tag)
    live = [i for i in every if i.state not in ("terminated", "shutting-down")]
    if live:
        compute.terminate([i.provider_id for i in live])
        observations.fleet_say(fleet, f"terminating {len(live)} machines")
        return again(POLL_S)
    stopping = [i for i in every if i.state == "shutting-down"]
    if stopping:
        observations.fleet_say(fleet, f"{len(stopping)} machines are shutting down")
        return again(POLL_S)
    _observe(fleet, [])
    left = compute.interfaces(tag)
    for interface in left:
        _gone(partial(compute.interface_delete, interface.provider_id))
    if left:
        observations.fleet_say(fleet, f"removing {len(left)} network interfaces")
        return again(POLL_S)
    if not _gone(lambda: compute.launch_template_delete(fleet.launch_template_id or _template_id(fleet, compute))):
        observations.fleet_say(fleet, "removing the launch template")
        return again(NEXT_S)
    if not _gone(lambda: compute.placement_group_delete(group_name(fleet))):
        observations.fleet_say(fleet, "removing the placement group")
        return again(NEXT_S)
    if any(o.uid == fleet.uid for o in compute.owned()):
        observations.fleet_say(fleet, "something with the fleet's tag is still there; looking again")
        return again(POLL_S)
    observations.fleet_move(
        fleet,
        FleetPhase.DELETED,
        "AWS holds nothing of it any more",
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
