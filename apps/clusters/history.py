"""What happened to clusters, fleets and nodes, in words; and what to do about a step that failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.audit.models import Event
from apps.audit.timeline import Words
from apps.clusters.forms import ClusterForm
from apps.clusters.models import FleetStep
from apps.clusters.states import (
    CLUSTER_COLOURS,
    FLEET_COLOURS,
    GROUP_COLOURS,
    NODE_COLOURS,
    ClusterPhase,
    FleetPhase,
    GroupPhase,
    NodePhase,
    StepState,
)


def _after(event: Event, mark: str) -> str:
    """What follows ``mark`` in the event's English text: a name that needs no translation."""
    return event.text.partition(mark)[2]


def _fields(event: Event) -> str:
    """The changed columns by the names the form gives them."""
    fields = ClusterForm.base_fields
    return ", ".join(str(fields[n].label) if n in fields else n for n in event.data.get("fields", []))


def _fleet_phase(event: Event) -> tuple[str, str]:
    phase = str(event.data.get("phase", ""))
    label = str(FleetPhase(phase).label) if phase in FleetPhase.values else phase
    colour = FLEET_COLOURS.get(phase, "wait")
    detail = event.text if event.text and event.text not in (phase, label) else ""
    return colour, f"{label}: {detail}" if detail else label


def _node_phase(event: Event) -> tuple[str, str]:
    phase = str(event.data.get("phase", ""))
    label = str(NodePhase(phase).label) if phase in NodePhase.values else phase
    reason = str(event.data.get("reason", ""))
    return NODE_COLOURS.get(phase, "wait"), f"{label}: {reason}" if reason else label


def _kept_phase(event: Event) -> tuple[str, str]:
    """A phase of a cluster or group that AWS keeps."""
    labels: dict[str, str] = {p.value: str(p.label) for p in (*ClusterPhase, *GroupPhase)}
    phase = str(event.data.get("phase", ""))
    label = labels.get(phase, phase)
    detail = str(event.text) if event.text and str(event.text) not in (phase, label) else ""
    return {**CLUSTER_COLOURS, **GROUP_COLOURS}.get(phase, "wait"), f"{label}: {detail}" if detail else label


def _node_action(event: Event) -> str:
    verb = _("Reboot") if event.data.get("verb") == "reboot" else _("Replacement")
    return _("%(verb)s: %(what)s") % {"verb": verb, "what": event.text}


def _nodes_asked(event: Event) -> tuple[str, str]:
    count = int(event.data.get("nodes") or 0)
    facts = {"n": count, "who": event.data.get("by", ""), "why": event.data.get("reason", "")}
    if event.data.get("verb") == "reboot":
        text = ngettext("Reboot of %(n)s node", "Reboot of %(n)s nodes", count)
    else:
        text = ngettext("Replacement of %(n)s node", "Replacement of %(n)s nodes", count)
    return "busy", f"{text % facts}: " + _("%(why)s (asked for by %(who)s)") % facts


def _note(event: Event, sentence: str) -> str:
    """The sentence, with the worker's own note where it says more than that the scheduler was told."""
    return sentence if event.text.endswith("the scheduler was told") else f"{sentence} ({event.text})"


#: Kinds of events of this app.
WORDS: Words = {
    "ClusterCreated": lambda e: (
        "wait",
        _("Added to the portal by %(who)s") % {"who": _after(e, "created by ") or _after(e, "adopted by ")},
    ),
    "ClusterRetryAsked": lambda e: ("busy", _("Another try asked for by %(who)s") % {"who": _after(e, "for by ")}),
    "NodesAsked": _nodes_asked,
    "GroupCreated": lambda e: (
        "wait",
        _("%(what)s asked for by %(who)s") % {"what": e.text.partition(" asked for")[0], "who": _after(e, "for by ")},
    ),
    "GroupResized": lambda e: (
        "busy",
        _("From %(a)s to %(b)s nodes, asked for by %(who)s")
        % {"a": e.data.get("from"), "b": e.data.get("to"), "who": _after(e, "for by ")},
    ),
    "GroupDeleteRequested": lambda e: ("warn", _("Deletion asked for by %(who)s") % {"who": _after(e, "for by ")}),
    "ClusterChanged": lambda e: ("wait", _("Changed: %(fields)s") % {"fields": _fields(e)}),
    "ClusterDeleteRequested": lambda e: ("wait", _("Removal asked for by %(who)s") % {"who": _after(e, "for by ")}),
    "ClusterReady": lambda e: ("good", _("The scheduler answers: %(what)s") % {"what": e.text}),
    "ClusterUnreachable": lambda e: ("bad", _("The scheduler does not answer: %(error)s") % {"error": e.text}),
    "FleetCreated": lambda e: (
        "wait",
        _("%(what)s asked for by %(who)s") % {"what": e.text.partition(" asked for")[0], "who": _after(e, "for by ")},
    ),
    "FleetPhase": _fleet_phase,
    "FleetDeleteRequested": lambda e: ("warn", _("Deletion asked for by %(who)s") % {"who": _after(e, "for by ")}),
    "FleetChosen": lambda e: ("busy", _("Of the choices: %(what)s") % {"what": e.text}),
    "FleetCondition": lambda e: ("bad", str(e.text)),
    "FleetConditionOver": lambda e: ("good", _("No longer so: %(what)s") % {"what": e.text}),
    "FleetReplaceAsked": lambda e: ("busy", _("Replacement asked for by %(who)s") % {"who": _after(e, "for by ")}),
    "FleetReplaced": lambda e: ("busy", str(e.text)),
    "NodePlanned": lambda e: ("warn", _("AWS plans: %(what)s") % {"what": e.text}),
    "NodeJoined": lambda e: ("good", _("Joined %(cluster)s") % {"cluster": _after(e, " joined ")}),
    "NodeGone": lambda e: ("off", _("The machine is gone")),
    "NodePhase": _node_phase,
    "ClusterPhase": _kept_phase,
    "GroupPhase": _kept_phase,
    "NodeActionTaken": lambda e: ("busy", _node_action(e)),
    "NodeActionRefused": lambda e: ("bad", _node_action(e)),
    "EvictionRequested": lambda e: (
        "warn",
        _("Its pods are ended, each with %(s)s s to save its state") % {"s": e.data.get("grace_s", "")},
    ),
    "Evicted": lambda e: ("good", _("No pod is left on it")),
    "KubernetesSettingsChanged": lambda e: ("wait", _("Settings of Kubernetes changed")),
    "QueuesWritten": lambda e: ("good", _("Written to Kueue: %(what)s") % {"what": e.text}),
    "QueuesRepaired": lambda e: ("warn", _("Put right in Kueue: %(what)s") % {"what": e.text}),
    "QueuesDiffer": lambda e: ("warn", _("Kueue differs, nothing is written: %(what)s") % {"what": e.text}),
    "DrainRequested": lambda e: ("warn", _("Drain asked for: %(reason)s") % {"reason": e.data.get("reason", e.text)}),
    "ResumeRequested": lambda e: ("busy", _("Return to service asked for by %(who)s") % {"who": _after(e, " by ")}),
    "DrainSent": lambda e: ("busy", _note(e, _("The scheduler was told to drain it"))),
    "ResumeSent": lambda e: ("busy", _note(e, _("The scheduler was told to use it again"))),
    "DrainUnsupported": lambda e: ("bad", _("The scheduler cannot be told from here: %(what)s") % {"what": e.text}),
}

#: Preflight checks by the worker's name for them.
_CHECKS: Mapping[str, Callable[[], str]] = {
    "subnet": lambda: _("Subnet"),
    "instance-type-offered": lambda: _("Offered in the zone"),
    "interfaces": lambda: _("Network interfaces"),
    "subnet-addresses": lambda: _("Free addresses in the subnet"),
    "security-groups": lambda: _("Security groups"),
    "image": lambda: _("Image"),
    "reservation": lambda: _("Reservation"),
    "vcpu-quota": lambda: _("vCPU quota of the account"),
    "permission-to-launch": lambda: _("Permission to launch"),
    "further-choice": lambda: _("Another choice"),
}


def check_label(name: str) -> str:
    """A preflight check's name in the language in force."""
    found = _CHECKS.get(name)
    return found() if found else name


def planned_checks() -> list[str]:
    """What preflight will look at, in its order."""
    return [label() for name, label in _CHECKS.items() if name != "further-choice"]


def step_advice(step: FleetStep) -> str:
    """What to do about a failed step; empty while nothing failed."""
    if step.state != StepState.FAILED:
        return ""
    match step.name:
        case FleetPhase.PREFLIGHT:
            return _(
                "Nothing was started and nothing is billed. Mend what is marked, delete this fleet, make a new one."
            )
        case FleetPhase.LAUNCHING:
            return _("No machine was started. Try another zone or type, or reserve capacity; delete this fleet first.")
        case FleetPhase.BOOTING | FleetPhase.JOINING:
            return _("Its machines may be billed: delete the fleet. Look at their console output for the reason.")
        case _:
            return _("Delete the fleet; what was made so far is removed.")
