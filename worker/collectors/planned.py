"""What AWS has planned for machines, retirements, stops and reboots, onto the nodes they are for."""

from __future__ import annotations

from typing import Any

import structlog

from apps.clusters.fleet_observations import cloud_events_observe
from apps.connections.models import CloudAccount
from worker.providers.errors import ProviderError
from worker.providers.ports import Compute

log = structlog.get_logger(__name__)


def read(account: CloudAccount, compute: Compute) -> None:
    """One bulk read for the whole account; what cannot be read keeps what was known."""
    try:
        planned = compute.instance_events()
    except ProviderError as error:
        log.info("planned events were not read", error=str(error))
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for each in planned:
        found.setdefault(each.provider_id, []).append(
            {
                "code": each.code,
                "description": each.description,
                "not_before": each.not_before.isoformat() if each.not_before else "",
                "not_after": each.not_after.isoformat() if each.not_after else "",
            }
        )
    cloud_events_observe(account.pk, found)
