"""What the steps of a fleet share: its names and tags, its source, and what its machines look like."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.utils.translation import gettext_noop as _

from apps.capacity.states import ENDED
from apps.clusters import fleet_observations as launches
from apps.clusters import observations
from apps.clusters.models import Fleet
from apps.clusters.states import SOURCES_BLOCK, SOURCES_GROUPED, SOURCES_RESERVED, CapacitySource, FleetPhase
from apps.core import clock
from apps.core.said import said
from worker.engine import DONE, Outcome, again
from worker.providers import values as v
from worker.providers.aws.sources import placement_group_of
from worker.providers.ports import Compute
from worker.words import said_text as said_text

NEXT_S = 0.2
WATCH_S = 60.0
#: Machines that AWS still lists but that are on their way out.
ENDING = ("shutting-down", "terminated")
#: From here on machines that a block lost are not replaced: they would be taken back before they were of use.
LAST_REPLACEMENT = timedelta(minutes=75)


def poll_s(fleet: Fleet) -> float:
    """Seconds between two looks at machines: a large fleet's listing has many pages and boots no faster for them."""
    return max(2.0, fleet.nodes / 40)


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


def source_of(fleet: Fleet) -> v.LaunchSource:
    """Where the machines come from, as the provider wants it."""
    reserved = fleet.reservation is not None and fleet.source in SOURCES_RESERVED
    return v.LaunchSource(fleet.source, fleet.reservation.provider_id if reserved and fleet.reservation else "")


def placement_of(fleet: Fleet) -> str:
    """The placement group to launch into, empty for none.

    A block is placed close together already and takes no group; an ODCR takes the one it was made in, or none: a
    group of ours would leave part of it out of reach.
    """
    if fleet.source in SOURCES_GROUPED:
        return group_name(fleet)
    if fleet.source in SOURCES_BLOCK or fleet.reservation is None:
        return ""
    return placement_group_of(fleet.reservation.placement_group_arn)


def choices_of(fleet: Fleet) -> list[tuple[str, str]]:
    """(instance type, subnet) of each choice, the first one first; more than one only on demand."""
    if fleet.source != CapacitySource.ON_DEMAND:
        return [(fleet.instance_type, fleet.subnet_id)]
    types = dict.fromkeys([fleet.instance_type, *fleet.other_instance_types])
    subnets = dict.fromkeys([fleet.subnet_id, *fleet.other_subnet_ids])
    return [(kind, subnet) for kind in types for subnet in subnets]


def fail(fleet: Fleet, message: str) -> Outcome:
    """End the launch; what still runs goes on costing, and the sentence says so."""
    if fleet.observed_nodes:
        text = _("%(message)s. %(n)s machines still run and are billed; delete the fleet")
        message = said(text, message=message, n=fleet.observed_nodes)
    observations.fleet_move(fleet, FleetPhase.FAILED, message)
    return again(WATCH_S) if fleet.launched_at is not None else DONE


def machines_of(compute: Compute, fleet: Fleet) -> list[v.Instance]:
    """All machines with the fleet's tag, and those we knew that lost their tag; terminated ones included."""
    found = {m.provider_id: m for m in compute.instances({v.TAG_UID: fleet.uid})}
    missing = [i for i in launches.fleet_provider_ids(fleet) if i not in found]
    if missing:
        # Gone is what AWS says is terminated, not what a search by tag did not list.
        found |= {m.provider_id: m for m in compute.instances_by_id(missing)}
    return list(found.values())


def live_of(machines: Sequence[v.Instance]) -> list[v.Instance]:
    """Those that run or will."""
    return [m for m in machines if m.state not in ENDING]


def observe(fleet: Fleet, machines: Sequence[v.Instance], *, complete: bool = True) -> None:
    """Write what EC2 lists. Only a ``complete`` listing may tell that a machine is gone."""
    observations.fleet_nodes_observe(
        fleet,
        [
            observations.SeenInstance(
                name=m.name,
                provider_id=m.provider_id,
                private_ip=m.private_ip,
                zone_id=m.zone_id,
                is_running=m.state == "running",
                is_ending=m.state == "shutting-down",
                instance_type=m.instance_type,
                reservation_id=m.reservation_id,
                group_name=m.placement_group,
            )
            for m in machines
            if m.state != "terminated"
        ],
        complete=complete,
    )
    if complete:
        assert_reservation(fleet, live_of(machines))


def assert_reservation(fleet: Fleet, machines: Sequence[v.Instance]) -> None:
    """Whether every machine runs in the reservation it was meant for; otherwise both are paid."""
    if fleet.source not in SOURCES_RESERVED or not machines:
        return
    meant = fleet.reservation.provider_id if fleet.reservation else ""
    # An open launch without a named reservation may stand in any, but in one.
    wrong = [m for m in machines if (m.reservation_id != meant if meant else not m.reservation_id)]
    if not wrong:
        launches.fleet_condition(fleet, "WrongReservation", "")
        return
    text = _(
        "%(n)s of %(all)s machines do not run in reservation %(meant)s (%(first)s runs in %(other)s): you pay for "
        "them and for the reservation. Delete the fleet and launch it again once the reservation is free."
    )
    launches.fleet_condition(
        fleet,
        "WrongReservation",
        said(
            text,
            n=len(wrong),
            all=len(machines),
            meant=meant or "–",
            first=wrong[0].provider_id,
            other=wrong[0].reservation_id or said(_("none")),
        ),
    )


def reservation_ended(fleet: Fleet) -> str:
    """Why nothing can be launched into the fleet's reservation any more; empty while it can."""
    row = fleet.reservation
    if row is None or fleet.source not in SOURCES_RESERVED:
        return ""
    if row.phase in ENDED or (row.end_at is not None and row.end_at <= clock.now()):
        return said(
            _(
                "reservation %(name)s is over (%(state)s): nothing can be launched into it. Delete this fleet and "
                "make one with another source; the cluster's other fleets go on"
            ),
            name=str(row),
            state=row.observed_state or row.phase.lower(),
        )
    return ""


def reservation_waits(fleet: Fleet) -> tuple[str, float]:
    """What a reservation that has not begun is waited for, and for how many seconds at most; empty: it can be used."""
    row = fleet.reservation
    if row is None or fleet.source not in SOURCES_RESERVED or row.phase == "ACTIVE":
        return "", 0.0
    now = clock.now()
    if row.start_at is not None and row.start_at > now:
        text = _("waiting for reservation %(name)s, which begins on %(at)s UTC")
        wait = (row.start_at - now).total_seconds()
        return said(text, name=str(row), at=f"{row.start_at:%Y-%m-%d %H:%M}"), min(60.0, wait)
    text = _("waiting for reservation %(name)s to be delivered; AWS says %(state)s")
    return said(text, name=str(row), state=row.observed_state or row.phase.lower()), 15.0


def replacements_end_at(fleet: Fleet) -> datetime | None:
    """From when on lost machines are not replaced; None: always."""
    row = fleet.reservation
    if row is None or row.end_at is None or fleet.source not in SOURCES_BLOCK:
        return None
    return row.end_at - LAST_REPLACEMENT


#: What EC2's reasons for a machine that died while it started mean, and what to do.
DEATHS: dict[str, str] = {
    "Client.VolumeLimitExceeded": _(
        "the account may not have that much disk (%(code)s): ask AWS for more storage of this volume type, or use "
        "smaller root disks"
    ),
    "Client.InternalError": _(
        "EC2 could not attach the encrypted root disk (%(code)s): let the role and the instance use the key of the "
        "disk's encryption"
    ),
    "Client.InvalidSnapshot.NotFound": _("the image's snapshot is gone (%(code)s): choose another image"),
    "Server.InsufficientInstanceCapacity": _(
        "EC2 had no machine left when it came to start it (%(code)s): try again later or elsewhere"
    ),
    "Server.InternalError": _("EC2 broke while it started it (%(code)s): try again"),
    "Server.SpotInstanceTermination": _("Spot took it back (%(code)s): use another source for what must last"),
    "Client.UserInitiatedShutdown": _("someone terminated it (%(code)s)"),
    "Client.InstanceInitiatedShutdown": _("it shut itself down (%(code)s): look at its console output"),
}


def death_words(machines: Sequence[v.Instance]) -> str:
    """Why machines died, by the first reason EC2 gave."""
    for m in machines:
        code = m.state_reason_code
        if code in DEATHS:
            return said(DEATHS[code], code=m.state_reason or code)
        if m.state_reason:
            return m.state_reason
    return said(_("EC2 gave no reason"))
