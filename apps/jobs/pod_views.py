"""Tab of a job on Kubernetes: its pods by rank, and the lines with which to look oneself."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from apps.jobs.detail_views import JobPage
from apps.jobs.kube_selectors import commands_for, pods_of


class JobPods(JobPage):
    """The pods of the newest attempt."""

    tab = "pods"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page or its live part."""
        job = self.job(uid)
        context = self.frame(job)
        attempt = context["attempt"]
        context["pods"] = pods_of(attempt)
        context["commands"] = commands_for(job, attempt) if job.cluster.is_kubernetes else []
        return self.answer(request, "jobs/job_pods.html", context)
