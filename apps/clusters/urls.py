"""Addresses of the pages of clusters."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.clusters import mount_views, topology_views, views

urlpatterns: list[URLPattern] = [
    path("clusters", views.ClusterList.as_view(), name="clusters"),
    path("clusters/new", views.ClusterNew.as_view(), name="cluster-new"),
    path("clusters/<str:uid>", views.ClusterPage.as_view(), name="cluster"),
    path("clusters/<str:uid>/edit", views.ClusterEdit.as_view(), name="cluster-edit"),
    path("clusters/<str:uid>/delete", views.ClusterDelete.as_view(), name="cluster-delete"),
    path("clusters/<str:uid>/fleets/new", views.FleetNew.as_view(), name="fleet-new"),
    path("clusters/<str:uid>/fleets/preview", views.FleetPreview.as_view(), name="fleet-preview"),
    path("clusters/<str:uid>/fleets/check", views.FleetCheck.as_view(), name="fleet-check"),
    path("clusters/<str:uid>/topology/<str:form>", topology_views.TopologyFile.as_view(), name="topology-file"),
    path("preflights/<str:uid>", views.PreflightPage.as_view(), name="preflight"),
    path("fleets/<str:uid>/replace", views.FleetReplace.as_view(), name="fleet-replace"),
    path("clusters/<str:uid>/mounts/new", mount_views.MountNew.as_view(), name="mount-new"),
    path("mounts/<str:uid>/remove", mount_views.MountRemove.as_view(), name="mount-remove"),
    path("fleets/burn", views.BurnTable.as_view(), name="fleets-burn"),
    path("fleets/<str:uid>", views.FleetPage.as_view(), name="fleet"),
    path("fleets/<str:uid>/delete", views.FleetDelete.as_view(), name="fleet-delete"),
    path("nodes/<str:uid>/drain", views.NodeDrain.as_view(), name="node-drain"),
    path("nodes/<str:uid>/resume", views.NodeResume.as_view(), name="node-resume"),
]
