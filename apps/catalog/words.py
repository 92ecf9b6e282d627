"""Facts of an instance type in words."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.catalog.models import InstanceType


def efa_summary(kind: InstanceType) -> str:
    """Generation, bandwidth and the interfaces of one node as a launch template lays them out; empty without EFA.

    On plain EC2 card 0 carries the node's one address and every EFA is ``efa-only``; the EFA on card 0,
    where there is one, is its second device.
    """
    if not kind.efa_interfaces:
        return ""
    head = f"EFAv{kind.efa_generation}, {kind.efa_gbps:,} Gbps" if kind.efa_generation else f"{kind.efa_gbps:,} Gbps"
    count = ngettext("%(n)s EFA interface", "%(n)s EFA interfaces", kind.efa_interfaces) % {"n": kind.efa_interfaces}
    if kind.name.startswith("p6e-gb200"):
        place = _("on the odd cards (200 Gbps each, or 400 on cards 1, 5, 9 and 13); card 0 is ENA")
    elif kind.efa_cards_start:
        last = kind.efa_cards_start + kind.efa_interfaces - 1
        place = _("on cards %(first)s–%(last)s; card 0 is ENA only") % {"first": kind.efa_cards_start, "last": last}
    elif kind.efa_interfaces > 1:
        place = _("on cards 0–%(last)s; ENA is the first device of card 0") % {"last": kind.efa_interfaces - 1}
    else:
        place = _("on card 0, beside ENA")
    return f"{head}; {count} {place}"


def efa_place(kind: InstanceType) -> str:
    """How many EFA interfaces and on which cards, short enough for a table; empty without EFA."""
    count = kind.efa_interfaces
    if not count:
        return ""
    if kind.name.startswith("p6e-gb200"):
        return _("%(n)s on the odd cards") % {"n": count}
    if count == 1:
        return _("1 on card %(card)s") % {"card": kind.efa_cards_start}
    last = kind.efa_cards_start + count - 1
    return _("%(n)s on cards %(first)s–%(last)s") % {"n": count, "first": kind.efa_cards_start, "last": last}
