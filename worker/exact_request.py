"""A submit as it would be sent, told without sending it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from apps.clusters.kube_selectors import kubernetes_of
from apps.jobs.exact_request import HIDDEN
from apps.jobs.models import Attempt, Job
from worker.jobscript import submit_request
from worker.providers.errors import InvalidRequest
from worker.providers.kubernetes.shown import objects_text
from worker.providers.slurm import encode
from worker.providers.slurm.versions import VERSIONS
from worker.workloads import workload_submit


def exact_request(job: Job, attempt: Attempt) -> dict[str, Any]:
    """Members of apps.jobs.exact_request.ExactRequest: encoded by the functions that encode the real submit.

    The cluster is not asked: its version is the one that it was last seen to speak.
    """
    cluster = job.cluster
    if cluster.is_kubernetes:
        return _objects(job, attempt)
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


def _objects(job: Job, attempt: Attempt) -> dict[str, Any]:
    """The same for Kubernetes: all objects in the order in which they are made, nothing secret among them."""
    observed = kubernetes_of(job.cluster)
    told: dict[str, Any] = observed.observed if observed is not None else {}
    found: dict[str, Any] = {
        "method": "POST",
        "path": "",
        "headers": {},
        "body": None,
        "api_version": str(told.get("version") or ""),
        "is_seen": bool(told.get("version")),
        "problem": "",
        "yaml": "",
    }
    try:
        request = workload_submit(job, attempt)
        found["path"] = f"/namespaces/{request.namespace}"
        found["yaml"] = objects_text(request, hidden=HIDDEN)
    except InvalidRequest as error:
        found["problem"] = error.message
    return found
