"""Names, labels and annotations of the objects made here: from the attempt's uid, so that they can be found again."""

from __future__ import annotations

import hashlib
import re

from worker.providers.workload_values import WorkloadSpec

PREFIX = "quarterdeck.dev"
LABEL_JOB, LABEL_ATTEMPT = f"{PREFIX}/job", f"{PREFIX}/attempt"
LABEL_TEAM, LABEL_OWNER = f"{PREFIX}/team", f"{PREFIX}/owner"
#: On an object of a manifest: its own name, which a person's renamed copy of it does not bear.
OBJECT = f"{PREFIX}/object"
#: On an array's Job: its tasks as people write them ("0-9%2").
ARRAY = f"{PREFIX}/array"
#: The cluster's row for which an object of Kueue was made.
LABEL_CLUSTER = f"{PREFIX}/cluster"
#: Marks everything written here, so that a sweep lists it by one selector.
LABEL_MANAGED = "app.kubernetes.io/managed-by"
MANAGED_BY = "quarterdeck"

#: The longest name of ours: "-node-0-9999-abcde" of a JobSet's pod still fits into a label of 63.
NAME_MAX = 40
LABEL_MAX = 63
_RFC1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def object_name(uid: str) -> str:
    """The name of everything that belongs to the attempt ``uid``: the same at each call, of at most 40 characters.

    ``att_01hx…`` gives ``qd-att-01hx…``. Of a uid that loses something by it a digest is added, so two uids never
    share a name.
    """
    if not uid:
        raise ValueError("an object's name needs the attempt's uid, which is empty")
    plain = re.sub(r"[^a-z0-9]+", "-", uid.lower()).strip("-")
    name = f"qd-{plain}" if plain else "qd"
    if plain.replace("-", "_") != uid or len(name) > NAME_MAX:
        name = f"{name[: NAME_MAX - 9].rstrip('-')}-{_digest(uid)}"
    return name


def is_dns_label(text: str) -> bool:
    """Whether ``text`` is a name by RFC 1123: lower case letters, digits and "-", at most 63."""
    return len(text) <= LABEL_MAX and _RFC1123.fullmatch(text) is not None


def label_value(text: str) -> str:
    """``text`` as a label's value: itself where it is valid, else what can be kept of it and a digest."""
    if re.fullmatch(r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?", text):
        return text
    kept = re.sub(r"[^-_.A-Za-z0-9]+", "-", text)[: LABEL_MAX - 9].strip("-_.")
    return f"{kept}-{_digest(text)}" if kept else _digest(text)


def owner_labels(*, job: str, attempt: str, team: str, owner: str) -> dict[str, str]:
    """Whose the object is, as labels."""
    return {
        LABEL_JOB: label_value(job),
        LABEL_ATTEMPT: label_value(attempt),
        LABEL_TEAM: label_value(team),
        LABEL_OWNER: label_value(owner),
    }


def owner_annotations(*, job: str, attempt: str, team: str, owner: str) -> dict[str, str]:
    """The same to the letter, where a label cannot hold it."""
    found = {LABEL_JOB: job, LABEL_ATTEMPT: attempt, LABEL_TEAM: team, LABEL_OWNER: owner}
    return {key: value for key, value in found.items() if label_value(value) != value}


def labels_of(spec: WorkloadSpec) -> dict[str, str]:
    """All labels of an object of this workload; a person's own cannot take the place of ours."""
    own = {key: label_value(value) for key, value in spec.labels.items()}
    ours = owner_labels(job=spec.job_uid, attempt=spec.uid, team=spec.team, owner=spec.owner)
    return {**own, LABEL_MANAGED: MANAGED_BY, **ours}


def annotations_of(spec: WorkloadSpec) -> dict[str, str]:
    """All annotations of an object of this workload, with the job's name as its owner wrote it."""
    ours = owner_annotations(job=spec.job_uid, attempt=spec.uid, team=spec.team, owner=spec.owner)
    return {**spec.annotations, f"{PREFIX}/name": spec.name, **ours}
