"""What a GPU-hour costs on the nodes a job may land on."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from django.utils.translation import gettext_noop

from apps.capacity.states import PREPAID
from apps.catalog.selectors import gpu_price
from apps.clusters.models import Cluster, Node
from apps.core.said import said


def price_on(cluster: Cluster, nodes: Sequence[Node], gpu_type: str) -> tuple[Decimal, str] | None:
    """(USD a GPU-hour, where that comes from) of the dearest of these nodes: the scheduler may choose any that fits.

    None where no price is known. ``gpu_type`` counts where there are no nodes.
    """
    region = cluster.account.region if cluster.account is not None else ""
    prepaid = {n.pk: p for n in nodes if (p := _block_price(n)) is not None}
    kinds = {(n.instance_type, n.gpu_type) for n in nodes if n.pk not in prepaid}
    if not kinds and not prepaid:
        kinds = {("", gpu_type)}
    prices = [found for kind in sorted(kinds) if (found := gpu_price(*kind, region)) is not None]
    return max([*prices, *prepaid.values()], default=None)


def _block_price(node: Node) -> tuple[Decimal, str] | None:
    """The rate of the block that a node belongs to and where it comes from; None for any other node."""
    reservation = node.reserved_in
    if reservation is None or reservation.kind not in PREPAID or reservation.usd_per_hour is None or not node.gpus:
        return None
    words = said(gettext_noop("the upfront price of %(name)s, spread over its hours"), name=str(reservation))
    return (reservation.usd_per_hour / node.gpus).quantize(Decimal("0.000001")), words
