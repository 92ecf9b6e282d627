"""Fleets: from nothing to joined nodes and back to nothing, one idempotent step a visit.

Every step asks by a name or token derived from the fleet's uid that was written before the call, so
a worker killed anywhere is continued by the next: names find what exists, the launch tokens make a
repeated launch return the first one's machines, the uid tag finds machines of a reply that was lost.
The launch itself is in ``fleet_launch``, the checks before it in ``preflights``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from django.utils.translation import gettext_noop as _

from apps.catalog.selectors import type_by_name
from apps.clusters import fleet_observations as launches
from apps.clusters import observations
from apps.clusters.models import Fleet
from apps.clusters.selectors import fleet_by_uid, live_nodes
from apps.clusters.states import SOURCES_BLOCK, SOURCES_GROUPED, FleetPhase, NodePhase
from apps.connections.states import AccountPhase
from apps.core import clock, ids
from apps.core.said import said
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.providers import values as v
from worker.providers.aws.layouts import interface_layout
from worker.providers.errors import (
    AccessDenied,
    Conflict,
    InvalidRequest,
    NotFound,
    ProviderError,
    QuotaExceeded,
    Unsupported,
)
from worker.providers.ports import Compute
from worker.reconcilers import fleet_launch, preflights
from worker.reconcilers.fleet_parts import (
    NEXT_S,
    WATCH_S,
    choices_of,
    death_words,
    fail,
    group_name,
    live_of,
    machines_of,
    observe,
    placement_of,
    poll_s,
    reservation_ended,
    reservation_waits,
    source_of,
    tags_of,
)
from worker.userdata import bootstrap_script

POLL_S = 2.0
BOOT_LIMIT = timedelta(minutes=30)
#: A machine whose place in the network AWS did not tell is asked about again after this time.
TOPOLOGY_AGAIN = timedelta(minutes=10)


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
    step = _delete if fleet.delete_requested_at is not None else _STEPS.get(fleet.phase)
    if step is None:
        return DONE
    compute = doors.compute_for(account)
    try:
        return step(fleet, compute)
    except (AccessDenied, InvalidRequest, QuotaExceeded, Unsupported) as error:
        words = fleet_launch.refusal_words(error)
        if step in _BEFORE_LAUNCH:
            # Nothing runs yet, and asking again cannot help.
            return fail(fleet, words)
        if step in _UNDER_WAY:
            # What was made stays looked after; the next round says something else once it may.
            observations.fleet_say(fleet, words)
        raise


def _running(count: int, fleet: Fleet) -> str:
    return said(_("%(n)s of %(all)s machines run"), n=count, all=fleet.nodes)


def _watch_failed(fleet: Fleet, compute: Compute) -> Outcome:
    """Machines of a failed fleet cost money until someone deletes it: they stay counted."""
    machines = machines_of(compute, fleet)
    observe(fleet, machines)
    return again(WATCH_S) if live_of(machines) else DONE


def _start(fleet: Fleet, compute: Compute) -> Outcome:
    waits, wait_s = reservation_waits(fleet)
    if waits and not reservation_ended(fleet):
        observations.fleet_say(fleet, waits)
        return again(wait_s)
    observations.fleet_move(
        fleet,
        FleetPhase.PREFLIGHT,
        said(_("checking before anything is created")),
        observed_generation=fleet.generation,
    )
    return again(0)


def _preflight(fleet: Fleet, compute: Compute) -> Outcome:
    if ended := reservation_ended(fleet):
        launches.fleet_condition(fleet, "ReservationEnded", ended)
        return fail(fleet, ended)
    checks = preflights.checks_of(fleet, compute)
    if isinstance(checks, str):
        return fail(fleet, checks)
    failed = [c for c in checks if not c["passed"]]
    passed = said(_("%(n)s of %(all)s checks passed"), n=len(checks) - len(failed), all=len(checks))
    observations.fleet_say(fleet, passed, checks=checks)
    if failed:
        return fail(fleet, said("%(check)s: %(detail)s", check=failed[0]["name"], detail=failed[0]["detail"]))
    text = _("creating the cluster placement group") if fleet.source in SOURCES_GROUPED else _("placing the machines")
    observations.fleet_move(fleet, FleetPhase.PLACEMENT_GROUP, said(text))
    return again(0)


def _placement_group(fleet: Fleet, compute: Compute) -> Outcome:
    if fleet.source in SOURCES_GROUPED:
        group = compute.placement_group_ensure(group_name(fleet), tags_of(fleet))
        name, outcome = group.name, said(_("%(name)s is %(state)s"), name=group.name, state=group.state)
    elif name := placement_of(fleet):
        outcome = said(_("%(name)s, in which the reservation was made"), name=name)
    elif fleet.source in SOURCES_BLOCK:
        outcome = said(_("none: the machines of a block stand close together already"))
    else:
        outcome = said(_("none: a group of ours would leave part of the reservation out of reach"))
    observations.fleet_move(
        fleet,
        FleetPhase.LAUNCH_TEMPLATE,
        said(_("creating the launch template")),
        outcome=outcome,
        placement_group=name,
    )
    return again(0)


def _launch_template(fleet: Fleet, compute: Compute) -> Outcome:
    """One template for each choice: types differ in their interfaces, and an interface names its subnet."""
    made = []
    for number, (kind_name, subnet_id) in enumerate(choices_of(fleet)):
        kind = type_by_name(kind_name)
        spec = v.LaunchTemplateSpec(
            name=group_name(fleet) + (f"-{number + 1}" if number else ""),
            instance_type=kind_name,
            image_id=fleet.image_id,
            subnet_id=subnet_id,
            security_group_ids=tuple(fleet.security_group_ids),
            interfaces=interface_layout(kind_name),
            user_data=bootstrap_script(
                cluster_uid=fleet.cluster.uid,
                controller_url=fleet.cluster.scheduler_url,
                partition=fleet.partition,
                gpu_type=kind.gpu_type if kind else "",
                gpus=kind.gpus if kind else 0,
            ),
            tags=tags_of(fleet),
            source=source_of(fleet),
        )
        purpose = f"template/{number + 1}" if number else "template"
        made.append((compute.launch_template_ensure(spec, ids.idempotency_token(fleet.uid, 1, purpose)), spec))
    template, spec = made[0]
    observations.fleet_move(
        fleet,
        FleetPhase.LAUNCHING,
        fleet_launch.asking(fleet),
        outcome=said(
            _("%(template)s version %(version)s, %(n)s interfaces a node"),
            template=", ".join(t.provider_id for t, _spec in made),
            version=template.version,
            n=len(spec.interfaces),
        ),
        launch_template_id=template.provider_id,
        launch_template_version=template.version,
        templates=[{"id": t.provider_id, "version": t.version} for t, _spec in made],
    )
    return again(0)


def _boot(fleet: Fleet, compute: Compute) -> Outcome:
    machines = machines_of(compute, fleet)
    observe(fleet, machines)
    live = live_of(machines)
    dead = [m for m in machines if m not in live]
    if len(live) < fleet.nodes and dead:
        text = _("%(n)s of %(all)s machines died while starting: %(why)s")
        return fail(fleet, said(text, n=fleet.nodes - len(live), all=fleet.nodes, why=death_words(dead)))
    running = [m for m in live if m.state == "running"]
    if len(running) >= fleet.nodes:
        _read_topology(fleet, compute, running)
        observations.fleet_move(
            fleet,
            FleetPhase.JOINING,
            said(_("waiting for the machines to join the scheduler")),
            outcome=_running(len(running), fleet),
        )
        return again(POLL_S)
    if clock.now() - fleet.phase_since > BOOT_LIMIT:
        text = _("only %(n)s of %(all)s machines run after %(minutes)s min")
        return fail(fleet, said(text, n=len(running), all=fleet.nodes, minutes=BOOT_LIMIT.seconds // 60))
    observations.fleet_say(fleet, _running(len(running), fleet))
    return again(poll_s(fleet))


def _read_topology(fleet: Fleet, compute: Compute, running: Sequence[v.Instance]) -> None:
    """Where the machines hang in the network. Worth knowing, but never a reason not to go on."""
    try:
        places = compute.topology([m.provider_id for m in running], fleet.placement_group)
    except ProviderError as error:
        text = _("AWS does not tell where the machines hang in the network: %(error)s")
        launches.fleet_condition(fleet, "NoTopology", said(text, error=str(error)))
        launches.fleet_topology_observe(fleet, {})
        return
    launches.fleet_condition(fleet, "NoTopology", "")
    launches.fleet_topology_observe(fleet, {p.provider_id: p.network_nodes for p in places})


def _join(fleet: Fleet, compute: Compute) -> Outcome:
    joined = _joined(fleet)
    if joined >= fleet.nodes:
        done = said(_("%(n)s nodes are in the scheduler"), n=joined)
        observations.fleet_move(fleet, FleetPhase.READY, done, outcome=done)
        return again(WATCH_S)
    if clock.now() - fleet.phase_since > BOOT_LIMIT:
        text = _("only %(n)s of %(all)s nodes joined the scheduler after %(minutes)s min")
        return fail(fleet, said(text, n=joined, all=fleet.nodes, minutes=BOOT_LIMIT.seconds // 60))
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
    """A ready fleet: machines may vanish or come back, its reservation end, a person want lost ones replaced."""
    machines = machines_of(compute, fleet)
    observe(fleet, machines)
    live = live_of(machines)
    missing = fleet.nodes - len(live)
    launches.fleet_lost(fleet, missing)
    launches.fleet_condition(fleet, "ReservationEnded", reservation_ended(fleet))
    joined = _joined(fleet)
    whole = missing <= 0 and joined >= fleet.nodes
    if fleet.phase == FleetPhase.READY and not whole:
        text = _("%(n)s of %(all)s machines exist, %(joined)s are in the scheduler")
        left = said(text, n=len(live), all=fleet.nodes, joined=joined)
        observations.fleet_move(fleet, FleetPhase.DEGRADED, left)
    elif fleet.phase == FleetPhase.DEGRADED and whole:
        observations.fleet_move(fleet, FleetPhase.READY, said(_("all machines are back")))
    if fleet.replace_asked_at is not None:
        return fleet_launch.replace(fleet, compute, missing)
    running = [m for m in live if m.state == "running"]
    stale = fleet.topology_read_at is None or clock.now() - fleet.topology_read_at > TOPOLOGY_AGAIN
    if stale and any(not n.network_nodes for n in live_nodes(fleet.cluster).values() if n.fleet_id == fleet.pk):
        _read_topology(fleet, compute, running)
    return again(WATCH_S)


def _delete(fleet: Fleet, compute: Compute) -> Outcome:
    """Reverse order, each thing until AWS says it is gone: machines, interfaces, templates, group."""
    if fleet.phase != FleetPhase.DELETING:
        observations.fleet_move(fleet, FleetPhase.DELETING, said(_("deletion has begun")))
    every = machines_of(compute, fleet)
    live = live_of(every)
    if live:
        compute.terminate([i.provider_id for i in live])
        observations.fleet_say(fleet, said(_("terminating %(n)s machines"), n=len(live)))
        return again(POLL_S)
    observe(fleet, every)
    stopping = [i for i in every if i.state == "shutting-down"]
    if stopping:
        observations.fleet_say(fleet, said(_("%(n)s machines are shutting down"), n=len(stopping)))
        return again(poll_s(fleet))
    left = [thing for thing in compute.owned() if thing.uid == fleet.uid]
    for thing in left:
        _remove(compute, thing)
    if left:
        observations.fleet_say(fleet, _removing(left))
        return again(NEXT_S)
    observations.fleet_move(
        fleet,
        FleetPhase.DELETED,
        said(_("AWS holds nothing of it any more")),
        ended_at=clock.now(),
        observed_generation=fleet.generation,
    )
    return DONE


def _removing(left: Sequence[v.Owned]) -> str:
    """What is being removed, in the order of the removal."""
    interfaces = sum(1 for thing in left if thing.kind == "network-interface")
    if interfaces:
        return said(_("removing %(n)s network interfaces"), n=interfaces)
    if any(thing.kind == "launch-template" for thing in left):
        return said(_("removing the launch template"))
    if any(thing.kind == "placement-group" for thing in left):
        return said(_("removing the placement group"))
    return said(_("something with the fleet's tag is still there; looking again"))


def _remove(compute: Compute, thing: v.Owned) -> None:
    """Ask for one removal; what is gone or still in use is seen at the next look."""
    remove: Callable[[str], None] | None = {
        "network-interface": compute.interface_delete,
        "launch-template": compute.launch_template_delete,
        "placement-group": compute.placement_group_delete,
    }.get(thing.kind)
    if remove is None:
        return
    try:
        remove(thing.provider_id)
    except (NotFound, Conflict):
        return


_STEPS: dict[str, Callable[[Fleet, Compute], Outcome]] = {
    FleetPhase.PENDING: _start,
    FleetPhase.PREFLIGHT: _preflight,
    FleetPhase.PLACEMENT_GROUP: _placement_group,
    FleetPhase.LAUNCH_TEMPLATE: _launch_template,
    FleetPhase.LAUNCHING: fleet_launch.launch,
    FleetPhase.WAITING_CAPACITY: fleet_launch.retry,
    FleetPhase.BOOTING: _boot,
    FleetPhase.JOINING: _join,
    FleetPhase.READY: _watch,
    FleetPhase.DEGRADED: _watch,
    FleetPhase.FAILED: _watch_failed,
}
_BEFORE_LAUNCH = frozenset({_preflight, _placement_group, _launch_template})
_UNDER_WAY = frozenset({_boot, _join, _delete})
