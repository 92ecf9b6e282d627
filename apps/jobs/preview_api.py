"""API of the dry run: what a submit would hold, what stands in its way, and the very request it would send."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint
from apps.jobs.api import JobSubmitSerializer, read_spec
from apps.jobs.exact_request import exact_request
from apps.jobs.services import Preview, job_of, job_preview
from apps.jobs.template_selectors import last_run_of
from apps.jobs.template_words import run_changes


class ExactRequestSerializer(serializers.Serializer[Any]):
    """What would be sent to the cluster's scheduler. Tokens are shown as "…", numbers that do not exist yet as NEW."""

    method = serializers.CharField()
    path = serializers.CharField()
    headers = serializers.DictField(child=serializers.CharField())
    body = serializers.DictField(allow_null=True, help_text="null where this version cannot say it; see problem.")
    api_version = serializers.CharField(help_text="The REST version.")
    is_seen = serializers.BooleanField(help_text="Whether the cluster speaks it; false: the newest, for want of one.")
    problem = serializers.CharField()
    yaml = serializers.CharField(help_text="On Kubernetes the objects in the order in which they are made.")


class FlawSerializer(serializers.Serializer[Any]):
    """One thing wrong with a manifest."""

    code = serializers.CharField()
    text = serializers.CharField()
    document = serializers.IntegerField(help_text="From 1; 0: the whole text.")
    line = serializers.IntegerField(help_text="From 1; 0: unknown.")
    path = serializers.CharField(help_text="The field, such as spec.template.spec.hostNetwork.")


class ManifestSerializer(serializers.Serializer[Any]):
    """What a manifest asks for; all counts are 0 while there are flaws."""

    flaws = FlawSerializer(many=True)
    objects = serializers.ListField(child=serializers.CharField(), help_text="Kind/name, in their order.")
    pods = serializers.IntegerField()
    nodes = serializers.IntegerField(help_text="Pods that count: those with GPUs, or all where none has any.")
    gpus = serializers.IntegerField()
    gpus_per_node = serializers.IntegerField(help_text="Of the largest pod; each counted pod holds so many.")
    time_limit_min = serializers.IntegerField(allow_null=True, help_text="null where nothing in it ends it.")


class PreviewSerializer(serializers.Serializer[Any]):
    """What would happen."""

    accepted = serializers.BooleanField()
    gpus = serializers.IntegerField()
    gpu_hours = serializers.DecimalField(max_digits=20, decimal_places=6)
    usd_held = serializers.DecimalField(max_digits=20, decimal_places=6)
    usd_per_gpu_hour = serializers.DecimalField(max_digits=20, decimal_places=6)
    usd_per_node_hour = serializers.DecimalField(
        max_digits=20, decimal_places=6, help_text="Of each node's share, for a job without GPUs; 0 otherwise."
    )
    price_source = serializers.CharField()
    usd_free = serializers.DecimalField(max_digits=20, decimal_places=6)
    usd_left = serializers.DecimalField(max_digits=20, decimal_places=6)
    gpus_free = serializers.IntegerField()
    free_nodes = serializers.IntegerField()
    time_limit_min = serializers.IntegerField()
    offered_limit_min = serializers.IntegerField(
        allow_null=True, help_text="The longest limit that the block of the nodes holds, where the one asked is longer."
    )
    slurm_user = serializers.CharField(help_text="As whom it runs in Slurm; empty: as the cluster's own user.")
    slurm_account = serializers.CharField(help_text="Empty: Slurm's default for the user.")
    problems = serializers.ListField(child=serializers.DictField(child=serializers.CharField()))
    warnings = serializers.ListField(child=serializers.CharField())
    script = serializers.CharField()
    parts = serializers.ListField(
        child=serializers.DictField(), help_text="The further parts of a heterogeneous job, each with its price."
    )
    manifest = ManifestSerializer(allow_null=True, help_text="What was read of the manifest; null without one.")
    image = serializers.CharField(help_text="On Kubernetes the container it would run in; else empty.")
    workload_kind = serializers.CharField(help_text="On Kubernetes what it would be written as; else empty.")
    retry_defaults = serializers.ListField(
        child=serializers.DictField(child=serializers.CharField()),
        help_text="Rules that follow the job's own: {rule, source: template or team, name}.",
    )


class ChangeSerializer(serializers.Serializer[Any]):
    """One thing that differs from the last run of the template."""

    what = serializers.ChoiceField(choices=["field", "parameter"])
    name = serializers.CharField()
    before = serializers.CharField()
    after = serializers.CharField()


class ChangesSerializer(serializers.Serializer[Any]):
    """What differs from the last run of the same template by the same person, else by the team."""

    job = serializers.CharField(help_text="uid of that run.")
    values = ChangeSerializer(many=True)
    script = serializers.ListField(child=serializers.CharField(), help_text="Unified diff, line by line.")


class PreviewWithChangesSerializer(PreviewSerializer):
    """A preview, compared with the last run of its template."""

    changes = ChangesSerializer(allow_null=True, help_text="null without a template or an earlier run.")
    request = ExactRequestSerializer(allow_null=True, help_text="null while something of it is wrong.")


def preview_body(preview: Preview) -> dict[str, Any]:
    """A preview as the API answers it."""
    return dict(
        PreviewSerializer(
            {
                "accepted": not preview.problems and preview.usd_left >= 0 and preview.gpus_left >= 0,
                "gpus": preview.gpus,
                "gpu_hours": preview.gpu_hours,
                "usd_held": preview.usd,
                "usd_per_gpu_hour": preview.usd_per_gpu_hour,
                "usd_per_node_hour": preview.usd_per_node_hour,
                "price_source": str(preview.price_source),
                "usd_free": preview.budget.free,
                "usd_left": preview.usd_left,
                "gpus_free": int(preview.quota.free),
                "free_nodes": preview.free_nodes,
                "time_limit_min": preview.time_limit_min,
                "offered_limit_min": preview.offered_limit_min,
                "slurm_user": preview.slurm_user,
                "slurm_account": preview.slurm_account,
                "problems": [{"pointer": p.pointer, "code": p.code, "detail": p.detail} for p in preview.problems],
                "warnings": list(preview.warnings),
                "script": preview.script,
                "parts": [part.row() for part in preview.parts],
                "manifest": preview.manifest,
                "image": preview.image,
                "workload_kind": preview.workload_kind,
                "retry_defaults": list(preview.retry_defaults),
            }
        ).data
    )


class JobPreview(Endpoint):
    """What a submit would hold and whether it would be accepted."""

    rights = {"POST": "jobs.submit"}
    serializer_class = JobSubmitSerializer

    @extend_schema(responses=PreviewWithChangesSerializer)
    def post(self, request: Request) -> Response:
        """Check without holding anything."""
        team, cluster, spec = read_spec(self.actor, self.read_body(JobSubmitSerializer))
        preview = job_preview(actor=self.actor, team=team, cluster=cluster, spec=spec)
        last = last_run_of(self.actor, spec.template, team) if spec.template else None
        changes = None
        if last is not None:
            found = run_changes(last, spec, cluster, preview.script)
            values = [{"what": c.kind, "name": c.name, "before": c.before, "after": c.after} for c in found.values]
            changes = {"job": last.uid, "values": values, "script": [line for _kind, line in found.script]}
        exact = None
        if not preview.problems:
            job = job_of(actor=self.actor, team=team, cluster=cluster, spec=spec, preview=preview)
            exact = ExactRequestSerializer(exact_request(job)).data
        return Response({**preview_body(preview), "changes": changes, "request": exact})
