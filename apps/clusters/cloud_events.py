"""What AWS has planned for a machine, in words, with what a person does about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from apps.clusters.models import Node
from apps.core import clock

#: Nearer than this it is no longer something for tomorrow.
SOON = timedelta(hours=48)


@dataclass(frozen=True)
class Planned:
    """One event: what happens, AWS's own words, when at the earliest and at the latest, and what to do."""

    code: str
    title: str
    detail: str
    not_before: datetime | None
    not_after: datetime | None
    advice: str
    colour: str


def _titles() -> Mapping[str, str]:
    return {
        "instance-retirement": _("Retirement: AWS takes the machine away for good"),
        "instance-stop": _("Stop: AWS stops the machine"),
        "instance-reboot": _("Reboot of the machine"),
        "system-reboot": _("Reboot of its host"),
        "system-maintenance": _("Maintenance of its host or network"),
    }


def _gone() -> str:
    return _(
        "Drain the node now: its jobs end or go on elsewhere from their checkpoint. Once it is gone, its fleet's page "
        "offers to replace the lost machine. What lies on its local disks is lost: copy what is needed before."
    )


def _reboots() -> str:
    return _(
        "Drain the node before that instant and return it to service once Slurm sees it again; a job that still runs "
        "then is ended by the reboot."
    )


def _maintained() -> str:
    return _(
        "The network or the host may fail for minutes. Drain the node before it if a job across several nodes must not "
        "be lost; otherwise let it be."
    )


_ADVICE: Mapping[str, Callable[[], str]] = {
    "instance-retirement": _gone,
    "instance-stop": _gone,
    "instance-reboot": _reboots,
    "system-reboot": _reboots,
    "system-maintenance": _maintained,
}
_GRAVE = frozenset({"instance-retirement", "instance-stop"})


def planned_for(node: Node) -> list[Planned]:
    """What is planned for a node, the soonest first; a code without words of ours is shown in AWS's."""
    found = []
    for each in node.cloud_events:
        code = str(each.get("code", ""))
        at, until = (parse_datetime(str(each.get(name) or "")) for name in ("not_before", "not_after"))
        is_near = at is not None and at - clock.now() < SOON
        found.append(
            Planned(
                code=code,
                title=_titles().get(code, code),
                detail=str(each.get("description", "")),
                not_before=at,
                not_after=until,
                advice=_ADVICE.get(code, _maintained)(),
                colour="bad" if code in _GRAVE and is_near else "warn",
            )
        )
    return sorted(found, key=lambda p: (p.not_before is None, p.not_before or clock.now()))
