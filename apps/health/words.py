"""Names of metrics, GPU states, health inputs and kinds of events, in the language in force."""

from __future__ import annotations

from django.utils.translation import gettext as _

from apps.audit.models import Event
from apps.audit.timeline import Words
from apps.clusters.history import WORDS as CLUSTER_WORDS
from apps.health.states import SEVERITY_COLOURS


def metric_label(metric: str) -> str:
    """A heat map's metric."""
    return {
        "state": _("State"),
        "temperature": _("Temperature"),
        "sm": _("SM active"),
        "tensor": _("Tensor active"),
        "power": _("Power"),
        "memory": _("Memory"),
        "findings": _("Findings"),
    }[metric]


def state_label(level: str) -> str:
    """The state of one GPU."""
    return {
        "free": _("Free"),
        "used": _("In use"),
        "out": _("Out of service"),
        "warn": _("To watch"),
        "bad": _("Fatal finding"),
        "off": _("Off the bus"),
    }[level]


def missing_input(name: str) -> str:
    """What cannot be seen because an exporter does not export a field; the field's own name where it is not ours."""
    return {
        "DCGM_EXP_XID_ERRORS_COUNT": _("XID errors in the last minutes: faults that log an XID stay unseen"),
        "DCGM_FI_DEV_XID_ERRORS": _("the last XID"),
        "DCGM_FI_DEV_ROW_REMAP_PENDING": _("row remaps that wait for a reset"),
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": _("failed row remaps, NVIDIA's sign for replacement"),
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": _("the number of remapped rows"),
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": _("uncorrectable memory errors"),
        "DCGM_FI_PROF_SM_ACTIVE": _("SM activity"),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": _("tensor core activity"),
        "DCGM_FI_DEV_GPU_TEMP": _("temperature"),
        "DCGM_FI_DEV_POWER_USAGE": _("power"),
        "DCGM_FI_DEV_FB_USED": _("memory in use"),
        "DCGM_FI_DEV_FB_FREE": _("free memory"),
        "DCGM_FI_DEV_GPU_UTIL": _("utilization"),
    }.get(name, "")


def _opened(event: Event) -> tuple[str, str]:
    colour = SEVERITY_COLOURS.get(str(event.data.get("severity", "")), "warn")
    return colour, _("Finding: %(what)s") % {"what": event.text}


#: Kinds of events on a node: the scheduler's and those of GPU health.
NODE_WORDS: Words = {
    **CLUSTER_WORDS,
    "FindingOpened": _opened,
    "FindingJoined": lambda e: ("off", _("Missing GPU joined to %(title)s") % {"title": e.data.get("title", "")}),
    "FindingAnswered": lambda e: ("busy", _("Answered: %(what)s") % {"what": e.text}),
}
