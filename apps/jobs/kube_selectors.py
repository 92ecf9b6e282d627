"""Named reads of jobs on Kubernetes: what the cluster said of them, their pods by rank, how to look oneself."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from django.utils.translation import gettext as _

from apps.clusters.kube_selectors import place_of
from apps.jobs.models import Attempt, Job, JobHappening, RunnerStream

#: At most so many of what a cluster said of one job are shown, the newest.
MOST_HAPPENINGS = 500
#: The label by which everything of an attempt is found.
ATTEMPT_LABEL = "quarterdeck.dev/attempt"


def happenings_for(job: Job) -> list[JobHappening]:
    """What the cluster said of the job's attempts, oldest first; one query."""
    rows = JobHappening.objects.filter(attempt__job=job).select_related("attempt").order_by("-at", "-id")
    return list(rows[:MOST_HAPPENINGS])[::-1]


@dataclass(frozen=True)
class Command:
    """A line for a terminal and what it shows."""

    words: str
    line: str


def commands_for(job: Job, attempt: Attempt | None) -> list[Command]:
    """kubectl lines about the objects of an attempt; none before it has any."""
    if attempt is None or not attempt.scheduler_id:
        return []
    namespace, kind, name = (*attempt.scheduler_id.split("/", 2), "", "")[:3]
    at = f"kubectl -n {shlex.quote(namespace or place_of(job.cluster, job.team).namespace)}"
    label = f"-l {ATTEMPT_LABEL}={shlex.quote(attempt.uid)}"
    whole = (
        f"{at} get all,configmaps {label} -o yaml"
        if kind in ("", "Manifest")
        else f"{at} get {kind.lower()} {shlex.quote(name)} -o yaml"
    )
    return [
        Command(_("The objects as the cluster has them"), whole),
        Command(_("Its place in Kueue's queue and why it waits"), f"{at} get workloads {label} -o yaml"),
        Command(_("The pods and their nodes"), f"{at} get pods {label} -o wide"),
        Command(_("What the cluster said of the pods"), f"{at} describe pods {label}"),
        Command(_("The output as it comes"), f"{at} logs {label} --all-containers --prefix --follow --tail=100"),
    ]


def pods_of(attempt: Attempt | None) -> list[RunnerStream]:
    """Everything that told of the attempt's pods, by rank: the runner inside them, or their own output."""
    if attempt is None:
        return []
    rows = RunnerStream.objects.filter(attempt=attempt)
    return sorted(rows, key=lambda row: (row.rank is None, row.rank or 0, row.task or 0, row.role, row.pk))
