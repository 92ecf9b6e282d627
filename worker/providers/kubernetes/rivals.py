"""Whose job stands behind the uids that Kueue names when it takes a place away."""

from __future__ import annotations

from worker.providers.kubernetes import names
from worker.providers.kubernetes.informer import Known
from worker.providers.kubernetes.reason_values import Rival, Who
from worker.providers.kubernetes.works import Roots, controller_of


def who_of(known: Known) -> Who:
    """Whose job stands behind the uid of a Workload, or that of the job itself."""
    roots = Roots(known, gone=True)
    workloads = {
        str(w["metadata"].get("uid")): w
        for w in (*known.gone.get("Workload", {}).values(), *known.of("Workload").values())
    }

    def find(workload_uid: str, job_uid: str) -> Rival | None:
        queued = workloads.get(workload_uid)
        thing = roots.by_uid(job_uid)
        if thing is None and queued is not None:
            thing = roots.by_uid(str((controller_of(queued) or {}).get("uid") or ""))
        if thing is None and queued is None:
            return None
        head = (thing or queued or {})["metadata"]
        notes, labels = head.get("annotations") or {}, head.get("labels") or {}
        team = notes.get(names.LABEL_TEAM) or labels.get(names.LABEL_TEAM) or head.get("namespace") or ""
        spec = (queued or {}).get("spec") or {}
        priority = spec.get("priority")
        named = labels.get("kueue.x-k8s.io/priority-class")
        told = str(priority) if priority is not None else "0"
        return Rival(
            str(notes.get(f"{names.PREFIX}/name") or head.get("name") or ""),
            str(team),
            f"{named} ({told})" if named else told,
        )

    return find
