"""EC2: the sweep that looks both ways: things with our tag but no row, after a grace period, are removed."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.conf import settings

from apps.audit.services import event
from apps.clusters.selectors import fleet_by_uid
from apps.clusters.states import FleetPhase
from apps.connections.selectors import account_by_uid
from apps.connections.states import AccountPhase
from apps.core import clock
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.providers import values as v
from worker.providers.errors import Conflict, NotFound
from worker.providers.ports import Compute

log = structlog.get_logger(__name__)
PERIOD_S = 300.0
#: More orphaned machines than this at once look like a wrong database, not like leaks: a person must look.
BRAKE = 16


def sweep(uid: str) -> Outcome:
    """Remove what carries our uid tag and belongs to no live fleet of this portal."""
    account = account_by_uid(uid)
    if account is None or account.phase != AccountPhase.CONNECTED:
        return DONE
    if account.is_paused:
        return again(PERIOD_S)
    compute = doors.compute_for(account)
    orphans = [thing for thing in compute.owned() if is_orphan(thing)]
    machines = sum(1 for thing in orphans if thing.kind == "instance")
    if machines > BRAKE:
        event("account", account.uid, "SweepStopped", f"{machines} orphaned machines at once: nothing was removed")
        return again(PERIOD_S)
    for thing in orphans:
        if thing.kind == "network-interface" and thing.state == "in-use":
            continue  # it goes with its machine
        _remove(compute, thing)
        event(
            "account",
            account.uid,
            "OrphanRemoved",
            f"{thing.kind} {thing.provider_id} of {thing.uid} had no owner",
            data={"kind": thing.kind, "provider_id": thing.provider_id, "uid": thing.uid},
        )
    return again(PERIOD_S)


def is_orphan(thing: v.Owned) -> bool:
    """No fleet of ours wants it, and it is old enough that none is about to.

    Only uids of the form this portal gives are touched; another portal's database in the same
    account would have other uids, so a uid no row ever had is reported but left alone.
    """
    grace = timedelta(seconds=settings.CONFIG.sweep_grace_s)
    if thing.created_at is not None and clock.now() - thing.created_at < grace:
        return False
    fleet = fleet_by_uid(thing.uid)
    if fleet is None:
        log.warning("thing with an unknown uid", kind=thing.kind, provider_id=thing.provider_id, uid=thing.uid)
        return False
    if fleet.phase != FleetPhase.DELETED:
        return False
    return fleet.ended_at is None or clock.now() - fleet.ended_at > grace


def _remove(compute: Compute, thing: v.Owned) -> None:
    try:
        match thing.kind:
            case "instance":
                compute.terminate([thing.provider_id])
            case "network-interface":
                compute.interface_delete(thing.provider_id)
            case "launch-template":
                compute.launch_template_delete(thing.provider_id)
            case "placement-group":
                compute.placement_group_delete(thing.provider_id)
            case _:
                log.warning("unknown kind of orphan", kind=thing.kind)
    except (NotFound, Conflict) as error:
        log.info("orphan left for the next sweep", error=str(error))
