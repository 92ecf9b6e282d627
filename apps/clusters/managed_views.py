"""Pages of clusters that AWS keeps: making and adopting one, its own page, correcting it, another try."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from apps.audit.selectors import events_of
from apps.audit.timeline import lines_of
from apps.capacity.selectors import live_reservations
from apps.clusters.group_forms import GroupForm
from apps.clusters.group_models import NodeGroup
from apps.clusters.history import WORDS
from apps.clusters.managed_forms import FORMS, AdoptForm, ManagedEditForm, ManagedForm, show_at
from apps.clusters.managed_plans import Plan, blocker_of, line_of, lines_of_config, plan_adoption, plan_cluster
from apps.clusters.managed_selectors import (
    actions_of,
    groups_live,
    happenings_of,
    members_of,
    steps_of,
)
from apps.clusters.managed_services import REACH, cluster_adopt, cluster_create, cluster_retry, cluster_update
from apps.clusters.managed_words import (
    facts_of,
    group_sentence,
    issues_of,
    jobs_words,
    managed_sentence,
    notes_of,
)
from apps.clusters.models import Cluster, Mount
from apps.clusters.permissions import can_operate_clusters
from apps.clusters.selectors import capacities, cluster_for, gpu_segments, mounts_of
from apps.clusters.services import ClusterInUse, live_jobs
from apps.clusters.states import (
    GROUP_WORKING,
    KINDS_GROUPED,
    KINDS_HYPERPOD,
    KINDS_MANAGED,
    NODE_ACTION_OPEN,
    ClusterKind,
    ClusterPhase,
    GroupPhase,
    GroupSource,
)
from apps.connections.models import CloudAccount
from apps.connections.selectors import accounts_visible_to
from apps.core.errors import InvalidInput, NotFound, Refusal
from apps.core.forms import is_htmx, posted_version
from apps.core.pages import Page, once
from apps.storage.selectors import mount_command
from apps.teams.permissions import Actor
from apps.teams.selectors import teams_visible_to

#: Kinds as the choice shows them: name, what it is in one line.
KIND_LINES: tuple[tuple[ClusterKind, Callable[[], str]], ...] = (
    (ClusterKind.SLURM, lambda: _("Your own slurmctld; machines come in fleets of EC2.")),
    (ClusterKind.PCS, lambda: _("AWS runs Slurm's controller; machines come and go with the queue.")),
    (ClusterKind.EKS, lambda: _("Kubernetes by AWS with node groups of GPU machines.")),
    (ClusterKind.HYPERPOD_SLURM, lambda: _("Machines outside EC2 that SageMaker watches and repairs; Slurm on them.")),
    (ClusterKind.HYPERPOD_EKS, lambda: _("The same machines as nodes of an EKS cluster.")),
    (ClusterKind.PARALLELCLUSTER, lambda: _("Slurm with a head node of its own, by a configuration in YAML.")),
    (ClusterKind.KUBERNETES, lambda: _("Your own Kubernetes, by a kubeconfig; its nodes are yours.")),
)


def kind_choices(chosen: str, is_adopted: bool) -> list[dict[str, Any]]:
    """Kinds with the address of their form; ``is_chosen`` marks where the person is."""
    found = []
    for kind, line in KIND_LINES:
        if kind == ClusterKind.SLURM:
            url = reverse("cluster-new")
        elif kind == ClusterKind.KUBERNETES:
            url = reverse("cluster-new-kubernetes")
        else:
            url = reverse("cluster-adopt" if is_adopted else "cluster-make", args=[kind.value])
        found.append({"label": kind.label, "line": line(), "url": url, "is_chosen": kind == chosen})
    return found


class _NewForm(Page):
    """What the form of a new cluster and its preview share."""

    right = "clusters.operate"
    abstract = True
    is_adopted = False

    def kind_of(self, kind: str) -> str:
        """The kind in the address. Raises NotFound."""
        if kind not in KINDS_MANAGED:
            raise NotFound(_("There is no such page."))
        return kind

    def forms(self, kind: str, data: Any = None) -> tuple[ManagedForm, GroupForm | None]:
        """The form of the kind, and of its first group where it has one."""
        # Those that can be used come first: the first is chosen.
        accounts = sorted(accounts_visible_to(self.actor), key=lambda a: bool(blocker_of(a)))
        initial: dict[str, Any] = {"key": uuid.uuid4().hex, "on_create": "on_create.sh"}
        maker = AdoptForm if self.is_adopted else FORMS[kind]
        form = maker(data, initial=initial, kind=kind, accounts=accounts)
        if self.is_adopted or kind not in KINDS_GROUPED:
            return form, None
        shares = ("role_arn", "lifecycle_s3", "on_create", "node_type") if kind in KINDS_HYPERPOD else ()
        group = group_form(
            self.actor,
            kind,
            accounts,
            data,
            prefix="group",
            shares=shares,
            is_optional=kind not in KINDS_HYPERPOD,
            initial={"instance_type": "p5.48xlarge", "nodes": 1, "name": "train", "queue": "train"},
        )
        return form, group

    def groups(self, form: ManagedForm, group: GroupForm | None) -> list[dict[str, Any]]:
        """The groups that were asked for, as the service takes them."""
        if group is None or not group.has_group:
            return []
        wanted = group.values()
        if form.kind in KINDS_HYPERPOD:
            shared = form.shared()  # type: ignore[attr-defined]
            wanted |= {**shared, "settings": {**wanted["settings"], **shared["settings"]}}
        return [*form.heads(), wanted]

    def plan(self, form: ManagedForm, group: GroupForm | None) -> Plan:
        """What would happen with what is typed so far."""
        account = form.chosen_account()
        if self.is_adopted:
            return plan_adoption(account)
        if form.is_bound:
            form.is_valid()
        settings = {name: form.now(name) for name in form.settings_fields}
        if form.kind == ClusterKind.PARALLELCLUSTER:
            lines = lines_of_config(str(settings.get("config") or ""), account)
            return plan_cluster(form.kind, account, settings, lines)
        lines, sources = (), []
        if group is not None and group.has_group:
            now = group.now()
            kept = now["reservation"]
            line = line_of(form.kind, account, now, kept)
            lines = (line,) if line else ()
            sources = [(now.get("source") or GroupSource.ON_DEMAND, kept)]
        if form.kind == ClusterKind.HYPERPOD_SLURM:
            head = {"name": "controller", "instance_type": form.now("controller_type"), "nodes": 1}
            controller = line_of(form.kind, account, head)
            lines = (*((controller,) if controller else ()), *lines)
        return plan_cluster(form.kind, account, settings, lines, sources)

    def context(self, form: ManagedForm, group: GroupForm | None) -> dict[str, Any]:
        """Everything the page shows."""
        kind = form.kind
        return {
            "form": form,
            "group": group,
            "kind": kind,
            "kind_label": ClusterKind(kind).label,
            "kinds": kind_choices(kind, self.is_adopted),
            "is_adopted": self.is_adopted,
            "is_hyperpod": kind in KINDS_HYPERPOD,
            "make_url": reverse("cluster-make", args=[kind]),
            "adopt_url": reverse("cluster-adopt", args=[kind]),
            "plan_url": reverse("cluster-adopt-plan" if self.is_adopted else "cluster-plan", args=[kind]),
            "plan": self.plan(form, group),
        }


def group_form(actor: Actor, kind: str, accounts: list[CloudAccount], data: Any = None, **more: Any) -> GroupForm:
    """The form of a group with what this person may choose."""
    kept = [r for a in accounts for r in live_reservations(a).select_related("account")]
    return GroupForm(data, kind=kind, teams=list(teams_visible_to(actor)), reservations=kept, **more)


class ClusterMake(_NewForm):
    """Have AWS make a cluster."""

    def get(self, request: HttpRequest, kind: str) -> HttpResponse:
        """An empty form."""
        return render(request, "clusters/managed_new.html", self.context(*self.forms(self.kind_of(kind))))

    def post(self, request: HttpRequest, kind: str) -> HttpResponse:
        """Make it; a second click gets the first one's cluster, a refusal shows at its fields."""
        form, group = self.forms(self.kind_of(kind), request.POST)
        if form.is_valid() and (group is None or group.is_valid()):
            heads = len(form.heads())

            def effect() -> str:
                cluster = self.make(form, group)
                return reverse("cluster", args=[cluster.uid])

            try:
                return HttpResponseRedirect(once(request, form.cleaned_data["key"], effect))
            except Refusal as refusal:
                show_at(refusal, form, group, heads)
        return render(request, "clusters/managed_new.html", self.context(form, group), status=422)

    def make(self, form: ManagedForm, group: GroupForm | None) -> Cluster:
        """The one call."""
        return cluster_create(
            actor=self.actor,
            account=form.accounts[form.cleaned_data["account"]],
            kind=form.kind,
            name=form.cleaned_data["name"],
            settings=form.settings(),
            groups=self.groups(form, group),
            **form.reach(),
        )


class ClusterAdopt(ClusterMake):
    """Watch a cluster that is in an account already."""

    right = "clusters.operate"
    is_adopted = True

    def make(self, form: ManagedForm, group: GroupForm | None) -> Cluster:
        """The one call."""
        return cluster_adopt(
            actor=self.actor,
            account=form.accounts[form.cleaned_data["account"]],
            kind=form.kind,
            name=form.cleaned_data["name"],
            name_at_provider=form.cleaned_data["name_at_provider"],
            **form.reach(),
        )


class ClusterPlan(_NewForm):
    """What will happen: the right column."""

    def post(self, request: HttpRequest, kind: str) -> HttpResponse:
        """A fragment."""
        context = self.context(*self.forms(self.kind_of(kind), request.POST))
        return render(request, "clusters/managed_new.html#plan", context)


class ClusterAdoptPlan(ClusterPlan):
    """The same of an adoption."""

    right = "clusters.operate"
    is_adopted = True


# --- one cluster -----------------------------------------------------------------------------------


def managed_page(request: HttpRequest, actor: Actor, cluster: Cluster) -> HttpResponse:
    """The page of a cluster that AWS keeps, or with htmx its live part."""
    context = live_context(actor, cluster)
    if is_htmx(request):
        return render(request, "clusters/managed.html#live", context)
    return render(request, "clusters/managed.html", {**context, **still_context(actor, cluster)})


def live_context(actor: Actor, cluster: Cluster) -> dict[str, Any]:
    """What changes while one looks at it."""
    capacity = capacities([cluster])[0]
    groups = groups_live(cluster)
    steps = steps_of(cluster)
    is_over = cluster.phase in (ClusterPhase.FAILED, ClusterPhase.DELETING, ClusterPhase.DELETED)
    troubled = sum(1 for g in groups if g.phase in (GroupPhase.DEGRADED, GroupPhase.FAILED))
    actions = list(actions_of(cluster)[:30]) if cluster.kind in KINDS_HYPERPOD else []
    is_moving = (
        cluster.phase in (ClusterPhase.PENDING, ClusterPhase.CREATING, ClusterPhase.DELETING)
        or any(g.phase in GROUP_WORKING for g in groups)
        or any(a.phase in NODE_ACTION_OPEN for a in actions)
    )
    return {
        "cluster": cluster,
        "capacity": capacity,
        "segments": gpu_segments(capacity),
        "sentence": managed_sentence(cluster, capacity.nodes, (len(groups), troubled)),
        "steps": steps,
        "shows_steps": any(s.state != "DONE" for s in steps) and cluster.phase != ClusterPhase.DELETED,
        "is_over": is_over,
        "groups": [(g, group_sentence(g), issues_of(g), usd_now(actor, g)) for g in groups],
        "is_grouped": cluster.kind in KINDS_GROUPED,
        "is_elastic": cluster.kind in (ClusterKind.PCS, ClusterKind.PARALLELCLUSTER),
        "is_hyperpod": cluster.kind in KINDS_HYPERPOD,
        "happenings": list(happenings_of(cluster)[:30]) if cluster.kind in KINDS_HYPERPOD else [],
        "actions": actions,
        "is_deleted": cluster.phase == ClusterPhase.DELETED,
        "is_failed": cluster.phase == ClusterPhase.FAILED,
        "is_retried": cluster.observed_generation and cluster.generation > cluster.observed_generation,
        "period_s": 3 if is_moving else 15,
        "may_operate": can_operate_clusters(actor) and cluster.delete_requested_at is None,
    }


def still_context(actor: Actor, cluster: Cluster) -> dict[str, Any]:
    """What is read once, with the whole page."""
    groups = groups_live(cluster)
    burn = [usd_now(actor, g) for g in groups]
    rows: list[Mount] = list(mounts_of(cluster))
    return {
        "members": members_of(cluster),
        "may_ask": cluster.kind in KINDS_HYPERPOD
        and can_operate_clusters(actor)
        and cluster.delete_requested_at is None
        and cluster.phase in (ClusterPhase.READY, ClusterPhase.UNREACHABLE),
        "facts": facts_of(cluster),
        "facts_name_it": not cluster.api_url and "SLURMRESTD" in (cluster.provider_facts.get("endpoints") or {}),
        "notes": notes_of(cluster.kind, idle_s=cluster.settings.get("idle_s")),
        "jobs_words": jobs_words(cluster),
        "head": cluster.provider_facts.get("head_node") or {},
        "config": str(cluster.provider_facts.get("config") or ""),
        "is_parallelcluster": cluster.kind == ClusterKind.PARALLELCLUSTER,
        "lines": lines_of(events_of([cluster.uid], 50), WORDS),
        "mounts": [(m, mount_command(m.file_system, m.path) if m.file_system else "") for m in rows],
        "live_jobs": live_jobs(cluster),
        "machines": sum(g.observed_nodes for g in groups),
        "live_groups": len(groups),
        "usd_now": sum(b for b in burn if b is not None),
        "unpriced": sorted({g.instance_type for g in groups if g.usd_per_hour is None and g.observed_nodes}),
    }


def usd_now(actor: Actor, group: NodeGroup) -> Any:
    """What a group's machines cost an hour now; None where the price is unknown or not this person's to see."""
    if not (actor.everywhere("costs.view") or actor.may("costs.view", group.team_id)):
        return None
    return None if group.usd_per_hour is None else group.usd_per_hour * group.observed_nodes


class ClusterRetry(Page):
    """Have the worker try a failed cluster again."""

    right = "clusters.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        cluster_retry(actor=self.actor, cluster=cluster, expected_version=posted_version(request))
        self.say(_("The worker tries %(name)s again; it looks for what is there first.") % {"name": cluster.name})
        return HttpResponseRedirect(reverse("cluster", args=[cluster.uid]))


def edit_page(page: Page, request: HttpRequest, cluster: Cluster) -> HttpResponse:
    """GET: the form as the cluster is now. POST: correct it; a refusal shows at its fields."""
    if request.method != "POST":
        initial = {name: getattr(cluster, name) for name in (*REACH, "name", "responds_to_findings")}
        form = ManagedEditForm(kind=cluster.kind, initial=initial)
        return _edit(request, cluster, form, cluster.version)
    version = posted_version(request)
    form = ManagedEditForm(request.POST, kind=cluster.kind)
    if form.is_valid():
        try:
            cluster_update(actor=page.actor, cluster=cluster, expected_version=version, **form.values())
        except (InvalidInput, ClusterInUse) as refusal:
            form.show(refusal)
        else:
            page.say(_("%(name)s was changed.") % {"name": cluster.name})
            return HttpResponseRedirect(reverse("cluster", args=[cluster.uid]))
    cluster.refresh_from_db()
    return _edit(request, cluster, form, version, status=422)


def _edit(
    request: HttpRequest, cluster: Cluster, form: ManagedEditForm, version: int, status: int = 200
) -> HttpResponse:
    context = {"form": form, "cluster": cluster, "version": version, "live_jobs": live_jobs(cluster)}
    return render(request, "clusters/managed_edit.html", context, status=status)
