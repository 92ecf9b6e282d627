"""The calls that make a fleet's machines: batches with their own tokens, all of them or none, and replacements.

A batch's attempt and token are committed before its call. One that was asked and of which nobody saw the end is looked
for by its token before the same token is asked again. A batch that is refused takes the others down with it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils.translation import gettext_noop as _

from apps.catalog.selectors import price_words, type_by_name
from apps.clusters import fleet_observations as launches
from apps.clusters import observations
from apps.clusters.models import Fleet, FleetBatch
from apps.clusters.states import SOURCES_BLOCK, BatchPhase, FleetPhase
from apps.core import clock
from apps.core.said import said
from worker.engine import Outcome, again
from worker.providers import values as v
from worker.providers.aws.errors import zones_named
from worker.providers.errors import (
    AccessDenied,
    Conflict,
    InsufficientCapacity,
    InvalidRequest,
    NotFound,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unavailable,
    Unsupported,
)
from worker.providers.ports import Compute
from worker.reconcilers.fleet_parts import (
    WATCH_S,
    choices_of,
    fail,
    live_of,
    machines_of,
    observe,
    placement_of,
    poll_s,
    replacements_end_at,
    reservation_ended,
    tags_of,
)

#: AWS advises against more machines in one RunInstances.
BATCH_NODES = 100
POLL_S = 2.0
#: A launch that waits for capacity tries again after so many seconds, the last one for ever.
CAPACITY_BACKOFF_S = (60, 120, 240, 300, 600)
#: A block cleans the slot of a lost machine for several minutes; until then a refusal is no lack of capacity.
BLOCK_CLEANS = timedelta(minutes=15)
BLOCK_CLEANS_RETRY_S = 300.0
#: A block that AWS has not delivered to the minute, or has already ended: waiting or the end, never a fault.
_NOT_YET = frozenset({"InvalidCapacityReservationState", "InvalidCapacityReservationState.NotActive"})


def asking(fleet: Fleet, batch: FleetBatch | None = None, batches: int = 1) -> str:
    """What is being asked for."""
    if batch is None or batches == 1:
        return said(_("asking EC2 for %(n)s × %(type)s, all or nothing"), n=fleet.nodes, type=fleet.instance_type)
    text = _("asking EC2 for batch %(k)s of %(batches)s: %(n)s × %(type)s")
    return said(text, k=batch.ordinal + 1, batches=batches, n=batch.nodes, type=fleet.instance_type)


def sizes_of(fleet: Fleet) -> list[int]:
    """Machines of each batch. CreateFleet, which decides between choices, takes all at once."""
    if len(choices_of(fleet)) > 1:
        return [fleet.nodes]
    whole, rest = divmod(fleet.nodes, BATCH_NODES)
    return [BATCH_NODES] * whole + ([rest] if rest else [])


def launch(fleet: Fleet, compute: Compute) -> Outcome:
    """One batch a visit; when all are there the machines boot."""
    batches = launches.fleet_batches(fleet, sizes_of(fleet))
    refused = next((b for b in batches if b.phase == BatchPhase.REFUSED), None)
    if refused is not None:
        return _take_down(fleet, compute, refused, len(batches))
    for batch in batches:
        if batch.phase != BatchPhase.LAUNCHED:
            return _ask(fleet, compute, batch, len(batches))
    return _launched(fleet, sum(b.nodes for b in batches))


def _ask(fleet: Fleet, compute: Compute, batch: FleetBatch, batches: int) -> Outcome:
    if batch.phase == BatchPhase.ASKED and _found(fleet, compute, batch):
        return again(0)
    if batch.phase == BatchPhase.WAITING:
        launches.batch_ask(fleet, batch)
    observations.fleet_say(fleet, asking(fleet, batch, batches))
    try:
        made = _call(fleet, compute, batch)
    except InsufficientCapacity as error:
        launches.batch_refused(batch, str(error), is_final=False)
        return _take_down(fleet, compute, batch, batches)
    except (QuotaExceeded, InvalidRequest, AccessDenied, Unsupported, NotFound) as error:
        launches.batch_refused(batch, refusal_words(error), is_final=True)
        return _take_down(fleet, compute, batch, batches)
    except Conflict as error:
        if error.code in _NOT_YET:
            # The reservation is not active, or not any more: no other token would change that.
            launches.batch_refused(batch, refusal_words(error), is_final=bool(reservation_ended(fleet)))
            return _take_down(fleet, compute, batch, batches)
        # The token was used with other parameters, or its machines were terminated: nothing of this batch
        # lives (we just looked), so the next attempt gets a new token.
        launches.batch_wait(batch)
        observations.fleet_say(fleet, said(_("%(error)s; trying with a new token"), error=str(error)))
        return again(POLL_S)
    except Throttled as error:
        observations.fleet_say(fleet, said(_("AWS asks us to slow down (%(error)s)"), error=str(error)))
        return again(5.0)
    except Unavailable as error:
        # In doubt: the same token is asked again, which returns the machines if they were made.
        text = _("no clear answer (%(error)s); asking again with the same token")
        observations.fleet_say(fleet, said(text, error=str(error)))
        return again(POLL_S)
    observe(fleet, made, complete=False)
    launches.batch_launched(batch)
    return again(0)


def attempt_tag(batch: FleetBatch) -> str:
    """Which call made a machine: each batch counts its attempts from one, so its own number belongs to the tag."""
    return f"{batch.ordinal}.{batch.attempt}" if batch.ordinal else str(batch.attempt)


def _found(fleet: Fleet, compute: Compute, batch: FleetBatch) -> bool:
    """Whether the look after a doubt settled a batch: its machines are there, or were and are gone."""
    everything = compute.instances({v.TAG_UID: fleet.uid})
    if len(choices_of(fleet)) > 1:
        mine = [m for m in everything if m.tags.get(v.TAG_ATTEMPT) == attempt_tag(batch)]
    else:
        mine = [m for m in everything if m.client_token == batch.client_token]
    if not mine:
        return False
    live = live_of(mine)
    if live:
        observe(fleet, mine, complete=False)
        launches.batch_launched(batch)
    else:
        launches.batch_wait(batch)
    return True


def _call(fleet: Fleet, compute: Compute, batch: FleetBatch) -> list[v.Instance]:
    tags = {**tags_of(fleet), v.TAG_ATTEMPT: attempt_tag(batch)}
    if len(choices_of(fleet)) > 1:
        return _call_choice(fleet, compute, batch, tags)
    request = v.LaunchRequest(
        launch_template_id=fleet.launch_template_id,
        launch_template_version=fleet.launch_template_version,
        count=batch.nodes,
        client_token=batch.client_token,
        placement_group=placement_of(fleet),
        tags=tags,
    )
    return list(compute.launch(request))


def _call_choice(fleet: Fleet, compute: Compute, batch: FleetBatch, tags: dict[str, str]) -> list[v.Instance]:
    templates = tuple(
        v.LaunchTemplate(provider_id=t["id"], name="", version=t["version"], tags={}) for t in fleet.templates
    )
    request = v.ChoiceRequest(
        templates=templates,
        count=batch.nodes,
        client_token=batch.client_token,
        placement_group=placement_of(fleet),
        tags=tags,
    )
    answer = compute.launch_choice(request)
    made = list(compute.instances_by_id(answer.instance_ids))
    taken = made[0].instance_type if made else fleet.instance_type
    kind = type_by_name(taken)
    account = fleet.cluster.account
    launches.fleet_chosen(
        fleet,
        provider_id=answer.provider_id,
        instance_type=taken,
        usd_per_hour=kind.usd_per_hour if kind else fleet.usd_per_hour,
        price_source=price_words(kind, account.region if account else "") if kind else fleet.price_source,
        refusals=answer.refusals,
    )
    return made


def refusal_words(error: ProviderError) -> str:
    """What was refused and what to do."""
    match error:
        case AccessDenied():
            text = _(
                "the account's role may not do this: %(error)s. Give it the rights of the policy document and launch "
                "again"
            )
        case QuotaExceeded():
            text = _("a limit of the account forbids it: %(error)s. Ask AWS for more or plan fewer nodes")
        case _:
            text = _("AWS refuses the launch: %(error)s")
    return said(text, error=str(error))


def _take_down(fleet: Fleet, compute: Compute, refused: FleetBatch, batches: int) -> Outcome:
    """All or nothing over several calls: what other batches made is terminated before anything else happens."""
    if batches > 1:
        machines = machines_of(compute, fleet)
        live = live_of(machines)
        if live:
            compute.terminate([m.provider_id for m in live])
            observe(fleet, machines, complete=False)
            text = _("batch %(k)s of %(batches)s was refused (%(why)s); terminating the %(n)s machines of the others")
            why = said(text, k=refused.ordinal + 1, batches=batches, why=refused.message, n=len(live))
            observations.fleet_say(fleet, why)
            return again(POLL_S)
        ending = [m for m in machines if m.state == "shutting-down"]
        if ending:
            observations.fleet_say(fleet, said(_("%(n)s machines are shutting down"), n=len(ending)))
            return again(poll_s(fleet))
        observe(fleet, machines)
    if refused.is_final:
        if ended := reservation_ended(fleet):
            launches.fleet_condition(fleet, "ReservationEnded", ended)
            return fail(fleet, ended)
        return fail(fleet, refused.message)
    return wait_for_capacity(fleet, refused.message)


def wait_for_capacity(fleet: Fleet, message: str) -> Outcome:
    """A state, not an error: minutes between tries, and the zones that AWS names."""
    wait = CAPACITY_BACKOFF_S[min(fleet.capacity_refusals, len(CAPACITY_BACKOFF_S) - 1)]
    columns: dict[str, Any] = {
        "capacity_refusals": fleet.capacity_refusals + 1,
        "next_try_at": clock.now() + timedelta(seconds=wait),
        "zones_named": list(zones_named(str(message))),
    }
    observations.fleet_move(fleet, FleetPhase.WAITING_CAPACITY, message, **columns)
    return again(wait)


def retry(fleet: Fleet, compute: Compute) -> Outcome:
    """The next try of a launch that waited: with new tokens, for AWS remembers those of refused calls differently."""
    if ended := reservation_ended(fleet):
        launches.fleet_condition(fleet, "ReservationEnded", ended)
        return fail(fleet, ended)
    now = clock.now()
    if fleet.next_try_at is not None and fleet.next_try_at > now:
        return again((fleet.next_try_at - now).total_seconds())
    launches.fleet_launch_again(fleet, said(_("trying again")))
    return again(0)


def _launched(fleet: Fleet, count: int) -> Outcome:
    observations.fleet_move(
        fleet,
        FleetPhase.BOOTING,
        said(_("waiting for %(n)s machines to run"), n=count),
        outcome=said(_("%(n)s machines launched"), n=count),
        launched_at=clock.now(),
        next_try_at=None,
        zones_named=[],
    )
    return again(poll_s(fleet))


# --- replacements ------------------------------------------------------------------------------------


def replace(fleet: Fleet, compute: Compute, missing: int) -> Outcome:
    """One step towards machines in the place of lost ones, which a person asked for."""
    last = replacements_end_at(fleet)
    ended = reservation_ended(fleet)
    if ended or (last is not None and clock.now() >= last):
        text = _("lost machines are not replaced any more: the block ends and EC2 would take them back at once")
        launches.fleet_replaced(fleet, ended or said(text))
        return again(WATCH_S)
    batch = launches.replacement_batch(fleet, missing)
    if batch is None:
        launches.fleet_replaced(fleet, said(_("nothing is left to replace")))
        return again(WATCH_S)
    now = clock.now()
    if batch.phase == BatchPhase.WAITING and fleet.next_try_at is not None and fleet.next_try_at > now:
        return again(min(WATCH_S, (fleet.next_try_at - now).total_seconds()))
    if batch.phase == BatchPhase.ASKED and _found(fleet, compute, batch):
        return again(0)
    if batch.phase == BatchPhase.WAITING:
        launches.batch_ask(fleet, batch)
    try:
        made = _call(fleet, compute, batch)
    except (InsufficientCapacity, Throttled) as error:
        return _replacement_waits(fleet, batch, error)
    except Conflict as error:
        if error.code in _NOT_YET:
            return _replacement_waits(fleet, batch, error)
        launches.batch_wait(batch)
        return again(POLL_S)
    except Unavailable:
        return again(POLL_S)
    except (QuotaExceeded, InvalidRequest, AccessDenied, Unsupported, NotFound) as error:
        launches.batch_refused(batch, refusal_words(error), is_final=True)
        launches.fleet_replaced(fleet, refusal_words(error))
        return again(WATCH_S)
    observe(fleet, made, complete=False)
    launches.batch_launched(batch)
    launches.fleet_replaced(fleet, said(_("%(n)s machines launched in the place of lost ones"), n=len(made)))
    return again(poll_s(fleet))


def _replacement_waits(fleet: Fleet, batch: FleetBatch, error: ProviderError) -> Outcome:
    lost_at = fleet.lost_at or clock.now()
    if fleet.source in SOURCES_BLOCK and clock.now() - lost_at < BLOCK_CLEANS:
        wait = BLOCK_CLEANS_RETRY_S
        text = _(
            "the block is still cleaning the place of the lost machine, which takes up to 15 min; trying again in 5"
        )
        message = said(text)
    else:
        wait = CAPACITY_BACKOFF_S[min(max(0, batch.attempt - 1), len(CAPACITY_BACKOFF_S) - 1)]
        message = said(_("no capacity for the replacement now: %(error)s"), error=str(error))
    launches.batch_wait(batch)
    observations.fleet_say(fleet, message, next_try_at=clock.now() + timedelta(seconds=wait))
    return again(wait)
