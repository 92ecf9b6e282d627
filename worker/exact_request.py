"""A submit as it would be sent, told without sending it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from apps.jobs.exact_request import HIDDEN
from apps.jobs.models import Attempt, Job
from worker.jobscript import submit_request
from worker.providers.errors import InvalidRequest
from worker.providers.slurm import encode
from worker.providers.slurm.versions import VERSIONS


def exact_request(job: Job, attempt: Attempt) -> dict[str, Any]:
    """Members of apps.jobs.exact_request.ExactRequest: encoded by the functions that encode the real submit.

    The cluster is not asked: its version is the one that it was last seen to speak.
    """
    cluster = job.cluster
    version = cluster.observed_api_version or VERSIONS[0]
    headers = {"Accept": "application/json", "Content-Type": "application/json", "X-SLURM-USER-TOKEN": HIDDEN}
    if not cluster.tells_ids:
        headers["X-SLURM-USER-NAME"] = job.slurm_user or cluster.user_name
    request = submit_request(job, attempt)
    # Whoever holds this token can write the attempt's log.
    request = replace(request, environment={**request.environment, "QD_INGEST_TOKEN": HIDDEN})
    body, problem = None, ""
    try:
        body = dict(encode.submit(request, version))
    except InvalidRequest as error:
        problem = str(error)
    return {
        "method": "POST",
        "path": encode.submit_path(version),
        "headers": headers,
        "body": body,
        "api_version": version,
        "is_seen": bool(cluster.observed_api_version),
        "problem": problem,
    }
