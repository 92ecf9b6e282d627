"""The pages of capacity, health, checkpoints, money and admin: name, arguments, the right it takes."""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from tests.demo_rows import DemoRows

KINDS = ("pcs", "eks", "hyperpod-slurm", "hyperpod-eks", "parallelcluster")
#: Addresses among the places that answer a part of a page, or a file.
FRAGMENTS = {
    "template-row",
    "jobs-nobodys",
    "jobs-limits",
    "jobs-on-cluster",
    "jobs-on-node",
    "health-node-grid",
    "fleets-burn",
    "audit-chain",
}
FILES = {"gpus-csv", "ledger-csv", "audit-csv"}
#: (URL name, what of the demo site it is about, who may open it).
#: Everyone: any role. Team: only who sees team nlp. Keepers: its leads and admins. Operators, admins: platform roles.
PLACES: tuple[tuple[str, str, str], ...] = (
    ("clusters", "", "everyone"),
    ("cluster", "cluster", "everyone"),
    ("fleet", "fleet", "everyone"),
    ("fleet", "batched_fleet", "everyone"),
    ("fleet", "fleet_in_block", "everyone"),
    ("jobs-on-cluster", "cluster", "everyone"),
    ("jobs-on-node", "node", "everyone"),
    ("cluster-new", "", "operators"),
    ("cluster-edit", "cluster", "operators"),
    ("cluster-slurm", "cluster", "operators"),
    ("cluster-kubernetes", "eks", "operators"),
    ("cluster-kubernetes", "kubernetes", "operators"),
    ("cluster-new-kubernetes", "", "operators"),
    ("cluster", "kubernetes", "everyone"),
    ("node", "kubernetes_node", "everyone"),
    ("jobs-nobodys", "cluster", "operators"),
    ("jobs-limits", "cluster", "operators"),
    ("fleet-new", "cluster", "operators"),
    ("cluster", "pcs", "everyone"),
    ("cluster", "eks", "everyone"),
    ("cluster", "hyperpod", "everyone"),
    ("cluster", "parallelcluster", "everyone"),
    ("cluster", "failed_cluster", "everyone"),
    ("cluster-edit", "pcs", "operators"),
    *(("cluster-make", f"kind:{kind}", "operators") for kind in KINDS),
    *(("cluster-adopt", f"kind:{kind}", "operators") for kind in KINDS),
    ("group-new", "pcs", "operators"),
    ("group-new", "hyperpod", "operators"),
    ("group", "group", "everyone"),
    ("mount-new", "cluster", "operators"),
    ("calendar", "", "everyone"),
    ("reservation", "reservation", "everyone"),
    ("purchases", "", "everyone"),
    ("purchase", "purchase", "team"),
    ("offering-search-new", "", "operators"),
    ("offering-search", "search", "operators"),
    ("odcr-new", "", "operators"),
    ("orphans", "", "operators"),
    ("storage", "", "everyone"),
    ("storage-compare", "", "everyone"),
    ("file-system", "file_system", "everyone"),
    ("file-system-new", "", "operators"),
    ("catalog", "", "everyone"),
    ("health", "", "everyone"),
    ("gpus", "", "everyone"),
    ("gpus-csv", "", "everyone"),
    ("xid-codes", "", "everyone"),
    ("health-node-grid", "cluster", "everyone"),
    ("node", "node", "everyone"),
    ("findings", "", "everyone"),
    ("finding", "finding", "everyone"),
    ("checkpoints", "", "everyone"),
    ("checkpoints-all", "", "everyone"),
    ("checkpoint", "checkpoint", "team"),
    ("costs", "", "everyone"),
    ("fleets-burn", "", "everyone"),
    ("ledger", "", "everyone"),
    ("ledger-csv", "", "everyone"),
    ("team-costs", "team", "team"),
    ("quotas", "", "everyone"),
    ("quota-history", "team", "team"),
    ("connections", "", "operators"),
    ("connection-new", "", "operators"),
    ("connection", "account", "operators"),
    ("connection-edit", "account", "operators"),
    ("templates", "", "everyone"),
    ("template", "template", "team"),
    ("template", "retired_template", "team"),
    ("template-version", "template_version", "team"),
    ("template-new", "", "keepers"),
    ("template-row", "", "keepers"),
    ("template-edit", "template", "keepers"),
    ("team-retry", "team", "team"),
    ("audit", "", "admins"),
    ("audit-chain", "", "admins"),
    ("audit-csv", "", "admins"),
)


def argument(site: DemoRows, about: str) -> list[Any]:
    """The address's argument for what it is about."""
    from apps.capacity.models import OfferingSearch, Purchase, Reservation
    from apps.checkpoints.models import Checkpoint
    from apps.clusters.group_models import NodeGroup
    from apps.connections.models import CloudAccount
    from apps.storage.models import FileSystem

    if about.startswith("kind:"):
        return [about.removeprefix("kind:")]
    match about:
        case "pcs":
            return [site.clusters["shannon"].uid]
        case "eks":
            return [site.clusters["hamilton"].uid]
        case "hyperpod":
            return [site.clusters["lovelace"].uid]
        case "kubernetes":
            return [site.clusters["babbage"].uid]
        case "kubernetes_node":
            return [site.clusters["babbage"].nodes.get(name="ip-10-2-0-12.ec2.internal").uid]
        case "parallelcluster":
            return [site.clusters["hpc-west"].uid]
        case "failed_cluster":
            return [site.clusters["noether"].uid]
        case "group":
            return [NodeGroup.objects.get(cluster=site.clusters["shannon"], name="eval").uid]
        case "cluster":
            return [site.clusters["ada"].uid]
        case "batched_fleet":
            return [site.fleets["p5en-sweep"].uid]
        case "fleet_in_block":
            return [site.fleets["p5-main"].uid]
        case "fleet":
            return [site.fleets["p5en-eval"].uid]
        case "node":
            return [site.nodes["p5-main-8"].uid]
        case "finding":
            return [site.findings["xid79"].uid]
        case "checkpoint":
            return [Checkpoint.objects.get(state="TORN", series__name="sft-instruct-v3").uid]
        case "file_system":
            return [FileSystem.objects.get(name="train-scratch").uid]
        case "reservation":
            return [Reservation.objects.get(name="pretrain-w48").uid]
        case "purchase":
            return [Purchase.objects.get(name="ablations").uid]
        case "search":
            return [OfferingSearch.objects.latest("id").uid]
        case "team":
            return ["nlp"]
        case "template":
            return ["pretrain-sweep"]
        case "retired_template":
            return ["tokenize"]
        case "template_version":
            return ["pretrain-sweep", 2]
        case "account":
            return [CloudAccount.objects.get(name="research").uid]
        case _:
            return []


def address(site: DemoRows, name: str, about: str) -> str:
    """Where it is."""
    return reverse(name, args=argument(site, about))
