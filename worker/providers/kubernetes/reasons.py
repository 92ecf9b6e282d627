"""What pods, nodes and events say, as reasons: the one place that reads kubelet's and scheduler's sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from worker.providers.kubernetes import kueue_reasons
from worker.providers.kubernetes.kueue_reasons import condition
from worker.providers.kubernetes.pod_sets import as_list, as_map
from worker.providers.kubernetes.quantities import shown
from worker.providers.kubernetes.reason_values import Reason, Who
from worker.providers.kubernetes.reason_values import text as _
from worker.providers.values import Text

Values = Mapping[str, Any]
#: HyperPod's labels of a node.
HEALTH, DEEP_CHECK = "sagemaker.amazonaws.com/node-health-status", "sagemaker.amazonaws.com/deep-health-check-status"
FAULT_TYPES, FAULT_REASONS = "sagemaker.amazonaws.com/fault-types", "sagemaker.amazonaws.com/fault-reasons"

_IMAGE_WAITS = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable", "InvalidImageName"}
_SETUP_WAITS = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
_MISSING = re.compile(r"(secret|configmap|persistentvolumeclaim) \"?([^\"\s]+)\"? not found", re.IGNORECASE)
_LOW = re.compile(r"low on resource: ([\w.-]+)")
_OVER = re.compile(r"[Uu]sage.*exceeds.*limit|exceeds the total limit|usage exceeds")
_TOO_LONG = "longer than specified deadline"
#: Reasons of events by which a pod's node was lost under it.
NODE_EVENTS = frozenset({"TaintManagerEviction", "NodeNotReady"})
_DEVICES = re.compile(r"requested number of devices unavailable for (\S+?)\.?(?:\s|$)")
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}


def is_limit(failed: Values) -> bool:
    """Whether a condition of a job says that it ran as long as it may."""
    return failed.get("reason") == "DeadlineExceeded" or _TOO_LONG in str(failed.get("message") or "")


def is_of_the_node(reason: Reason) -> bool:
    """Whether a pod was evicted because its node ran short, and not because it used too much itself."""
    return reason.code == "Evicted" and _LOW.search(reason.raw) is not None


def pod_reason(pod: Values) -> Reason | None:
    """Why a pod does not run or why it ended badly; None where it runs, is being started, or has ended well."""
    status = as_map(pod.get("status"))
    for look in (_whole_pod, _disrupted, _container_ends, _container_waits, _scheduling):
        if found := look(pod, status):
            return found
    return None


# --- ends ----------------------------------------------------------------------------------------


def _whole_pod(pod: Values, status: Values) -> Reason | None:
    code, message = str(status.get("reason") or ""), str(status.get("message") or "")
    node = str(as_map(pod.get("spec")).get("nodeName") or "")
    if code == "Evicted":
        return evicted(message, node)
    if code == "DeadlineExceeded":
        return Reason("DeadlineExceeded", _("It ran as long as it may."), is_final=True, raw=message)
    if code in ("NodeShutdown", "Shutdown", "Terminated"):
        return Reason("NodeShutdown", _("Its node %(node)s was shut down.", node=node), is_final=True, raw=message)
    if code == "NodeLost":
        return Reason("NodeLost", _("Its node %(node)s does not answer.", node=node), raw=message)
    if code == "UnexpectedAdmissionError":
        match = _DEVICES.search(message)
        text = (
            _("The node %(node)s had no healthy %(device)s left for it.", node=node, device=match[1])
            if match
            else _("The node %(node)s refused it: %(message)s", node=node, message=message)
        )
        return Reason("NodeRefused", text, is_final=True, raw=message)
    if code.startswith("OutOf"):
        text = _(
            "The node %(node)s had not enough %(resource)s for it.", node=node, resource=code.removeprefix("OutOf")
        )
        return Reason("NodeRefused", text, is_final=True, raw=message)
    return None


def evicted(message: str, node: str) -> Reason:
    """Why the kubelet threw a pod out."""
    if match := _LOW.search(message):
        text = _("It was evicted: the node %(node)s ran low on %(resource)s.", node=node, resource=match[1].rstrip("."))
    elif _OVER.search(message):
        text = _("It was evicted: it wrote more to the node's disk than it may.")
    else:
        text = _("It was evicted from %(node)s: %(message)s", node=node, message=message)
    return Reason("Evicted", text, is_final=True, raw=message)


def _disrupted(pod: Values, status: Values) -> Reason | None:
    row = condition(pod, "DisruptionTarget")
    if row.get("status") != "True":
        return None
    node = str(as_map(pod.get("spec")).get("nodeName") or "")
    message = str(row.get("message") or "")
    known: dict[str, tuple[str, Text]] = {
        "PreemptionByScheduler": ("PodPreempted", _("A pod of higher priority took its place on %(node)s.", node=node)),
        "DeletionByTaintManager": ("NodeTainted", _("The node %(node)s was tainted, so it had to go.", node=node)),
        "EvictionByEvictionAPI": ("Drained", _("The node %(node)s was drained.", node=node)),
        "DeletionByPodGC": ("NodeLost", _("Its node %(node)s is gone.", node=node)),
    }
    if row.get("reason") == "TerminationByKubelet":
        return evicted(message, node)
    if found := known.get(str(row.get("reason"))):
        return Reason(found[0], found[1], is_final=True, raw=message)
    return None


def _container_ends(pod: Values, status: Values) -> Reason | None:
    """The first container that ended badly: out of memory before any other, for the rest follows from it."""
    ends: list[Reason] = []
    for row in _containers(status):
        name = str(row.get("name") or "")
        for state in (as_map(row.get("state")), as_map(row.get("lastState"))):
            ended = as_map(state.get("terminated"))
            if not ended or (ended.get("exitCode") == 0 and ended.get("reason") != "OOMKilled"):
                continue
            ends.append(_ended(pod, name, ended))
            break
    return next((end for end in ends if end.code == "OOMKilled"), ends[0] if ends else None)


def _ended(pod: Values, name: str, ended: Values) -> Reason:
    code, message = ended.get("exitCode"), str(ended.get("message") or "")
    if ended.get("reason") == "OOMKilled":
        limit = memory_limit(pod, name)
        text = (
            _("%(container)s used more memory than its limit of %(limit)s and was killed.", container=name, limit=limit)
            if limit
            else _("The node ran out of memory and %(container)s was killed.", container=name)
        )
        return Reason("OOMKilled", text, is_final=True, raw=message)
    if isinstance(code, int) and code > 128:
        number = code - 128
        text = _("%(container)s was ended by %(signal)s.", container=name, signal=_SIGNALS.get(number, str(number)))
        return Reason("Signal", text, is_final=True, raw=message)
    if ended.get("reason") in ("ContainerCannotRun", "StartError"):
        text = _("%(container)s could not be started: %(message)s", container=name, message=message)
        return Reason("CannotStart", text, is_final=True, raw=message)
    text = _("%(container)s ended with the exit code %(code)s.", container=name, code=code)
    return Reason("ExitCode", text, is_final=True, raw=message)


def memory_limit(pod: Values, name: str) -> str:
    """The memory limit of a container, "" without one."""
    spec = as_map(pod.get("spec"))
    for part in ("containers", "initContainers"):
        for row in as_list(spec.get(part)):
            if as_map(row).get("name") == name:
                limits = as_map(as_map(as_map(row).get("resources")).get("limits"))
                return shown("memory", limits["memory"]) if limits.get("memory") else ""
    return ""


# --- waits ---------------------------------------------------------------------------------------


def _containers(status: Values) -> list[Values]:
    rows = [*as_list(status.get("initContainerStatuses")), *as_list(status.get("containerStatuses"))]
    return [as_map(row) for row in rows]


def _container_waits(pod: Values, status: Values) -> Reason | None:
    for row in _containers(status):
        waiting = as_map(as_map(row.get("state")).get("waiting"))
        code, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if code in _IMAGE_WAITS:
            return image_reason(str(row.get("image") or ""), code, message)
        if code in _SETUP_WAITS:
            return _setup(str(row.get("name") or ""), message)
        if code == "CrashLoopBackOff":
            text = _(
                "%(container)s ends again and again; it was started %(count)s times.",
                container=row.get("name"),
                count=int(row.get("restartCount") or 0) + 1,
            )
            return Reason("CrashLoop", text, raw=message)
    return None


def image_reason(image: str, code: str, message: str) -> Reason:
    """Why an image is not there."""
    lowered = message.lower()
    if code == "InvalidImageName":
        return Reason("ImageName", _("%(image)s is no name of an image.", image=image), is_final=True, raw=message)
    if "not found" in lowered or "manifest unknown" in lowered or "does not exist" in lowered:
        text = _("The image %(image)s is not in its registry.", image=image)
        return Reason("ImageMissing", text, is_final=True, raw=message)
    if any(word in lowered for word in ("unauthorized", "denied", "forbidden", "no basic auth", "authentication")):
        text = _("The registry does not let the cluster read the image %(image)s.", image=image)
        return Reason("ImageDenied", text, is_final=True, raw=message)
    if "no space left" in lowered:
        return Reason("ImageNoSpace", _("The node has no room for the image %(image)s.", image=image), raw=message)
    if "no match for platform" in lowered or "exec format" in lowered:
        text = _("The image %(image)s is not for the node's architecture.", image=image)
        return Reason("ImageArchitecture", text, is_final=True, raw=message)
    return Reason(
        "ImagePull",
        _("The image %(image)s cannot be pulled: %(message)s", image=image, message=message or code),
        raw=message,
    )


def _setup(container: str, message: str) -> Reason:
    if match := _MISSING.search(message):
        text = _(
            "%(container)s needs the %(kind)s %(name)s, which is not there.",
            container=container,
            kind=match[1],
            name=match[2],
        )
        return Reason("Missing", text, raw=message)
    text = _("%(container)s cannot be made: %(message)s", container=container, message=message)
    return Reason("CannotStart", text, raw=message)


def _scheduling(pod: Values, status: Values) -> Reason | None:
    row = condition(pod, "PodScheduled")
    if row.get("status") != "False":
        return None
    if row.get("reason") == "SchedulingGated":
        return Reason("Gated", _("It is held back until the whole job may begin."))
    return unschedulable(str(row.get("message") or ""))


_NODES = re.compile(r"(\d+)/(\d+) nodes are available")
_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(\d+) Insufficient (\S+)"), "Insufficient"),
    (re.compile(r"(\d+) node\(s\) had (?:untolerated )?taints? \{([^}]*)\}"), "Taint"),
    (
        re.compile(r"(\d+) node\(s\) (?:didn't match Pod's node affinity(?:/selector)?|didn't match node selector)()"),
        "NodeAffinity",
    ),
    (re.compile(r"(\d+) node\(s\) (?:didn't match pod (?:anti-)?affinity.*?)()(?=,|\.|$)"), "PodAffinity"),
    (re.compile(r"(\d+) node\(s\) (?:were unschedulable)()"), "Cordoned"),
    (re.compile(r"(\d+) node\(s\) had volume node affinity conflict()"), "VolumeZone"),
    (re.compile(r"(\d+) node\(s\) (?:didn't match pod topology spread constraints.*?)()(?=,|\.|$)"), "Spread"),
    (re.compile(r"(\d+) Too many (pods)"), "TooManyPods"),
)


def unschedulable(message: str) -> Reason:
    """Why no node takes a pod: the scheduler's counts, the most frequent cause as the code."""
    # What follows "preemption:" says only that stopping others would not help.
    said = message.split("preemption:")[0]
    causes: list[tuple[int, str, str]] = []
    for pattern, code in _CAUSES:
        causes += [(int(match[1]), code, match[2].strip().rstrip(".,:")) for match in pattern.finditer(said)]
    match = _NODES.search(said)
    if not causes:
        if "persistentvolumeclaim" in said and (missing := _MISSING.search(said)):
            text = _("The volume claim %(name)s is not there.", name=missing[2])
            return Reason("Missing", text, raw=message)
        if "unbound immediate PersistentVolumeClaims" in said:
            return Reason("VolumeUnbound", _("Its volume has not been made yet."), raw=message)
        return Reason("Unschedulable", _("No node takes it: %(message)s", message=message), raw=message)
    causes.sort(key=lambda cause: -cause[0])
    nodes = match[2] if match else "?"
    text = _("None of %(nodes)s nodes takes it: %(causes)s.", nodes=nodes, causes=_listed([_cause(*c) for c in causes]))
    return Reason("Unschedulable" + causes[0][1], text, raw=message)


def _listed(words: list[Text]) -> Text:
    return words[0] if len(words) == 1 else _("%(one)s, %(more)s", one=words[0], more=_listed(words[1:]))


def _cause(count: int, code: str, what: str) -> Text:
    facts = {"count": count, "what": what}
    return {
        "Insufficient": _("%(count)s have not enough %(what)s", **facts),
        "Taint": _("%(count)s have a taint that it does not tolerate (%(what)s)", **facts),
        "NodeAffinity": _("%(count)s are of another type than it asks for, or left out", **facts),
        "PodAffinity": _("%(count)s have pods that it does not want beside it, or lack those that it wants", **facts),
        "Cordoned": _("%(count)s are cordoned", **facts),
        "VolumeZone": _("%(count)s cannot reach its volume", **facts),
        "Spread": _("%(count)s would leave its pods uneven", **facts),
        "TooManyPods": _("%(count)s have as many pods as they can", **facts),
    }[code]


# --- nodes ---------------------------------------------------------------------------------------


def node_reasons(node: Values) -> tuple[Reason, ...]:
    """What stands against putting work on a node; none of one that is well."""
    found: list[Reason] = []
    ready = condition(node, "Ready")
    if ready.get("status") != "True":
        text = (
            _("Its kubelet does not answer.")
            if ready.get("status") == "Unknown"
            else _("It is not ready: %(message)s", message=ready.get("message") or ready.get("reason") or "")
        )
        found.append(Reason("NotReady", text, raw=str(ready.get("message") or "")))
    for name, text in (
        ("MemoryPressure", _("It is short of memory.")),
        ("DiskPressure", _("It is short of disk.")),
        ("PIDPressure", _("It is short of process numbers.")),
        ("NetworkUnavailable", _("Its network is not set up.")),
    ):
        if condition(node, name).get("status") == "True":
            found.append(Reason(name, text, raw=str(condition(node, name).get("message") or "")))
    if as_map(node.get("spec")).get("unschedulable"):
        found.append(Reason("Cordoned", _("It is cordoned.")))
    labels = as_map(as_map(node.get("metadata")).get("labels"))
    health = str(labels.get(HEALTH) or "")
    if health and health != "Schedulable":
        faults = ", ".join(str(labels[key]) for key in (FAULT_TYPES, FAULT_REASONS) if labels.get(key))
        text = _("HyperPod says %(health)s (%(faults)s).", health=health, faults=faults or "-")
        found.append(Reason("HyperPodHealth", text, raw=health))
    check = str(labels.get(DEEP_CHECK) or "")
    if check and check not in ("Passed", "Completed"):
        text = _("HyperPod's deep health check: %(check)s.", check=check)
        found.append(Reason("HyperPodCheck", text, raw=check))
    return tuple(found)


# --- events --------------------------------------------------------------------------------------


def event_reason(event: Values, who: Who | None = None) -> Reason | None:
    """An event as a line of a job's timeline; None for those that say nothing a person would look for."""
    code, message = str(event.get("reason") or ""), str(event.get("message") or event.get("note") or "")
    about = as_map(event.get("involvedObject") or event.get("regarding"))
    name = str(about.get("name") or "")
    if code == "FailedScheduling":
        return unschedulable(message)
    if code in ("Preempted", "EvictedDueToPreempted"):
        return kueue_reasons.preemption(message, "", who)
    if code in ("Failed", "BackOff", "InspectFailed") and "image" in message.lower():
        match = re.search(r"image:? \"?([^\s\"]+)\"?", message)
        return image_reason(match[1].rstrip(":") if match else "", code, message)
    if code in ("FailedMount", "FailedAttachVolume"):
        if missing := _MISSING.search(message):
            text = _(
                "%(pod)s needs the %(kind)s %(name)s, which is not there.", pod=name, kind=missing[1], name=missing[2]
            )
            return Reason("Missing", text, raw=message)
        text = _("A volume of %(pod)s cannot be mounted: %(message)s", pod=name, message=message)
        return Reason("VolumeMount", text, raw=message)
    if code == "Evicted":
        return evicted(message, str(as_map(event.get("source")).get("host") or ""))
    known = {
        "NodeNotReady": ("NotReady", _("The node under %(name)s stopped answering.", name=name)),
        "TaintManagerEviction": ("NodeTainted", _("%(name)s had to leave a tainted node.", name=name)),
        "OOMKilling": ("OOMKilled", _("%(name)s ran out of memory: %(message)s", name=name, message=message)),
        "SystemOOM": ("OOMKilled", _("%(name)s ran out of memory: %(message)s", name=name, message=message)),
        "QuotaReserved": ("QuotaReserved", _("Its quota is reserved.")),
        "Admitted": ("Admitted", _("It was let in.")),
        "BackoffLimitExceeded": ("BackoffLimit", _("It failed as often as it may.")),
        "DeadlineExceeded": ("DeadlineExceeded", _("It ran as long as it may.")),
        "FailedCreate": ("FailedCreate", _("Its pods cannot be made: %(message)s", message=message)),
        "FailedCreatePodSandBox": (
            "CannotStart",
            _("%(name)s cannot be made: %(message)s", name=name, message=message),
        ),
    }
    if found := known.get(code):
        return Reason(found[0], found[1], raw=message)
    if code.startswith("EvictedDueTo"):
        text = _("Kueue took it back: %(message)s", message=message)
        return Reason("Evicted", text, raw=message)
    return None
