"""Checks before a launch: of a fleet on its way, and of one that a person only thinks about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext_noop as _

from apps.catalog.selectors import type_by_name
from apps.clusters import fleet_observations as launches
from apps.clusters.models import Fleet
from apps.clusters.selectors import preflight_by_uid
from apps.clusters.states import PreflightPhase
from apps.core.said import said
from worker import doors
from worker.engine import DONE, Outcome
from worker.providers import values as v
from worker.providers.aws.layouts import interface_layout
from worker.providers.errors import InvalidRequest, ProviderError
from worker.providers.ports import Compute
from worker.reconcilers.fleet_parts import choices_of, reservation_ended, said_text, source_of


def plan_for(fleet: Fleet, instance_type: str, subnet_id: str) -> v.LaunchPlan | str:
    """One choice of a fleet as preflight checks it, or why it cannot be."""
    kind = type_by_name(instance_type)
    if kind is None:
        return said(_("%(type)s is no longer in the catalog"), type=instance_type)
    try:
        interfaces = interface_layout(instance_type)
    except InvalidRequest as error:
        return error.message
    return v.LaunchPlan(
        instance_type=instance_type,
        nodes=fleet.nodes,
        vcpus_per_node=kind.vcpus,
        subnet_id=subnet_id,
        security_group_ids=tuple(fleet.security_group_ids),
        image_id=fleet.image_id,
        interfaces=interfaces,
        source=source_of(fleet),
        architecture=kind.architecture,
    )


def checks_of(fleet: Fleet, compute: Compute) -> list[dict[str, Any]] | str:
    """All checks of the first choice, and one line for each further; a text says why none can be made."""
    shown: list[dict[str, Any]] = []
    for number, (instance_type, subnet_id) in enumerate(choices_of(fleet)):
        plan = plan_for(fleet, instance_type, subnet_id)
        if isinstance(plan, str):
            return plan
        checks = compute.preflight(plan)
        if number == 0:
            shown += [{"name": c.name, "passed": c.passed, "detail": said_text(c.text)} for c in checks]
        else:
            shown.append(_further(instance_type, subnet_id, checks))
    return shown


def _further(instance_type: str, subnet_id: str, checks: Sequence[v.Check]) -> dict[str, Any]:
    failed = next((c for c in checks if not c.passed), None)
    facts: dict[str, Any] = {"type": instance_type, "subnet": subnet_id}
    if failed is None:
        detail = said(_("%(type)s in %(subnet)s: all %(n)s checks passed."), n=len(checks), **facts)
    else:
        detail = said("%(type)s, %(subnet)s: %(detail)s", detail=said_text(failed.text), **facts)
    return {"name": "further-choice", "passed": failed is None, "detail": detail}


def run(uid: str) -> Outcome:
    """Make a check that someone asked for; it reads and creates nothing."""
    row = preflight_by_uid(uid)
    if row is None or row.phase != PreflightPhase.PENDING:
        return DONE
    account = row.cluster.account
    if account is None:
        launches.preflight_failed(row, said(_("the cluster has no cloud account")))
        return DONE
    if account.is_paused:
        text = said(_("account %(name)s is paused; nothing is asked there until it is resumed"), name=account.name)
        launches.preflight_failed(row, text)
        return DONE
    # A fleet that is never saved: the checks read its columns only.
    fleet = Fleet(cluster=row.cluster, reservation=row.reservation, name="check", **row.spec)
    if ended := reservation_ended(fleet):
        launches.preflight_done(row, [{"name": "reservation", "passed": False, "detail": ended}])
        return DONE
    try:
        checks = checks_of(fleet, doors.compute_for(account))
    except ProviderError as error:
        launches.preflight_failed(row, str(error))
        return DONE
    if isinstance(checks, str):
        launches.preflight_failed(row, checks)
    else:
        launches.preflight_done(row, checks)
    return DONE
