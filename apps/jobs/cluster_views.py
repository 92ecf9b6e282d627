"""Fragments for the pages of lower floors, which may not name a job: the live jobs of a cluster or of one node."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from apps.clusters.selectors import cluster_for, node_for
from apps.core.pages import Page
from apps.jobs.limit_selectors import limit_rows
from apps.jobs.outside_selectors import waste_of
from apps.jobs.selectors import attempts_on_nodes, job_costs, jobs_visible_to
from apps.jobs.states import JOB_LIVE

MOST = 20


class JobsOnCluster(Page):
    """The newest live jobs of a cluster that the person may see, at most 20, refreshed while there are any."""

    right = "clusters.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A fragment."""
        cluster = cluster_for(actor=self.actor, may="clusters.view", uid=uid)
        rows = jobs_visible_to(self.actor).filter(cluster=cluster, phase__in=JOB_LIVE).order_by("-created_at", "-id")
        found = list(rows[: MOST + 1])
        context = {
            "jobs": found[:MOST],
            "costs": job_costs(found[:MOST]),
            "has_more": len(found) > MOST,
            "cluster": cluster,
        }
        return render(request, "jobs/on_cluster.html", context)


class NobodysJobs(Page):
    """Jobs of a cluster's queue that belong to no team: a fragment for the page of its Slurm."""

    right = "clusters.operate"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A fragment, empty where there are none."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        return render(request, "jobs/nobodys.html", {"waste": waste_of(cluster), "cluster": cluster})


class ClusterLimits(Page):
    """Teams' limits here and in a cluster's Slurm: a fragment for the page of its Slurm."""

    right = "clusters.operate"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A fragment, empty where no account has a team."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        return render(request, "jobs/limits.html", {"rows": limit_rows(cluster), "cluster": cluster})


class JobsOnNode(Page):
    """The jobs whose running attempt has this node, as far as the person may see them."""

    right = "clusters.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A fragment."""
        node = node_for(actor=self.actor, may="clusters.view", uid=uid)
        uids = {attempt.job.uid for attempt in attempts_on_nodes(node.cluster, [node.name])}
        jobs = list(jobs_visible_to(self.actor).filter(uid__in=uids, phase__in=JOB_LIVE)) if uids else []
        context = {
            "jobs": jobs,
            "costs": job_costs(jobs),
            "hidden": len(uids) - len(jobs),
            "node": node,
        }
        return render(request, "jobs/on_cluster.html", context)
