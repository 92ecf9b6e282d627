"""Addresses of the pages of GPU health."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.health import views

urlpatterns: list[URLPattern] = [
    path("health", views.HealthPage.as_view(), name="health"),
    path("health/gpus", views.GpuTable.as_view(), name="gpus"),
    path("health/gpus.csv", views.GpuCsv.as_view(), name="gpus-csv"),
    path("health/xid", views.XidPage.as_view(), name="xid-codes"),
    path("health/nodes-of/<str:uid>", views.NodeGrid.as_view(), name="health-node-grid"),
    path("findings", views.FindingList.as_view(), name="findings"),
    path("findings/<str:uid>", views.FindingPage.as_view(), name="finding"),
    path(
        "findings/<str:uid>/acknowledge",
        views.FindingAnswer.as_view(verb="acknowledge"),
        name="finding-acknowledge",
    ),
    path("findings/<str:uid>/resolve", views.FindingAnswer.as_view(verb="resolve"), name="finding-resolve"),
    path("nodes/<str:uid>", views.NodePage.as_view(), name="node"),
]
