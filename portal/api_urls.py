"""Every address of the API, on one screen."""

from __future__ import annotations

from django.urls import path, re_path

from apps.audit import api as audit
from apps.capacity import api as capacity
from apps.capacity import orphan_api as orphans
from apps.catalog import api as catalog
from apps.checkpoints import api as checkpoints
from apps.clusters import api as clusters
from apps.clusters import kube_api as kube
from apps.clusters import managed_api as managed
from apps.clusters import mount_api as mounts
from apps.clusters import node_action_api as node_actions
from apps.clusters import preflight_api as preflights
from apps.clusters import slurm_api as slurm
from apps.clusters import topology_views as topology
from apps.connections import api as connections
from apps.core.api import api_not_found
from apps.costs import api as costs
from apps.health import api as health
from apps.jobs import (
    action_api,
    array_api,
    candidate_api,
    happening_api,
    ingest_api,
    log_api,
    part_api,
    preview_api,
    progress_api,
    sbatch_api,
    spec_api,
    start_api,
    stop_api,
)
from apps.jobs import api as jobs
from apps.jobs import limit_api as limits
from apps.jobs import template_api as templates
from apps.quotas import api as quotas
from apps.storage import api as storage
from apps.teams import api as teams

app_name = "api"
urlpatterns = [
    path("whoami", teams.WhoAmI.as_view(), name="whoami"),
    path("teams", teams.Teams.as_view(), name="teams"),
    path("teams/<slug:slug>/quota", quotas.QuotaDetail.as_view(), name="quota"),
    path("teams/<slug:slug>/budget", costs.BudgetDetail.as_view(), name="budget"),
    path("teams/<slug:slug>/retry-rules", templates.TeamRetries.as_view(), name="team-retry"),
    path("tokens", teams.Tokens.as_view(), name="tokens"),
    path("tokens/<str:uid>/revoke", teams.TokenRevoke.as_view(), name="token-revoke"),
    path("accounts", connections.Accounts.as_view(), name="accounts"),
    path("accounts/<str:uid>", connections.Account.as_view(), name="account"),
    path("instance-types", catalog.InstanceTypes.as_view(), name="instance-types"),
    path("reservations", capacity.Reservations.as_view(), name="reservations"),
    path("reservations/<str:uid>", capacity.ReservationDetail.as_view(), name="reservation"),
    path("offering-searches", capacity.Searches.as_view(), name="offering-searches"),
    path("offering-searches/<str:uid>", capacity.SearchDetail.as_view(), name="offering-search"),
    path("purchases", capacity.Purchases.as_view(), name="purchases"),
    path("purchases/<str:uid>", capacity.PurchaseDetail.as_view(), name="purchase"),
    path("purchases/<str:uid>/approve", capacity.PurchaseDecision.as_view(verb="approve"), name="purchase-approve"),
    path("purchases/<str:uid>/reject", capacity.PurchaseDecision.as_view(verb="reject"), name="purchase-reject"),
    path("purchases/<str:uid>/resolve", capacity.PurchaseDecision.as_view(verb="resolve"), name="purchase-resolve"),
    path("purchases/<str:uid>/withdraw", capacity.PurchaseWithdraw.as_view(), name="purchase-withdraw"),
    path("orphans", orphans.Orphans.as_view(), name="orphans"),
    path("orphans/<str:uid>/remove", orphans.OrphanDecision.as_view(verb="remove"), name="orphan-remove"),
    path("orphans/<str:uid>/keep", orphans.OrphanDecision.as_view(verb="keep"), name="orphan-keep"),
    path("orphans/<str:uid>/release", orphans.OrphanDecision.as_view(verb="release"), name="orphan-release"),
    path("file-systems", storage.FileSystems.as_view(), name="file-systems"),
    path("file-systems/<str:uid>", storage.FileSystemDetail.as_view(), name="file-system"),
    path("file-systems/<str:uid>/associations", storage.Associations.as_view(), name="associations"),
    path("file-systems/<str:uid>/exports", storage.Exports.as_view(), name="exports"),
    path("associations/<str:uid>", storage.AssociationDetail.as_view(), name="association"),
    path("clusters", clusters.Clusters.as_view(), name="clusters"),
    path("clusters/<str:uid>", clusters.ClusterDetail.as_view(), name="cluster"),
    path("clusters/<str:uid>/mounts", mounts.Mounts.as_view(), name="mounts"),
    path("kubernetes-clusters", kube.KubernetesClusters.as_view(), name="kubernetes-clusters"),
    path("kubernetes-clusters/<str:uid>", kube.KubernetesDetail.as_view(), name="kubernetes-cluster"),
    path("kubernetes-clusters/<str:uid>/compare", kube.KubernetesCompare.as_view(), name="kubernetes-compare"),
    path("kubernetes-clusters/<str:uid>/namespaces", kube.TeamNamespaces.as_view(), name="team-namespaces"),
    path("team-namespaces/<str:uid>", kube.TeamNamespaceDetail.as_view(), name="team-namespace"),
    path("kubernetes-clusters/<str:uid>/shares", kube.TeamShares.as_view(), name="team-shares"),
    path("team-shares/<str:uid>", kube.TeamShareDetail.as_view(), name="team-share"),
    path("clusters/<str:uid>/slurm", slurm.SlurmSettings.as_view(), name="cluster-slurm"),
    path("clusters/<str:uid>/slurm-users", slurm.SlurmUsers.as_view(), name="slurm-users"),
    path("clusters/<str:uid>/slurm-users/import", slurm.SlurmUsersImport.as_view(), name="slurm-users-import"),
    path("clusters/<str:uid>/slurm-limits", limits.SlurmLimits.as_view(), name="slurm-limits"),
    path("clusters/<str:uid>/slurm-accounts", slurm.SlurmAccounts.as_view(), name="slurm-accounts"),
    path("slurm-users/<str:uid>", slurm.SlurmUserDetail.as_view(), name="slurm-user"),
    path("slurm-accounts/<str:uid>", slurm.SlurmAccountDetail.as_view(), name="slurm-account"),
    path("clusters/<str:uid>/retry", managed.ClusterRetry.as_view(), name="cluster-retry"),
    path("clusters/<str:uid>/groups", managed.ClusterGroups.as_view(), name="cluster-groups"),
    path("clusters/<str:uid>/node-actions", node_actions.NodeActions.as_view(), name="node-actions"),
    path("clusters/<str:uid>/provider-events", node_actions.ProviderEvents.as_view(), name="provider-events"),
    path("managed-clusters", managed.ManagedClusters.as_view(), name="managed-clusters"),
    path("managed-clusters/<str:uid>", managed.ManagedClusterDetail.as_view(), name="managed-cluster"),
    path("cluster-adoptions", managed.ClusterAdoptions.as_view(), name="cluster-adoptions"),
    path("groups/<str:uid>", managed.GroupDetail.as_view(), name="group"),
    path("mounts/<str:uid>", mounts.MountDetail.as_view(), name="mount"),
    path("clusters/<str:uid>/topology", topology.Topology.as_view(), name="topology"),
    path("preflights", preflights.Preflights.as_view(), name="preflights"),
    path("preflights/<str:uid>", preflights.PreflightDetail.as_view(), name="preflight"),
    path("fleets/<str:uid>/replace", preflights.FleetReplace.as_view(), name="fleet-replace"),
    path("fleets", clusters.Fleets.as_view(), name="fleets"),
    path("fleets/<str:uid>", clusters.FleetDetail.as_view(), name="fleet"),
    path("nodes", clusters.Nodes.as_view(), name="nodes"),
    path("nodes/<str:uid>", clusters.NodeDetail.as_view(), name="node"),
    path("nodes/<str:uid>/drain", clusters.NodeDrain.as_view(), name="node-drain"),
    path("nodes/<str:uid>/resume", clusters.NodeResume.as_view(), name="node-resume"),
    path("jobs", jobs.Jobs.as_view(), name="jobs"),
    path("jobs/preview", preview_api.JobPreview.as_view(), name="job-preview"),
    path("jobs/candidates", candidate_api.JobCandidates.as_view(), name="job-candidates"),
    path("jobs/import", sbatch_api.SbatchImport.as_view(), name="jobs-import"),
    path("jobs/stop", stop_api.JobsStop.as_view(), name="jobs-stop"),
    path("jobs/act", action_api.JobsAct.as_view(), name="jobs-act"),
    path("jobs/<str:uid>", jobs.JobDetail.as_view(), name="job"),
    path("jobs/<str:uid>/what-if", start_api.JobWhatIf.as_view(), name="job-what-if"),
    path("jobs/<str:uid>/cancel", stop_api.JobStop.as_view(kind="cancel"), name="job-cancel"),
    path("jobs/<str:uid>/requeue", stop_api.JobStop.as_view(kind="requeue"), name="job-requeue"),
    path("jobs/<str:uid>/logs", log_api.JobLogs.as_view(), name="job-logs"),
    path("jobs/<str:uid>/logs/search", log_api.JobLogSearch.as_view(), name="job-logs-search"),
    path("jobs/<str:uid>/logs/first-error", log_api.JobLogFirstError.as_view(), name="job-logs-error"),
    path("jobs/<str:uid>/parts", part_api.JobParts.as_view(), name="job-parts"),
    path("jobs/<str:uid>/happenings", happening_api.JobHappenings.as_view(), name="job-happenings"),
    path("jobs/<str:uid>/tasks", array_api.JobTasks.as_view(), name="job-tasks"),
    path("jobs/<str:uid>/spec", spec_api.JobSpecBody.as_view(), name="job-spec"),
    path("jobs/<str:uid>/actions", action_api.JobActions.as_view(), name="job-actions"),
    path("jobs/<str:uid>/progress", jobs.JobProgress.as_view(), name="job-progress"),
    path("jobs/<str:uid>/model", progress_api.JobModel.as_view(), name="job-model"),
    path("jobs/<str:uid>/attempts", jobs.JobAttempts.as_view(), name="job-attempts"),
    path("jobs/<str:uid>/checkpoints", jobs.JobCheckpoints.as_view(), name="job-checkpoints"),
    path("jobs/<str:uid>/events", jobs.JobEvents.as_view(), name="job-events"),
    path("jobs/<str:uid>/ledger", jobs.JobLedger.as_view(), name="job-ledger"),
    path("templates", templates.Templates.as_view(), name="templates"),
    path("templates/<str:uid>", templates.TemplateDetail.as_view(), name="template"),
    path("templates/<str:uid>/versions", templates.TemplateVersions.as_view(), name="template-versions"),
    path("templates/<str:uid>/versions/<int:number>", templates.TemplateVersion.as_view(), name="template-version"),
    path("templates/<str:uid>/retire", templates.TemplateOffer.as_view(), name="template-retire"),
    path("templates/<str:uid>/offer", templates.TemplateOffer.as_view(is_offered=True), name="template-offer"),
    path("checkpoints", checkpoints.Checkpoints.as_view(), name="checkpoints"),
    path("checkpoints/<str:uid>", checkpoints.CheckpointDetail.as_view(), name="checkpoint"),
    path("findings", health.Findings.as_view(), name="findings"),
    path("findings/<str:uid>", health.FindingDetail.as_view(), name="finding"),
    path(
        "findings/<str:uid>/acknowledge", health.FindingAnswer.as_view(verb="acknowledge"), name="finding-acknowledge"
    ),
    path("findings/<str:uid>/resolve", health.FindingAnswer.as_view(verb="resolve"), name="finding-resolve"),
    path("xid-codes", health.XidCodes.as_view(), name="xid-codes"),
    path("costs", costs.Standings.as_view(), name="costs"),
    path("postings", costs.Postings.as_view(), name="postings"),
    path("quotas", quotas.Quotas.as_view(), name="quotas"),
    path("audit", audit.Entries.as_view(), name="audit"),
    path("ingest/attempts/<str:uid>/events", ingest_api.Ingest.as_view(), name="ingest"),
    path("ingest/attempts/<str:uid>/status", ingest_api.Status.as_view(), name="ingest-status"),
    re_path(r"^(?P<rest>.*)$", api_not_found, name="not-found"),
]
