"""Puts a fault into the sandbox: checks what is asked for, does it, and says in one sentence what was done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sandbox.control import kube_faults
from sandbox.world import FAULT_KINDS

if TYPE_CHECKING:
    # The command line reads this module's tables; it must not wait for moto to be imported.
    from sandbox.control.stack import Stack

SERVICES: Final = ("aws", "slurm", "kubernetes")

#: How a server error looks, by service; "error" is the service's own words for it.
SHAPES: Final = {
    "aws": ("error", "html", "html-ok", "cut", "lost-reply"),
    "slurm": ("error", "html", "empty", "truncated", "errors-in-200", "lost-reply"),
    "kubernetes": ("error", "unavailable", "html", "cut", "lost-reply"),
}

#: Which keys each kind takes.
FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "xid": frozenset({"node", "code", "gpu", "kill"}),
    "node-loss": frozenset({"node"}),
    "torn-checkpoint": frozenset({"job"}),
    "no-capacity": frozenset({"type", "zone", "times", "seconds"}),
    "slow-api": frozenset({"service", "operation", "delay", "times", "seconds"}),
    "throttling": frozenset({"service", "operation", "times", "seconds"}),
    "access-denied": frozenset({"service", "operation", "times", "seconds"}),
    "server-error": frozenset({"service", "operation", "shape", "times", "seconds"}),
    "export-lag": frozenset({"times", "seconds"}),
    "storage-fails": frozenset({"what", "times", "seconds"}),
    "partial-start": frozenset({"type", "count", "reason", "times", "seconds"}),
    "wrong-reservation": frozenset({"type", "times", "seconds"}),
    "planned-event": frozenset({"node", "code", "hours"}),
    "payment-failed": frozenset({"times", "seconds"}),
    "cluster-fails": frozenset({"what", "times", "seconds"}),
    "group-no-capacity": frozenset({"group", "times", "seconds"}),
    "lifecycle-fails": frozenset({"times", "seconds"}),
    "unauthorized": frozenset({"service", "operation", "times", "seconds"}),
    "watch-cut": frozenset({"service", "operation", "every", "times", "seconds"}),
    "history-lost": frozenset({"service", "operation", "times", "seconds"}),
    **kube_faults.FIELDS,
}

#: What AWS may plan for a machine, and reasons for which machines die while they start.
PLANNED: Final = ("instance-retirement", "instance-stop", "instance-reboot", "system-reboot", "system-maintenance")
REASONS: Final = (
    "Client.VolumeLimitExceeded",
    "Client.InternalError",
    "Client.InvalidSnapshot.NotFound",
    "Server.InsufficientInstanceCapacity",
    "Server.InternalError",
)

#: What of FSx can be told to fail.
STORAGE: Final = ("file-system", "association")

#: What of a cluster can be told to fail.
CLUSTERS: Final = ("pcs-cluster", "pcs-group", "pcs-queue", "eks-cluster", "parallelcluster")

#: What Kubernetes alone does.
_KUBERNETES: Final = {
    "unauthorized": "does not know our token",
    "watch-cut": "cuts each watch",
    "history-lost": "has lost its history",
}

#: A jump further than a block's longest life shows nothing new.
MOST_HOURS_AHEAD: Final = 24 * 183

_WORD: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")


class BadFault(Exception):
    """What was asked for makes no sense; the message names the key."""


class NoSuchThing(Exception):
    """The node, GPU or checkpoint that the fault is for does not exist now."""


@dataclass(frozen=True)
class Done:
    """What happened: a sentence, and the uid of the fault where it stays in force."""

    sentence: str
    uid: str | None = None


def inject(stack: Stack, asked: Mapping[str, Any]) -> Done:
    """Do what ``asked`` says: its ``kind`` and the keys of FIELDS. Raises ``BadFault`` or ``NoSuchThing``."""
    kind = str(asked.get("kind") or "")
    if kind not in FIELDS:
        raise BadFault(f"kind: {kind!r} is no fault; one of {', '.join(FAULT_KINDS)}")
    given = {key: value for key, value in asked.items() if key != "kind" and value not in (None, "")}
    surplus = sorted(set(given) - FIELDS[kind])
    if surplus:
        raise BadFault(f"{surplus[0]}: {kind} takes only {', '.join(sorted(FIELDS[kind]))}")
    if kind == "xid":
        done = _xid(stack, given)
    elif kind == "node-loss":
        done = _node_loss(stack, given)
    elif kind == "node-back":
        done = _node_back(stack, given)
    elif kind in ("pod-oom", "pod-evict", "pod-preempt"):
        try:
            done = Done(kube_faults.at_once(stack, kind, given))
        except kube_faults.Wrong as error:
            raise BadFault(str(error)) from None
        except kube_faults.Missing as error:
            raise NoSuchThing(str(error)) from None
    elif kind == "planned-event":
        done = _planned_event(stack, given)
    elif kind == "torn-checkpoint":
        done = _torn_checkpoint(stack, given)
    else:
        done = _lasting(stack, kind, given)
    stack.note(done.sentence)
    return done


def clear(stack: Stack, uid: str) -> Done:
    """End one fault in force, or with "all" every one. Raises ``NoSuchThing`` for an unknown uid."""
    in_force = [str(fault["uid"]) for fault in stack.faults()]
    if uid == "all":
        ended = in_force
    elif uid in in_force:
        ended = [uid]
    else:
        raise NoSuchThing(f"no fault {uid!r} is in force")
    for each in ended:
        stack.world.fault_clear(each)
    done = Done(f"Cleared {len(ended)} fault{'' if len(ended) == 1 else 's'}.")
    stack.note(done.sentence)
    return done


def _whole(given: Mapping[str, Any], key: str, least: int, most: int, default: int | None = None) -> int | None:
    if key not in given:
        return default
    try:
        value = int(str(given[key]))
    except ValueError:
        raise BadFault(f"{key}: {given[key]!r} is not a whole number") from None
    if not least <= value <= most:
        raise BadFault(f"{key}: {value} is not between {least} and {most}")
    return value


def _seconds(given: Mapping[str, Any], key: str, most: float) -> float | None:
    if key not in given:
        return None
    try:
        value = float(str(given[key]))
    except ValueError:
        raise BadFault(f"{key}: {given[key]!r} is not a number of seconds") from None
    if not 0 < value <= most:
        raise BadFault(f"{key}: {given[key]} is not between 0 and {most:.0f} seconds")
    return value


def _word(given: Mapping[str, Any], key: str) -> str:
    value = str(given.get(key, ""))
    if value and not _WORD.match(value):
        raise BadFault(f"{key}: {value!r} is not a name")
    return value


def _node(stack: Stack, given: Mapping[str, Any]) -> str:
    name = _word(given, "node")
    if not name:
        raise BadFault("node: say which node")
    known = sorted(stack.world.nodes)
    if name not in known:
        raise NoSuchThing(f"node {name!r} has not joined; nodes: {', '.join(known) or 'none yet'}")
    return name


def _xid(stack: Stack, given: Mapping[str, Any]) -> Done:
    code = _whole(given, "code", 1, 999)
    if code is None:
        raise BadFault("code: say which XID, for example 79")
    gpu = _whole(given, "gpu", 0, 63, 0) or 0
    kill = str(given.get("kill", "")).lower() in ("1", "true", "on", "yes")
    name = _node(stack, given)
    try:
        stack.world.xid(name, code, gpu)
    except KeyError:
        raise NoSuchThing(f"node {name!r} has just left") from None
    except IndexError:
        raise NoSuchThing(f"node {name!r} has no GPU {gpu}") from None
    sentence = f"XID {code} on GPU {gpu} of {name}."
    if kill:
        if stack.slurm is None:
            raise NoSuchThing("there is no Slurm in this sandbox whose tasks could be killed")
        stack.slurm.kill_tasks(name)
        sentence = f"{sentence[:-1]}, its tasks killed."
    return Done(sentence)


def _node_loss(stack: Stack, given: Mapping[str, Any]) -> Done:
    name = _node(stack, given)
    try:
        stack.world.node_lose(name)
    except KeyError:
        raise NoSuchThing(f"node {name!r} has just left") from None
    return Done(f"{name} is cut off; its instance stays running, with failed status checks.")


def _node_back(stack: Stack, given: Mapping[str, Any]) -> Done:
    name = _node(stack, given)
    try:
        stack.world.node_recover(name)
    except KeyError:
        raise NoSuchThing(f"node {name!r} has just left") from None
    return Done(f"{name} answers again, its GPUs healthy.")


def _planned_event(stack: Stack, given: Mapping[str, Any]) -> Done:
    code = str(given.get("code") or PLANNED[0])
    if code not in PLANNED:
        raise BadFault(f"code: {code!r} is none of {', '.join(PLANNED)}")
    hours = _whole(given, "hours", 1, 24 * 14, 48) or 48
    name = _node(stack, given)
    stack.aws.plan_event(stack.world.nodes[name].instance_id, code, hours)
    return Done(f"AWS plans {code} for {name} in {hours} h.")


def _torn_checkpoint(stack: Stack, given: Mapping[str, Any]) -> Done:
    if stack.slurm is None:
        raise NoSuchThing("there is no Slurm in this sandbox, so no job writes checkpoints")
    torn = stack.slurm.tear_newest_checkpoint(_whole(given, "job", 1, 2**31))
    if torn is None:
        raise NoSuchThing("no running job has a checkpoint to tear yet")
    return Done(f"Tore {torn}.")


def advance(stack: Stack, asked: Mapping[str, Any]) -> Done:
    """Let the calendar's clock jump ahead by ``hours``. Raises ``BadFault``."""
    try:
        hours = float(str(asked.get("hours")))
    except ValueError:
        hours = 0.0
    if not 0 < hours <= MOST_HOURS_AHEAD:
        raise BadFault(f"hours: a number above 0 and up to {MOST_HOURS_AHEAD}")
    then = datetime.fromtimestamp(stack.world.advance(hours * 3600), UTC)
    sentence = f"The calendar's clock jumped {hours:g} h ahead to {then:%Y-%m-%d %H:%M} UTC."
    stack.note(sentence)
    return Done(sentence)


def _lasting(stack: Stack, kind: str, given: Mapping[str, Any]) -> Done:
    times = _whole(given, "times", 1, 1_000_000)
    seconds = _seconds(given, "seconds", 86_400)
    parameters: dict[str, object] = {}
    if kind == "no-capacity":
        parameters |= {"instance_type": _word(given, "type"), "zone": _word(given, "zone")}
        what = f"No capacity for {parameters['instance_type'] or 'any instance type'}"
        what += f" in {parameters['zone']}" if parameters["zone"] else ""
    elif kind in ("partial-start", "wrong-reservation"):
        parameters["instance_type"] = _word(given, "type")
        what = f"Launches into a reservation of {parameters['instance_type'] or 'any type'} miss it"
        if kind == "partial-start":
            reason = str(given.get("reason") or "Server.InternalError")
            if reason not in REASONS:
                raise BadFault(f"reason: {reason!r} is none of {', '.join(REASONS)}")
            count = _whole(given, "count", 1, 1000, 1)
            parameters |= {"count": count, "reason": reason}
            what = f"{count} machines of a launch die while they start ({reason})"
    elif kind == "export-lag":
        what = "Exports to S3 lie in the queue"
    elif kind == "payment-failed":
        what = "The next payments of Capacity Blocks fail"
    elif kind == "storage-fails":
        thing = str(given.get("what") or "file-system")
        if thing not in STORAGE:
            raise BadFault(f"what: {thing!r} is none of {', '.join(STORAGE)}")
        parameters["what"] = thing
        what = f"The next {thing} fails while it is made"
    elif kind == "cluster-fails":
        thing = str(given.get("what") or CLUSTERS[0])
        if thing not in CLUSTERS:
            raise BadFault(f"what: {thing!r} is none of {', '.join(CLUSTERS)}")
        parameters["what"] = thing
        what = f"The next {thing} fails while it is made"
    elif kind == "group-no-capacity":
        if group := _word(given, "group"):
            parameters["group"] = group
        what = f"No machines for node group {group or 'of any name'}"
    elif kind in kube_faults.FIELDS:
        try:
            parameters, what = kube_faults.lasting(kind, given)
        except kube_faults.Wrong as error:
            raise BadFault(str(error)) from None
    elif kind == "lifecycle-fails":
        what = "HyperPod's lifecycle scripts fail"
    else:
        service = str(given.get("service") or "")
        if service not in SERVICES:
            raise BadFault(f"service: {service!r} is none of {', '.join(SERVICES)}")
        parameters |= {"service": service, "operation": _word(given, "operation")}
        target = f"{service} {parameters['operation']}".strip()
        if kind == "slow-api":
            parameters["delay"] = _seconds(given, "delay", 600) or 5.0
            what = f"{target} answers {parameters['delay']:g} s late"
        elif kind == "throttling":
            what = f"{target} throttles us"
        elif kind == "access-denied":
            if service not in ("aws", "kubernetes"):
                raise BadFault("service: only aws and kubernetes refuse by policy")
            what = f"{target} is not allowed to us"
        elif kind in ("unauthorized", "watch-cut", "history-lost"):
            if service != "kubernetes":
                raise BadFault(f"service: {kind} is a fault of kubernetes")
            what = f"{target} {_KUBERNETES[kind]}"
            if kind == "watch-cut":
                parameters["every"] = _seconds(given, "every", 3600) or 5.0
                what = f"{target} cuts each watch after {parameters['every']:g} s"
        else:
            shape = str(given.get("shape") or "error")
            if shape not in SHAPES[service]:
                raise BadFault(f"shape: {shape!r} is none of {', '.join(SHAPES[service])}")
            parameters["shape"] = shape
            what = f"{target} breaks ({shape})"
    fault = stack.world.fault_add(kind, left=times, seconds=seconds, **parameters)
    limits = [f"{times} times" if times else "", f"for {seconds:g} s" if seconds else ""]
    until = " or ".join(limit for limit in limits if limit) or "until cleared"
    return Done(f"{what}, {until}.", fault.uid)
