"""Pages of clusters and fleets: list, detail with live parts, and their creation and removal."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django_filters import FilterSet

from apps.audit.selectors import events_of
from apps.audit.timeline import lines_of
from apps.capacity.selectors import live_reservations
from apps.catalog.selectors import type_by_name
from apps.clusters import managed_services
from apps.clusters.fleet_services import fleet_create, fleet_delete, fleet_replace, preflight_ask
from apps.clusters.forms import ClusterForm, FleetForm
from apps.clusters.history import WORDS, check_label, planned_checks, step_advice
from apps.clusters.managed_selectors import group_counts
from apps.clusters.managed_views import edit_page, kind_choices, managed_page
from apps.clusters.models import Cluster, Fleet, Node
from apps.clusters.permissions import can_operate_clusters
from apps.clusters.plans import plan_fleet
from apps.clusters.selectors import (
    burning,
    capacities,
    cluster_for,
    cluster_sentence,
    clusters_removed,
    clusters_visible_to,
    fleet_for,
    fleet_sentence,
    fleets_visible_to,
    gpu_segments,
    mounts_of,
    node_for,
    nodes_visible_to,
    preflight_for,
)
from apps.clusters.services import (
    EDITABLE,
    ClusterInUse,
    cluster_create,
    cluster_delete,
    cluster_update,
    live_jobs,
    node_drain,
    node_resume,
)
from apps.clusters.states import (
    BATCH_COLOURS,
    FLEET_BILLED,
    FLEET_LIVE,
    FLEET_WORKING,
    CapacitySource,
    ClusterKind,
    ClusterPhase,
    FleetPhase,
    StepState,
)
from apps.clusters.topology import placement_quality
from apps.connections.selectors import accounts_visible_to
from apps.connections.services import AccountInUse
from apps.core import clock
from apps.core.errors import Elsewhere, InvalidInput, Refusal, field_refusal
from apps.core.filters import ChoicesFilter, TextFilter
from apps.core.forms import is_htmx, posted_version, typed_name
from apps.core.lists import listing
from apps.core.pages import Page, once
from apps.storage.selectors import mount_command
from apps.teams.models import Team
from apps.teams.selectors import teams_visible_to

SORTS = {"name": "name", "-name": "-name", "-created_at": "-created_at", "created_at": "created_at", "phase": "phase"}
LABELS = {"phase": gettext_lazy("State"), "kind": gettext_lazy("Kind"), "q": gettext_lazy("Text")}


class ClusterFilter(FilterSet):  # type: ignore[misc]
    """By phase, kind and text."""

    phase = ChoicesFilter("phase", values=ClusterPhase.choices)
    kind = ChoicesFilter("kind", values=ClusterKind.choices)
    q = TextFilter("name", "api_url", "account__name")

    class Meta:
        model = Cluster
        fields: list[str] = []


class ClusterList(Page):
    """All clusters as cards with their GPUs."""

    right = "clusters.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page, or with htmx its cards. Raises BadQuery."""
        shows_removed = request.GET.get("phase") == ClusterPhase.DELETED
        found = listing(
            request,
            clusters_removed(self.actor) if shows_removed else clusters_visible_to(self.actor),
            ClusterFilter,
            sorts=SORTS,
            labels=LABELS,
            words={
                "phase": lambda value: str(ClusterPhase(value).label),
                "kind": lambda value: str(ClusterKind(value).label),
            },
        )
        counts = group_counts(found.rows)
        cards = [
            (c, gpu_segments(c), cluster_sentence(c.cluster, c, counts.get(c.cluster.pk, (0, 0))))
            for c in capacities(found.rows)
        ]
        context = {
            "list": found,
            "cards": cards,
            "phases": ClusterPhase.choices,
            "kinds": ClusterKind.choices,
            "may_operate": can_operate_clusters(self.actor),
        }
        return render(
            request, "clusters/clusters.html#cards" if is_htmx(request) else "clusters/clusters.html", context
        )


class ClusterPage(Page):
    """One cluster: how it is, its fleets, its nodes, its jobs."""

    right = "clusters.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page, or with htmx its live part."""
        cluster = cluster_for(actor=self.actor, may="clusters.view", uid=uid)
        if cluster.is_managed:
            return managed_page(request, self.actor, cluster)
        capacity = capacities([cluster])[0]
        lately = clock.now() - timedelta(days=1)
        rows = fleets_visible_to(self.actor).filter(cluster=cluster).prefetch_related("steps")
        fleets = [f for f in rows[:200] if f.phase in FLEET_LIVE or f.phase_since > lately]
        context: dict[str, Any] = {
            "cluster": cluster,
            "capacity": capacity,
            "segments": gpu_segments(capacity),
            "sentence": cluster_sentence(cluster, capacity),
            "fleets": [(f, fleet_sentence(f), steps_done(f)) for f in fleets],
            "live_fleets": sum(1 for f in fleets if f.phase in FLEET_LIVE),
            "period_s": 3 if any(f.phase in FLEET_WORKING for f in fleets) else 10,
            "may_operate": can_operate_clusters(self.actor) and cluster.delete_requested_at is None,
            "live_jobs": live_jobs(cluster),
        }
        if is_htmx(request):
            return render(request, "clusters/cluster.html#live", context)
        context["lines"] = lines_of(events_of([cluster.uid], 50), WORDS)
        context["mounts"] = [
            (mount, mount_command(mount.file_system, mount.path) if mount.file_system else "")
            for mount in mounts_of(cluster)
        ]
        return render(request, "clusters/cluster.html", context)


def steps_done(fleet: Fleet) -> tuple[int, int]:
    """(done, all) of a fleet's steps, from the prefetched rows."""
    steps = list(fleet.steps.all())
    return sum(1 for s in steps if s.state == StepState.DONE), len(steps)


class ClusterNew(Page):
    """Connect a scheduler."""

    right = "clusters.operate"

    def _form(self, data: Any = None, initial: dict[str, Any] | None = None) -> ClusterForm:
        return ClusterForm(data, initial=initial, accounts=list(accounts_visible_to(self.actor)))

    def _context(self, form: ClusterForm) -> dict[str, Any]:
        return {"form": form, "kinds": kind_choices(ClusterKind.SLURM, is_adopted=False)}

    def get(self, request: HttpRequest) -> HttpResponse:
        """An empty form."""
        form = self._form(initial={"key": uuid.uuid4().hex, "responds_to_findings": True, "partition": "gpu"})
        return render(request, "clusters/cluster_new.html", self._context(form))

    def post(self, request: HttpRequest) -> HttpResponse:
        """Connect it; a refusal shows at its fields."""
        form = self._form(request.POST)
        if form.is_valid():

            def effect() -> str:
                cluster = cluster_create(actor=self.actor, **form.values())
                return reverse("cluster", args=[cluster.uid])

            try:
                return HttpResponseRedirect(once(request, form.cleaned_data["key"], effect))
            except Refusal as refusal:
                form.show(refusal)
        return render(request, "clusters/cluster_new.html", self._context(form), status=422)


class ClusterEdit(Page):
    """Correct how a scheduler is reached and used."""

    right = "clusters.operate"

    def _form(self, cluster: Cluster, data: Any = None, initial: dict[str, Any] | None = None) -> ClusterForm:
        accounts = {a.uid: a for a in accounts_visible_to(self.actor)}
        if cluster.account is not None:
            accounts.setdefault(cluster.account.uid, cluster.account)
        return ClusterForm(data, initial=initial, accounts=list(accounts.values()))

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The form as the cluster is now."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        if cluster.kind == ClusterKind.KUBERNETES:
            raise Elsewhere(reverse("cluster-kubernetes", args=[cluster.uid]))
        if cluster.is_managed:
            return edit_page(self, request, cluster)
        initial = {name: getattr(cluster, name) for name in EDITABLE}
        initial |= {"key": uuid.uuid4().hex, "account": cluster.account.uid if cluster.account else ""}
        return self._page(request, cluster, self._form(cluster, initial=initial), cluster.version)

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Change it; a refusal shows at its fields, the version guards against someone else's change."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        if cluster.kind == ClusterKind.KUBERNETES:
            raise Elsewhere(reverse("cluster-kubernetes", args=[cluster.uid]))
        if cluster.is_managed:
            return edit_page(self, request, cluster)
        version = posted_version(request)
        form = self._form(cluster, request.POST)
        if form.is_valid():
            try:
                cluster_update(actor=self.actor, cluster=cluster, expected_version=version, **form.values())
            except (InvalidInput, ClusterInUse, AccountInUse) as refusal:
                form.show(refusal)
            else:
                self.say(_("%(name)s was changed; the worker connects again.") % {"name": cluster.name})
                return HttpResponseRedirect(reverse("cluster", args=[cluster.uid]))
        cluster.refresh_from_db()
        return self._page(request, cluster, form, version, status=422)

    def _page(
        self, request: HttpRequest, cluster: Cluster, form: ClusterForm, version: int, status: int = 200
    ) -> HttpResponse:
        context = {"form": form, "cluster": cluster, "version": version, "live_jobs": live_jobs(cluster)}
        return render(request, "clusters/cluster_new.html", context, status=status)


class ClusterDelete(Page):
    """Take a cluster out of the portal."""

    right = "clusters.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it; the name must have been typed."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        typed_name(request, cluster.name)
        if cluster.is_managed:
            managed_services.cluster_delete(actor=self.actor, cluster=cluster, expected_version=posted_version(request))
            self.say(_("%(name)s is being deleted.") % {"name": cluster.name})
            return HttpResponseRedirect(reverse("cluster", args=[cluster.uid]))
        cluster_delete(actor=self.actor, cluster=cluster, expected_version=posted_version(request))
        self.say(_("%(name)s is being removed from the portal.") % {"name": cluster.name})
        return HttpResponseRedirect(reverse("clusters"))


# --- fleets ----------------------------------------------------------------------------------------


class _FleetForm(Page):
    """What the form and its preview share."""

    right = "clusters.operate"
    abstract = True

    def cluster(self, uid: str) -> Cluster:
        """The cluster the fleet is for. Raises NotFound; where AWS keeps the cluster, machines come in groups."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        if cluster.is_managed:
            raise Elsewhere(reverse("group-new", args=[cluster.uid]))
        if cluster.is_kubernetes:
            raise Elsewhere(reverse("cluster", args=[cluster.uid]))
        return cluster

    def form(self, cluster: Cluster, data: Any = None, initial: dict[str, Any] | None = None) -> FleetForm:
        """The form with what this person may choose."""
        teams: Sequence[Team] = list(teams_visible_to(self.actor))
        kept = list(live_reservations(cluster.account).select_related("account")) if cluster.account else []
        return FleetForm(data, initial=initial, cluster=cluster, teams=teams, reservations=kept)

    def context(self, cluster: Cluster, form: FleetForm) -> dict[str, Any]:
        """The form and what would happen."""
        kind = type_by_name(str(form["instance_type"].value() or ""))
        nodes = str(form["nodes"].value() or "")
        count = int(nodes) if nodes.isdecimal() and len(nodes) < 5 else 0
        source = str(form["source"].value() or CapacitySource.ON_DEMAND)
        reservation = form.reservations.get(str(form["reservation"].value() or ""))
        plan = plan_fleet(cluster, kind, count, source, reservation) if kind is not None and count > 0 else None
        return {"cluster": cluster, "form": form, "plan": plan, "checks": planned_checks()}


class FleetNew(_FleetForm):
    """Launch machines."""

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A form filled from the cluster's newest fleet, so that only what differs is typed."""
        cluster = self.cluster(uid)
        last = fleets_visible_to(self.actor).filter(cluster=cluster).first()
        initial: dict[str, Any] = {"key": uuid.uuid4().hex, "nodes": 1, "instance_type": "p5.48xlarge"}
        wanted = request.GET.get("type", "")
        if last is not None:
            initial |= {
                "instance_type": last.instance_type,
                "nodes": last.nodes,
                "subnet_id": last.subnet_id,
                "security_group_ids": ", ".join(last.security_group_ids),
                "image_id": last.image_id,
            }
        if type_by_name(wanted) is not None:
            initial["instance_type"] = wanted
        return render(request, "clusters/fleet_new.html", self.context(cluster, self.form(cluster, initial=initial)))

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Launch; a second click gets the first one's fleet, a refusal shows at its fields."""
        cluster = self.cluster(uid)
        form = self.form(cluster, request.POST)
        if form.is_valid():

            def effect() -> str:
                fleet = fleet_create(actor=self.actor, cluster=cluster, **form.values())
                return reverse("fleet", args=[fleet.uid])

            try:
                return HttpResponseRedirect(once(request, form.cleaned_data["key"], effect))
            except Refusal as refusal:
                form.show(refusal)
        return render(request, "clusters/fleet_new.html", self.context(cluster, form), status=422)


class FleetPreview(_FleetForm):
    """What will happen: the right column."""

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A fragment."""
        cluster = self.cluster(uid)
        return render(request, "clusters/fleet_new.html#plan", self.context(cluster, self.form(cluster, request.POST)))


class FleetCheck(_FleetForm):
    """Check now: the worker asks AWS what would stand in the way, before anyone agrees to anything."""

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A fragment that asks for the answer until it is there; a refusal is told in it."""
        cluster = self.cluster(uid)
        form = self.form(cluster, request.POST)
        context: dict[str, Any] = {"cluster": cluster}
        if form.is_valid():
            try:
                context["run"] = preflight_ask(actor=self.actor, cluster=cluster, **form.checked())
            except Refusal as refusal:
                form.show(refusal)
        if "run" not in context:
            found = [str(e) for errors in form.errors.values() for e in errors]
            context["problems"] = list(dict.fromkeys(found)) or [_("Fill in the form first.")]
        return render(request, "clusters/preflight.html", context)


class PreflightPage(Page):
    """What a check found so far: a fragment."""

    right = "clusters.operate"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The checklist, or that it is still being made."""
        run = preflight_for(actor=self.actor, may="clusters.operate", uid=uid)
        checks = [(check_label(str(c.get("name"))), c) for c in run.checks]
        context = {"run": run, "checks": checks, "failed": sum(1 for c in run.checks if not c.get("passed"))}
        return render(request, "clusters/preflight.html", context)


class FleetReplace(Page):
    """Ask for machines in the place of lost ones."""

    right = "clusters.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it."""
        fleet = fleet_for(actor=self.actor, may="clusters.operate", uid=uid)
        fleet_replace(actor=self.actor, fleet=fleet, expected_version=posted_version(request))
        self.say(_("The worker replaces the lost machines of %(name)s.") % {"name": fleet.name})
        return HttpResponseRedirect(reverse("fleet", args=[fleet.uid]))


class FleetPage(Page):
    """One fleet: sentence, steps, machines."""

    right = "clusters.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page, or with htmx its live part."""
        fleet = fleet_for(actor=self.actor, may="clusters.view", uid=uid)
        steps = [
            (step, step_advice(step), [(check_label(str(c.get("name"))), c) for c in step.checks])
            for step in fleet.steps.all()
        ]
        nodes: list[Node] = list(nodes_visible_to(self.actor).filter(fleet=fleet)[:500])
        shows_money = self.actor.may("costs.view", fleet.team_id) or self.actor.everywhere("costs.view")
        each = fleet.usd_per_hour or Decimal(0)
        context: dict[str, Any] = {
            "fleet": fleet,
            "sentence": fleet_sentence(fleet),
            "steps": steps,
            "nodes": nodes,
            "placement": placement_quality([n.network_nodes for n in nodes]),
            "batches": list(fleet.batches.all()),
            "batch_call": "CreateFleet" if fleet.other_instance_types or fleet.other_subnet_ids else "RunInstances",
            "batch_colours": BATCH_COLOURS,
            "can_replace": fleet.phase == FleetPhase.DEGRADED and fleet.observed_nodes < fleet.nodes,
            "busy_nodes": [n.name for n in nodes if n.gpus_used],
            "kind": type_by_name(fleet.instance_type),
            "shows_money": shows_money,
            "usd_now": each * fleet.observed_nodes if fleet.phase in FLEET_BILLED else Decimal(0),
            "usd_all": each * fleet.nodes,
            "is_working": fleet.phase in FLEET_WORKING,
            "is_deleted": fleet.phase == FleetPhase.DELETED,
            "is_over": fleet.phase in (FleetPhase.FAILED, FleetPhase.DELETING, FleetPhase.DELETED),
            "lines": lines_of(events_of([fleet.uid], 100), WORDS),
            "may_operate": can_operate_clusters(self.actor),
        }
        return render(request, "clusters/fleet.html#live" if is_htmx(request) else "clusters/fleet.html", context)


class FleetDelete(Page):
    """Tear a fleet down."""

    right = "clusters.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it; the name must have been typed."""
        fleet = fleet_for(actor=self.actor, may="clusters.operate", uid=uid)
        typed_name(request, fleet.name)
        fleet_delete(actor=self.actor, fleet=fleet, expected_version=posted_version(request))
        self.say(_("%(name)s is being deleted.") % {"name": fleet.name})
        return HttpResponseRedirect(reverse("fleet", args=[fleet.uid]))


class BurnTable(Page):
    """What each fleet and node group costs now: a fragment for the page of costs, which stands below this floor."""

    right = "costs.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """What may be billed, dearest first."""
        rows = [
            (row, reverse("fleet" if isinstance(row, Fleet) else "group", args=[row.uid]), isinstance(row, Fleet), usd)
            for row, usd in burning(self.actor)
        ]
        context = {"burning": rows, "total": sum((usd for *_what, usd in rows), Decimal(0))}
        return render(request, "clusters/burn.html", context)


# --- nodes: the page itself stands on the floor of health ---------------------------------------------


class NodeDrain(Page):
    """Take a node out of service."""

    right = "health.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for a drain with its reason."""
        node = node_for(actor=self.actor, may="health.operate", uid=uid)
        grace = request.POST.get("evict_grace_s", "").strip() if request.POST.get("evict") else ""
        if grace and (not grace.isdecimal() or len(grace) > 6):
            raise field_refusal("/evict_grace_s", _("a number of seconds"))
        evict_grace_s = int(grace or 0) if request.POST.get("evict") else None
        node_drain(actor=self.actor, node=node, reason=request.POST.get("reason", ""), evict_grace_s=evict_grace_s)
        self.say(_("%(node)s takes no new jobs once the scheduler was told.") % {"node": node.name})
        return HttpResponseRedirect(reverse("node", args=[node.uid]))


class NodeResume(Page):
    """Put a node back into service."""

    right = "health.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it."""
        node = node_for(actor=self.actor, may="health.operate", uid=uid)
        node_resume(actor=self.actor, node=node)
        self.say(_("%(node)s takes jobs again once the scheduler was told.") % {"node": node.name})
        return HttpResponseRedirect(reverse("node", args=[node.uid]))
