"""Pages of node groups, and of what is asked of HyperPod about nodes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.audit.selectors import events_of
from apps.audit.timeline import lines_of
from apps.catalog.selectors import type_by_name
from apps.clusters.group_forms import GroupForm, NodesForm, ResizeForm
from apps.clusters.group_models import NodeGroup
from apps.clusters.group_rules import CONTROLLER
from apps.clusters.group_services import group_add, group_delete, group_resize, nodes_ask
from apps.clusters.history import WORDS
from apps.clusters.managed_plans import line_of, plan_group
from apps.clusters.managed_selectors import group_for, group_price
from apps.clusters.managed_views import group_form, usd_now
from apps.clusters.managed_words import group_sentence, issues_of, source_notes, verb_notes
from apps.clusters.models import Cluster, Node
from apps.clusters.permissions import can_operate_clusters
from apps.clusters.selectors import cluster_for, nodes_visible_to
from apps.clusters.states import GROUP_WORKING, KINDS_GROUPED, ClusterKind, GroupPhase, GroupSource, NodeVerb
from apps.core.errors import NotFound, Refusal, StaleVersion
from apps.core.forms import is_htmx, posted_version, typed_name
from apps.core.pages import Page, once


class _GroupForm(Page):
    """What the form of a new group and its preview share."""

    right = "clusters.operate"
    abstract = True

    def cluster(self, uid: str) -> Cluster:
        """The cluster that the group is for. Raises NotFound, also where the kind has none that can be added."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        if cluster.kind not in KINDS_GROUPED:
            raise NotFound(_("There is no such page."))
        return cluster

    def form(self, cluster: Cluster, data: Any = None, **more: Any) -> GroupForm:
        """The form with what this person may choose."""
        accounts = [cluster.account] if cluster.account else []
        return group_form(self.actor, cluster.kind, accounts, data, **more)

    def context(self, cluster: Cluster, form: GroupForm) -> dict[str, Any]:
        """The form and what would happen."""
        now = form.now()
        kept = now["reservation"]
        source = now.get("source") or GroupSource.ON_DEMAND
        line = line_of(cluster.kind, cluster.account, now, kept)
        plan = plan_group(cluster.kind, cluster.account, line, source, kept)
        return {"cluster": cluster, "form": form, "group": form, "plan": plan, "kind": cluster.kind}


class GroupNew(_GroupForm):
    """Add a node group."""

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A form filled from the cluster's newest group, so that only what differs is typed."""
        cluster = self.cluster(uid)
        initial: dict[str, Any] = {"key": uuid.uuid4().hex, "instance_type": "p5.48xlarge", "nodes": 1}
        initial["on_create"] = "on_create.sh"
        rows = NodeGroup.objects.filter(cluster=cluster).order_by("-created_at", "-id")[:20]
        last = next((g for g in rows if g.settings.get("node_type") != CONTROLLER), None)
        if last is not None:
            initial |= {
                name: getattr(last, name)
                for name in (
                    "instance_type",
                    "nodes",
                    "subnet_ids",
                    "security_group_ids",
                    "role_arn",
                    "image_id",
                )
                if getattr(last, name)
            }
            initial |= {k: v for k, v in last.settings.items() if k in ("lifecycle_s3", "on_create") and v}
        form = self.form(cluster, initial=initial)
        return render(request, "clusters/group_new.html", self.context(cluster, form))

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Add it; a second click gets the first one's group, a refusal shows at its fields."""
        cluster = self.cluster(uid)
        form = self.form(cluster, request.POST)
        if form.is_valid():

            def effect() -> str:
                group = group_add(actor=self.actor, cluster=cluster, **form.values())
                return reverse("group", args=[group.uid])

            try:
                return HttpResponseRedirect(once(request, form.cleaned_data["key"], effect))
            except Refusal as refusal:
                form.show(refusal)
        return render(request, "clusters/group_new.html", self.context(cluster, form), status=422)


class GroupPlan(_GroupForm):
    """What will happen: the right column."""

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A fragment."""
        cluster = self.cluster(uid)
        context = self.context(cluster, self.form(cluster, request.POST))
        return render(request, "clusters/group_new.html#plan", context)


class GroupPage(Page):
    """One node group: sentence, health, machines."""

    right = "clusters.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page, or with htmx its live part."""
        group = group_for(actor=self.actor, may="clusters.view", uid=uid)
        template = "clusters/group.html#live" if is_htmx(request) else "clusters/group.html"
        return render(request, template, self.context(group))

    def context(self, group: NodeGroup, **more: Any) -> dict[str, Any]:
        """What the page shows; a form that was refused comes in ``more``."""
        cluster = group.cluster
        nodes: list[Node] = list(nodes_visible_to(self.actor).filter(group=group)[:500])
        shows_money = self.actor.everywhere("costs.view") or self.actor.may("costs.view", group.team_id)
        initial = {"nodes": group.nodes, "min_nodes": group.min_nodes}
        is_deleted = group.phase == GroupPhase.DELETED
        is_controller = group.settings.get("node_type") == CONTROLLER
        is_changed_here = cluster.kind in KINDS_GROUPED and cluster.delete_requested_at is None
        may_operate = can_operate_clusters(self.actor) and not is_deleted and group.delete_requested_at is None
        return {
            "group": group,
            "cluster": cluster,
            "sentence": group_sentence(group),
            "issues": issues_of(group),
            "nodes": nodes,
            "busy_nodes": [n.name for n in nodes if n.gpus_used],
            "machine": type_by_name(group.instance_type),
            "shows_money": shows_money,
            "usd_now": usd_now(self.actor, group),
            "usd_all": group.usd_per_hour * group.nodes if group.usd_per_hour is not None else None,
            "price_words": group_price(group)[1],
            "notes": source_notes(cluster.kind, group.source, group.reservation.phase if group.reservation else ""),
            "is_working": group.phase in GROUP_WORKING,
            "is_deleted": is_deleted,
            "is_elastic": cluster.kind in (ClusterKind.PCS, ClusterKind.PARALLELCLUSTER),
            "may_operate": may_operate and is_changed_here,
            "may_resize": may_operate and is_changed_here and group.phase != GroupPhase.FAILED and not is_controller,
            "may_delete": may_operate and is_changed_here and not is_controller and not group.is_adopted,
            "is_controller": is_controller,
            "resize_form": ResizeForm(initial=initial, kind=cluster.kind),
            "lines": lines_of(events_of([group.uid], 100), WORDS),
            **more,
        }


class GroupResize(GroupPage):
    """Other counts of a group."""

    right = "clusters.operate"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A reload after a refusal leads back to the page."""
        return HttpResponseRedirect(reverse("group", args=[uid]))

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it; a refusal shows in the form."""
        group = group_for(actor=self.actor, may="clusters.operate", uid=uid)
        form = ResizeForm(request.POST, kind=group.cluster.kind)
        if form.is_valid():
            try:
                group_resize(
                    actor=self.actor,
                    group=group,
                    nodes=form.cleaned_data["nodes"],
                    min_nodes=form.cleaned_data.get("min_nodes"),
                    expected_version=posted_version(request),
                )
            except StaleVersion:
                raise
            except Refusal as refusal:
                form.show(refusal)
            else:
                self.say(_("%(name)s goes to the new number of nodes.") % {"name": group.name})
                return HttpResponseRedirect(reverse("group", args=[group.uid]))
        group.refresh_from_db()
        context = self.context(group, resize_form=form, open_dialog="ask-resize")
        return render(request, "clusters/group.html", context, status=422)


class GroupDelete(Page):
    """Delete a group with its machines."""

    right = "clusters.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it; the name must have been typed."""
        group = group_for(actor=self.actor, may="clusters.operate", uid=uid)
        typed_name(request, group.name)
        group_delete(actor=self.actor, group=group, expected_version=posted_version(request))
        self.say(_("%(name)s is being deleted.") % {"name": group.name})
        return HttpResponseRedirect(reverse("group", args=[group.uid]))


class NodesAsk(Page):
    """Replace or reboot chosen nodes of HyperPod: first what it means, then the request."""

    right = "clusters.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """With ``review``: the nodes, what happens to them and the question why. Without: ask for it."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        chosen = self._nodes(cluster, request.POST.getlist("node"))
        if request.POST.get("review"):
            verb = request.POST.get("verb", "")
            initial = {"key": uuid.uuid4().hex, "verb": verb if verb in NodeVerb.values else NodeVerb.REPLACE}
            return self._page(request, cluster, chosen, NodesForm(initial=initial))
        form = NodesForm(request.POST)
        if form.is_valid():

            def effect() -> str:
                nodes_ask(
                    actor=self.actor,
                    cluster=cluster,
                    nodes=chosen,
                    verb=form.cleaned_data["verb"],
                    reason=form.cleaned_data["reason"],
                )
                return reverse("cluster", args=[cluster.uid])

            try:
                where = once(request, form.cleaned_data["key"], effect)
            except Refusal as refusal:
                form.show(refusal)
            else:
                asked = ngettext("%(n)s node was asked for.", "%(n)s nodes were asked for.", len(chosen))
                self.say(asked % {"n": len(chosen)})
                return HttpResponseRedirect(where)
        return self._page(request, cluster, chosen, form, status=422)

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Nodes are chosen on the cluster's page."""
        return HttpResponseRedirect(reverse("cluster", args=[uid]))

    def _nodes(self, cluster: Cluster, uids: Sequence[str]) -> list[Node]:
        return list(nodes_visible_to(self.actor).filter(cluster=cluster, uid__in=list(uids)[:2000]).order_by("name"))

    def _page(
        self, request: HttpRequest, cluster: Cluster, chosen: list[Node], form: NodesForm, status: int = 200
    ) -> HttpResponse:
        verb = str(form["verb"].value() or NodeVerb.REPLACE)
        verb = verb if verb in NodeVerb.values else NodeVerb.REPLACE
        context = {
            "cluster": cluster,
            "chosen": chosen,
            "form": form,
            "verb": verb,
            "notes": verb_notes(verb),
            "busy": [n.name for n in chosen if n.gpus_used],
        }
        return render(request, "clusters/nodes_ask.html", context, status=status)
