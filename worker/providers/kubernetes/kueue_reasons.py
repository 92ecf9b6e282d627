"""What Kueue says of a job in its Workload, as reasons: the only place that reads Kueue's sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from worker.providers.kubernetes.pod_sets import as_list, as_map
from worker.providers.kubernetes.quantities import shown
from worker.providers.kubernetes.reason_values import Reason, Rival, Who
from worker.providers.kubernetes.reason_values import text as _
from worker.providers.values import Text

_UNUSED = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+?),? (\S+) more needed")
_BORROWED = re.compile(r"borrowing limit for (\S+) in flavor (\S+) exceeded")
_NEVER = re.compile(r"insufficient quota for (\S+) in flavor (\S+?), (.*?) > maximum capacity \(([^)]*)\)")
_ASKED = re.compile(r"request(?:s)? \(([^)]*)\)")
_ABSENT = re.compile(r"(LocalQueue|ClusterQueue) (\S+) (doesn't exist|is inactive|is stopped)")
_FIT = re.compile(r'topology "?([^"\s]+)"? (?:doesn\'t allow to fit any of|allows to fit only (\d+) out of) (\d+) pod')
_TAINT = re.compile(r"untolerated taint &?(?:Taint)?\{(?:Key:)?([^\s,}]*)[^}]*\} in flavor (\S+)")
_AFFINITY = re.compile(r"flavor (\S+) doesn't match node affinity")
_NO_FLAVOR = re.compile(r"(?:resource (\S+) unavailable in ClusterQueue|flavor (\S+) not found)")
_PENDING = re.compile(r"Pending the preemption of (\d+) workload")
_RIVAL = re.compile(r"\(UID: ([^,)\s]+)(?:, JobUID: ([^,)\s]+))?\)")
#: Kueue's reason of a preemption as the second half of a sentence.
_CAUSES = {
    "InClusterQueue": "Priority",
    "InCohortReclamation": "Reclaimed",
    "InCohortFairSharing": "FairShare",
    "InCohortReclaimWhileBorrowing": "ReclaimedBorrowing",
}
_TOLD = {
    "prioritization in the ClusterQueue": "Priority",
    "reclamation within the cohort while borrowing": "ReclaimedBorrowing",
    "reclamation within the cohort": "Reclaimed",
    "Fair Sharing within the cohort": "FairShare",
}


def condition(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The condition of this type, empty where there is none."""
    rows = as_list(as_map(value.get("status")).get("conditions"))
    return next((as_map(row) for row in rows if as_map(row).get("type") == name), {})


def is_true(value: Mapping[str, Any], name: str) -> bool:
    """Whether the condition stands."""
    return condition(value, name).get("status") == "True"


def pending_reasons(workload: Mapping[str, Any], who: Who | None = None) -> tuple[Reason, ...]:
    """Why a Workload is not admitted, the eviction that brought it back first; empty once it is admitted or over."""
    if is_true(workload, "Admitted") or is_true(workload, "Finished"):
        return ()
    found: list[Reason] = []
    if evicted := eviction(workload, who):
        found.append(evicted)
    if as_map(workload.get("spec")).get("active") is False:
        text = _("It was set aside and is not considered until someone lets it go on.")
        return (*found, Reason("Deactivated", text, is_final=True))
    reserved = condition(workload, "QuotaReserved")
    if reserved.get("status") == "True":
        return (*found, *_checks(workload))
    message = str(reserved.get("message") or "")
    if not message or message == "The workload has no reservation":
        return (*found, Reason("Queued", _("It waits in its queue; Kueue has not looked at it yet."), raw=message))
    return (*found, *quota_reasons(message))


def quota_reasons(message: str) -> tuple[Reason, ...]:
    """The sentences of a QuotaReserved condition, one a flavor that was tried."""
    found: dict[str, Reason] = {}
    for sentence in re.split(
        r"(?<=[a-z\d)}]),\s(?=(?:couldn't|insufficient|borrowing|untolerated|flavor|topology))"
        r"|;\s|\.\s",
        message,
    ):
        for reason in _quota_sentence(sentence, message):
            found.setdefault(str(reason), reason)
    if found:
        return tuple(found.values())
    return (Reason("Queued", _("It waits in its queue: %(message)s", message=message), raw=message),)


def _quota_sentence(sentence: str, raw: str) -> list[Reason]:
    if match := _UNUSED.search(sentence):
        resource, flavor, more = match.groups()
        text = _(
            "%(more)s more of %(resource)s are needed in %(flavor)s than are free for its team.",
            more=shown(resource, more.rstrip(",")),
            resource=resource,
            flavor=flavor,
        )
        return [Reason("QuotaInUse", text, raw=raw)]
    if match := _BORROWED.search(sentence):
        text = _("The team may borrow no more %(resource)s in %(flavor)s.", resource=match[1], flavor=match[2])
        return [Reason("BorrowingLimit", text, raw=raw)]
    if match := _NEVER.search(sentence):
        # Newer Kueues say what the sets of pods before ask for and what this one does, older ones the sum.
        parts = _ASKED.findall(match[3])
        before, _sign, most = match[4].rpartition(" > ")
        asked = " + ".join(shown(match[1], part) for part in parts if part != "0") or shown(match[1], before)
        text = _(
            "It asks for more %(resource)s in %(flavor)s than the team can ever have: %(asked)s of %(most)s.",
            resource=match[1],
            flavor=match[2],
            asked=asked,
            most=shown(match[1], most),
        )
        return [Reason("MoreThanQuota", text, is_final=True, raw=raw)]
    if match := _FIT.search(sentence):
        fits = match[2] or "0"
        text = _(
            "No part of the network %(topology)s has room for all pods: %(fits)s of %(pods)s fit.",
            topology=match[1],
            fits=fits,
            pods=match[3],
        )
        return [Reason("TopologyFull", text, raw=raw)]
    if match := _TAINT.search(sentence):
        text = _(
            "Its pods do not tolerate the taint %(taint)s of %(flavor)s.",
            taint=match[1],
            flavor=match[2],
        )
        return [Reason("Taint", text, is_final=True, raw=raw)]
    if match := _AFFINITY.search(sentence):
        text = _("Its pods ask for nodes that %(flavor)s has not.", flavor=match[1])
        return [Reason("NodeAffinity", text, is_final=True, raw=raw)]
    if match := _NO_FLAVOR.search(sentence):
        text = _("Its queue offers no %(what)s.", what=match[1] or match[2])
        return [Reason("NotOffered", text, is_final=True, raw=raw)]
    if match := _ABSENT.search(sentence):
        code = "QueueMissing" if "exist" in match[3] else "QueueStopped"
        text = (
            _("Its queue %(queue)s is not there.", queue=match[2])
            if code == "QueueMissing"
            else _("Its queue %(queue)s takes nothing at the moment.", queue=match[2])
        )
        return [Reason(code, text, is_final=code == "QueueMissing", raw=raw)]
    if match := _PENDING.search(sentence):
        text = _("%(count)s jobs are being stopped to make room for it.", count=match[1])
        return [Reason("Preempting", text, raw=raw)]
    return []


def eviction(workload: Mapping[str, Any], who: Who | None = None) -> Reason | None:
    """Why the Workload was stopped after it had begun; None where it was not."""
    evicted = condition(workload, "Evicted")
    if evicted.get("status") != "True":
        return None
    message = str(evicted.get("message") or "")
    code = str(evicted.get("reason") or "")
    if code == "Preempted":
        preempted = condition(workload, "Preempted")
        return preemption(message, str(preempted.get("reason") or ""), who)
    known = {
        "PodsReadyTimeout": _("Its pods were not ready in time, so the whole job was put back."),
        "AdmissionCheck": _("A check that admission depends on took it back: %(message)s", message=message),
        "ClusterQueueStopped": _("Its team's queue was stopped by an administrator."),
        "LocalQueueStopped": _("Its queue was stopped by an administrator."),
        "NodeFailures": _("Nodes under it failed: %(message)s", message=message),
        "MaximumExecutionTimeExceeded": _("It ran as long as it may."),
        "Deactivated": _("It was set aside: %(message)s", message=message),
        "InactiveWorkload": _("It was set aside: %(message)s", message=message),
    }
    key = code if code in known else next((name for name in known if code.startswith(name)), "")
    text = known.get(key, _("Kueue took it back (%(reason)s): %(message)s", reason=code, message=message))
    is_final = key in ("MaximumExecutionTimeExceeded", "Deactivated", "InactiveWorkload")
    return Reason(key or "Evicted", text, is_final=is_final, raw=message)


def preemption(message: str, reason: str = "", who: Who | None = None) -> Reason:
    """Who took the place and by what right. ``who`` turns the uids that Kueue says into a job's name and team."""
    cause = _CAUSES.get(reason) or next((code for told, code in _TOLD.items() if told in message), "")
    match = _RIVAL.search(message)
    uids = [uid if uid and uid != "UNKNOWN" else "" for uid in (match.groups() if match else ("", ""))]
    rival = who(uids[0], uids[1]) if who and any(uids) else None
    return Reason("Preempted", _preempted(rival, cause), raw=message)


def _preempted(rival: Rival | None, cause: str) -> Text:
    if rival is None:
        plain = {
            "Priority": _("A job of higher priority in the same queue took its place."),
            "Reclaimed": _("Another team took back what it had lent."),
            "ReclaimedBorrowing": _("Another team of higher priority took its place by borrowing."),
            "FairShare": _("Another team took its place by its fair share."),
        }
        return plain.get(cause, _("Another job took its place."))
    facts = {"name": rival.name, "team": rival.team, "priority": rival.priority}
    named = {
        "Priority": _("%(name)s of %(team)s took its place by its priority, %(priority)s.", **facts),
        "Reclaimed": _("%(team)s took back what it had lent, for %(name)s with the priority %(priority)s.", **facts),
        "ReclaimedBorrowing": _(
            "%(name)s of %(team)s took its place by borrowing, with the priority %(priority)s.", **facts
        ),
        "FairShare": _(
            "%(name)s of %(team)s took its place by the team's fair share, with the priority %(priority)s.", **facts
        ),
    }
    return named.get(cause, _("%(name)s of %(team)s took its place, with the priority %(priority)s.", **facts))


def _checks(workload: Mapping[str, Any]) -> list[Reason]:
    """Quota is reserved; what other checks say before the job may begin."""
    rows = [as_map(row) for row in as_list(as_map(workload.get("status")).get("admissionChecks"))]
    found = []
    for row in rows:
        if row.get("state") in ("Pending", "Retry"):
            text = _("Its quota is reserved; the check %(name)s is not through yet.", name=row.get("name"))
            found.append(Reason("CheckPending", text, raw=str(row.get("message") or "")))
        elif row.get("state") == "Rejected":
            text = _("The check %(name)s refused it: %(message)s", name=row.get("name"), message=row.get("message"))
            found.append(Reason("CheckRejected", text, is_final=True, raw=str(row.get("message") or "")))
    return found or [Reason("QuotaReserved", _("Its quota is reserved; it begins at any moment."))]
