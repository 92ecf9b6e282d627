"""The very request by which a job would be submitted, for the dry run; whoever sends it builds it, nothing is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from apps.jobs.models import Attempt, Job

#: What stands for what must not be shown, and for numbers that do not exist before the submit.
HIDDEN = "…"
NEW = "NEW"


@dataclass(frozen=True)
class ExactRequest:
    """One call. ``body`` is None where this REST version cannot say the job; then ``problem`` says why.

    ``is_seen``: the cluster was seen to speak ``api_version``; else it is the newest that the portal knows. On
    Kubernetes ``yaml`` are the objects in the order in which they are made, and ``body`` is None.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None
    api_version: str
    is_seen: bool
    problem: str = ""
    yaml: str = ""

    @property
    def body_text(self) -> str:
        """The body as one reads it."""
        if self.yaml:
            return self.yaml
        return json.dumps(self.body, indent=2, ensure_ascii=False) if self.body is not None else ""

    @property
    def head_text(self) -> str:
        """The lines above the body."""
        return "\n".join([f"{self.method} {self.path}", *(f"{name}: {value}" for name, value in self.headers.items())])

    @property
    def text(self) -> str:
        """All of it; objects can be given to kubectl as they stand."""
        return self.yaml or f"{self.head_text}\n\n{self.body_text}"


def exact_request(job: Job) -> ExactRequest:
    """What would submit this job, which need not have a row."""
    job.uid = job.uid or NEW
    attempt = Attempt(uid=NEW, job=job, number=1, array=job.array, tasks=job.tasks)
    attempt.slurm_user, attempt.slurm_account = job.slurm_user, job.slurm_account
    # The worker sends it, and apps know no worker: the composition root names the function.
    return ExactRequest(**import_string(settings.EXACT_REQUEST)(job, attempt))
