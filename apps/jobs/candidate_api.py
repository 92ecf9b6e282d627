"""API of the dry run over clusters: the same job asked of each, with cost, start and the very request."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.selectors import clusters_visible_to
from apps.clusters.states import ClusterPhase
from apps.core.api import Endpoint
from apps.core.errors import FieldProblem, InvalidInput
from apps.jobs.api import JobSubmitSerializer, read_spec
from apps.jobs.candidates import Candidate, candidates_for
from apps.jobs.exact_request import exact_request
from apps.jobs.preview_api import ExactRequestSerializer
from apps.jobs.services import job_of


class JobCandidatesSerializer(JobSubmitSerializer):
    """A submit without a cluster, or with the one that is always asked."""

    NEEDED = ("name", "nodes", "gpus_per_node", "time_limit_min")

    clusters = serializers.ListField(
        child=serializers.CharField(max_length=80),
        required=False,
        default=list,
        max_length=50,
        help_text="Names or uids of the clusters to ask; empty: all that take jobs.",
    )


class StartSerializer(serializers.Serializer[Any]):
    """When it would start there; all null where no start is in sight."""

    low_at = serializers.DateTimeField(allow_null=True)
    p50_at = serializers.DateTimeField(allow_null=True)
    p90_at = serializers.DateTimeField(allow_null=True)
    has_history = serializers.BooleanField(help_text="false: by time limits alone, no job has ended there yet.")
    sentence = serializers.CharField()


class CandidateSerializer(serializers.Serializer[Any]):
    """One cluster's answer."""

    cluster = serializers.CharField()
    scheduler = serializers.ChoiceField(choices=["slurm", "kubernetes"])
    accepted = serializers.BooleanField()
    problem = serializers.CharField(help_text="The first thing against it; empty where a submit would be accepted.")
    left_out = serializers.ListField(
        child=serializers.CharField(), help_text="What its scheduler does not know; leave it out of the submit."
    )
    image = serializers.CharField()
    workload_kind = serializers.CharField()
    gpus = serializers.IntegerField()
    gpu_hours = serializers.DecimalField(max_digits=20, decimal_places=6)
    usd_held = serializers.DecimalField(max_digits=20, decimal_places=6)
    usd_left = serializers.DecimalField(max_digits=20, decimal_places=6)
    gpus_left = serializers.IntegerField()
    free_nodes = serializers.IntegerField()
    start = StartSerializer(allow_null=True, help_text="null where it is not accepted or its queue was never read.")
    request = ExactRequestSerializer(allow_null=True, help_text="null where it is not accepted.")


class CandidatesSerializer(serializers.Serializer[Any]):
    """All that were asked, the best first."""

    recommended = serializers.CharField(allow_null=True)
    why = serializers.CharField()
    candidates = CandidateSerializer(many=True)
    not_asked = serializers.IntegerField(help_text="Further clusters, with less room than those asked.")


class JobCandidates(Endpoint):
    """The same job asked of every cluster."""

    rights = {"POST": "jobs.submit"}
    serializer_class = JobCandidatesSerializer

    @extend_schema(responses=CandidatesSerializer)
    def post(self, request: Request) -> Response:
        """Check everywhere without holding anything, and recommend one."""
        body = self.read_body(JobCandidatesSerializer)
        wanted = list(body.pop("clusters"))
        team, chosen, spec = read_spec(self.actor, body, needed=JobCandidatesSerializer.NEEDED)
        rows = clusters_visible_to(self.actor).exclude(phase=ClusterPhase.DELETING)
        clusters = [cluster for cluster in rows if cluster.takes_jobs]
        if wanted:
            known = {key: cluster for cluster in clusters for key in (cluster.name, cluster.uid)}
            if strange := [name for name in wanted if name not in known]:
                text = f"no cluster {', '.join(strange)} that takes jobs"
                raise InvalidInput(text, problems=[FieldProblem("/clusters", "unknown", text)])
            clusters = list({known[name].pk: known[name] for name in wanted}.values())
        found = candidates_for(
            actor=self.actor, team=team, clusters=clusters, spec=spec, chosen=chosen.uid if chosen else ""
        )
        answer = {
            "recommended": found.best.cluster.name if found.best else None,
            "why": found.why,
            "candidates": [self._row(team, row) for row in found.rows],
            "not_asked": found.more,
        }
        return Response(CandidatesSerializer(answer).data)

    def _row(self, team: Any, row: Candidate) -> dict[str, Any]:
        preview, exact, start = row.preview, None, None
        if row.is_valid:
            job = job_of(actor=self.actor, team=team, cluster=row.cluster, spec=row.spec, preview=preview)
            exact = exact_request(job)
        if row.start is not None:
            start = {
                "low_at": row.start.low_at,
                "p50_at": row.start.p50_at,
                "p90_at": row.start.p90_at,
                "has_history": row.has_history,
                "sentence": row.start_sentence,
            }
        return {
            "cluster": row.cluster.name,
            "scheduler": "kubernetes" if row.cluster.is_kubernetes else "slurm",
            "accepted": row.is_valid,
            "problem": row.problem,
            "left_out": list(row.left_out),
            "image": preview.image,
            "workload_kind": preview.workload_kind,
            "gpus": preview.gpus,
            "gpu_hours": preview.gpu_hours,
            "usd_held": preview.usd,
            "usd_left": preview.usd_left,
            "gpus_left": int(preview.gpus_left),
            "free_nodes": preview.free_nodes,
            "start": start,
            "request": exact,
        }
