"""Addresses of the pages of clusters."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.clusters import group_views, kube_views, managed_views, mount_views, slurm_views, topology_views, views

urlpatterns: list[URLPattern] = [
    path("clusters", views.ClusterList.as_view(), name="clusters"),
    path("clusters/new", views.ClusterNew.as_view(), name="cluster-new"),
    path("clusters/new/kubernetes", kube_views.KubernetesNew.as_view(), name="cluster-new-kubernetes"),
    path("clusters/new/<str:kind>", managed_views.ClusterMake.as_view(), name="cluster-make"),
    path("clusters/new/<str:kind>/plan", managed_views.ClusterPlan.as_view(), name="cluster-plan"),
    path("clusters/adopt/<str:kind>", managed_views.ClusterAdopt.as_view(), name="cluster-adopt"),
    path("clusters/adopt/<str:kind>/plan", managed_views.ClusterAdoptPlan.as_view(), name="cluster-adopt-plan"),
    path("clusters/<str:uid>/retry", managed_views.ClusterRetry.as_view(), name="cluster-retry"),
    path("clusters/<str:uid>/groups/new", group_views.GroupNew.as_view(), name="group-new"),
    path("clusters/<str:uid>/groups/plan", group_views.GroupPlan.as_view(), name="group-plan"),
    path("clusters/<str:uid>/nodes/ask", group_views.NodesAsk.as_view(), name="nodes-ask"),
    path("groups/<str:uid>", group_views.GroupPage.as_view(), name="group"),
    path("groups/<str:uid>/resize", group_views.GroupResize.as_view(), name="group-resize"),
    path("groups/<str:uid>/delete", group_views.GroupDelete.as_view(), name="group-delete"),
    path("clusters/<str:uid>", views.ClusterPage.as_view(), name="cluster"),
    path("clusters/<str:uid>/slurm", slurm_views.SlurmPage.as_view(), name="cluster-slurm"),
    path("clusters/<str:uid>/kubernetes", kube_views.KubernetesPage.as_view(), name="cluster-kubernetes"),
    path("team-namespaces/<str:uid>/remove", kube_views.NamespaceRemove.as_view(), name="team-namespace-remove"),
    path("team-shares/<str:uid>/remove", kube_views.ShareRemove.as_view(), name="team-share-remove"),
    path("slurm-users/<str:uid>/remove", slurm_views.SlurmUserRemove.as_view(), name="slurm-user-remove"),
    path("slurm-accounts/<str:uid>/remove", slurm_views.SlurmAccountRemove.as_view(), name="slurm-account-remove"),
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
