"""Addresses of the pages of jobs."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.jobs import (
    action_views,
    array_views,
    cluster_views,
    detail_views,
    evidence_views,
    log_views,
    progress_views,
    start_views,
    stop_views,
    submit_views,
    views,
)

urlpatterns: list[URLPattern] = [
    path("jobs", views.JobList.as_view(), name="jobs"),
    path("jobs/rows", views.JobRows.as_view(), name="jobs-rows"),
    path("jobs/export.csv", views.JobCsv.as_view(), name="jobs-csv"),
    path("jobs/stop", stop_views.BulkStop.as_view(), name="jobs-stop"),
    path("jobs/act", action_views.JobsAct.as_view(), name="jobs-act"),
    path("jobs/new", submit_views.NewJob.as_view(), name="job-new"),
    path("jobs/new/read", submit_views.ReadScript.as_view(), name="job-new-read"),
    path("jobs/new/preview", submit_views.PreviewJob.as_view(), name="job-new-preview"),
    path("jobs/on-cluster/<str:uid>", cluster_views.JobsOnCluster.as_view(), name="jobs-on-cluster"),
    path("jobs/limits/<str:uid>", cluster_views.ClusterLimits.as_view(), name="jobs-limits"),
    path("jobs/nobodys/<str:uid>", cluster_views.NobodysJobs.as_view(), name="jobs-nobodys"),
    path("jobs/on-node/<str:uid>", cluster_views.JobsOnNode.as_view(), name="jobs-on-node"),
    path("jobs/<str:uid>", detail_views.JobOverview.as_view(), name="job"),
    path("jobs/<str:uid>/curve.json", detail_views.JobCurve.as_view(), name="job-curve"),
    path("jobs/<str:uid>/logs", log_views.JobLogs.as_view(), name="job-logs"),
    path("jobs/<str:uid>/logs.json", log_views.JobLogData.as_view(), name="job-logs-data"),
    path("jobs/<str:uid>/what-if", start_views.JobWhatIf.as_view(), name="job-what-if"),
    path("jobs/<str:uid>/model", progress_views.JobModel.as_view(), name="job-model"),
    path("jobs/<str:uid>/logs/search", log_views.JobLogSearch.as_view(), name="job-logs-search"),
    path("jobs/<str:uid>/logs/first-error", log_views.JobLogFirstError.as_view(), name="job-logs-error"),
    path("jobs/<str:uid>/logs.txt", log_views.JobLogText.as_view(), name="job-logs-text"),
    path("jobs/<str:uid>/tasks", array_views.JobTasks.as_view(), name="job-tasks"),
    path("jobs/<str:uid>/tasks.csv", array_views.JobTasksCsv.as_view(), name="job-tasks-csv"),
    path("jobs/<str:uid>/checkpoints", detail_views.JobCheckpoints.as_view(), name="job-checkpoints"),
    path("jobs/<str:uid>/timeline", detail_views.JobTimeline.as_view(), name="job-timeline"),
    path("jobs/<str:uid>/metrics", evidence_views.JobMetrics.as_view(), name="job-metrics"),
    path("jobs/<str:uid>/events", evidence_views.JobEvents.as_view(), name="job-events"),
    path("jobs/<str:uid>/config", detail_views.JobConfig.as_view(), name="job-config"),
    path("jobs/<str:uid>/cost", detail_views.JobCost.as_view(), name="job-cost"),
    path("jobs/<str:uid>/cancel", detail_views.StopJob.as_view(kind="cancel"), name="job-cancel"),
    path("jobs/<str:uid>/requeue", detail_views.StopJob.as_view(kind="requeue"), name="job-requeue"),
]
