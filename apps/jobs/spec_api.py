"""A past job as the body of a submit, for copying and editing it."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint
from apps.jobs.api import JobSubmitSerializer
from apps.jobs.dependency_selectors import dependency_text
from apps.jobs.manifests import text_for
from apps.jobs.models import Job
from apps.jobs.part_rules import MEMBERS
from apps.jobs.selectors import job_for
from apps.jobs.template_selectors import unlocked
from apps.teams.permissions import Actor


def spec_of(job: Job, actor: Actor) -> dict[str, Any]:
    """What a submit of the same again would say; a template's values instead of its script while it is enabled."""
    body: dict[str, Any] = {
        "team": job.team.slug,
        "cluster": job.cluster.name,
        "name": job.name,
        "nodes": job.nodes,
        "gpus_per_node": job.gpus_per_node,
        "time_limit_min": job.time_limit_min,
        "gpu_type": job.gpu_type,
        "tasks_per_node": job.tasks_per_node,
        "cpus_per_task": job.cpus_per_task,
        "memory_per_node_mib": job.memory_per_node_mib,
        "partition": job.partition,
        "environment": job.environment,
        "slurm_options": job.slurm_options,
        "array": job.array,
        "parts": [{name: row[name] for name in MEMBERS} for row in job.parts],
        "dependency": dependency_text(job),
        "max_recoveries": job.max_recoveries,
        "retry_rules": job.retry_rules,
        **{name: getattr(job, name) for name in ("image", "workload_kind", "priority_class") if getattr(job, name)},
    }
    is_template = job.template is not None and job.template.is_enabled
    if job.manifest:
        # Its size is counted from it, or from what the template makes.
        body = {name: body[name] for name in ("team", "cluster", "name", "time_limit_min", "dependency")}
        if not is_template:
            return {**body, "manifest": text_for(actor, job)}
    if job.template is not None and job.template.is_enabled:
        template = job.template
        taken = unlocked(template.parameters, job.template_parameters)
        # What the template fixes is said by the template alone.
        free = {name: value for name, value in body.items() if name not in template.locked}
        return {**free, "template": template.name, "template_parameters": taken}
    return {**body, "script": job.script}


class JobSpecBody(Endpoint):
    """What would submit the same job again."""

    rights = {"GET": "jobs.view"}
    serializer_class = JobSubmitSerializer

    def get(self, request: Request, uid: str) -> Response:
        """The body for POST /jobs; change what is to be different."""
        return Response(spec_of(job_for(actor=self.actor, may="jobs.view", uid=uid), self.actor))
