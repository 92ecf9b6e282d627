"""Pages of a cluster's Kubernetes: connect one, its settings, teams' places and shares, Kueue and its drift."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from apps.clusters import kube_services as services
from apps.clusters.kube_forms import KubernetesForm, KubernetesNewForm, NamespaceForm, ShareForm
from apps.clusters.kube_selectors import (
    gpus_by_type,
    kubernetes_of,
    namespace_for,
    namespaces_of,
    share_for,
    shares_of,
)
from apps.clusters.kube_states import KubeScheduler
from apps.clusters.kube_words import kubernetes_sentence, queue_rows
from apps.clusters.managed_views import kind_choices
from apps.clusters.models import Cluster
from apps.clusters.selectors import cluster_for
from apps.clusters.states import ClusterKind, LimitsMode
from apps.connections.selectors import accounts_visible_to
from apps.core.errors import NotFound, Refusal
from apps.core.forms import posted_version
from apps.core.pages import Page, once
from apps.teams.models import Team


class KubernetesNew(Page):
    """Connect a Kubernetes that no AWS service keeps."""

    right = "clusters.operate"

    def _form(self, data: Any = None, initial: dict[str, Any] | None = None) -> KubernetesNewForm:
        return KubernetesNewForm(data, initial=initial, accounts=list(accounts_visible_to(self.actor)))

    def _page(self, request: HttpRequest, form: KubernetesNewForm, status: int = 200) -> HttpResponse:
        context = {"form": form, "kinds": kind_choices(ClusterKind.KUBERNETES, is_adopted=False)}
        return render(request, "clusters/kubernetes_new.html", context, status=status)

    def get(self, request: HttpRequest) -> HttpResponse:
        """An empty form."""
        initial = {"key": uuid.uuid4().hex, "scheduler": KubeScheduler.KUEUE, "cohort": "quarterdeck"}
        return self._page(request, self._form(initial=initial))

    def post(self, request: HttpRequest) -> HttpResponse:
        """Connect it; a refusal shows at its fields."""
        form = self._form(request.POST)
        if form.is_valid():

            def effect() -> str:
                cluster = services.kubernetes_connect(actor=self.actor, **form.values())
                return reverse("cluster", args=[cluster.uid])

            try:
                return HttpResponseRedirect(once(request, form.cleaned_data["key"], effect))
            except Refusal as refusal:
                form.show(refusal)
        return self._page(request, form, status=422)


class KubernetesPage(Page):
    """Everything about teams in one cluster's Kubernetes, and how jobs reach it."""

    right = "clusters.operate"

    def cluster(self, uid: str) -> Cluster:
        """The cluster. Raises NotFound, also for one that runs no Kubernetes."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        if not cluster.is_kubernetes:
            raise NotFound(_("There is no such page."))
        return cluster

    def show(self, request: HttpRequest, cluster: Cluster, status: int = 200, **forms_of: Any) -> HttpResponse:
        """The page, with forms that were refused in place of the empty ones."""
        settings = kubernetes_of(cluster)
        teams = list(Team.objects.order_by("slug"))
        shares = list(shares_of(cluster))
        capacity = gpus_by_type(cluster)
        context: dict[str, Any] = {
            "cluster": cluster,
            "settings": settings,
            "sentence": kubernetes_sentence(cluster, settings),
            "namespaces": list(namespaces_of(cluster)),
            "shares": shares,
            "capacity": sorted(capacity.items()),
            "warnings": services.shares_problems(shares, capacity),
            "queues": queue_rows(settings.observed_queues if settings else []),
            "keeps": cluster.limits_mode != LimitsMode.OFF,
            "repairs": cluster.limits_mode == LimitsMode.ENFORCE,
            "settings_form": KubernetesForm(initial=KubernetesForm.initial_of(cluster, settings), teams=teams),
            "namespace_form": NamespaceForm(teams=teams),
            "share_form": ShareForm(teams=teams, types=sorted(capacity)),
        }
        return render(request, "clusters/kubernetes.html", context | forms_of, status=status)

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page."""
        return self.show(request, self.cluster(uid))

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """One of its forms, by the button that was pressed; a refusal shows at its fields."""
        cluster = self.cluster(uid)
        teams = list(Team.objects.order_by("slug"))
        match request.POST.get("what"):
            case "compare":
                services.queues_compare(actor=self.actor, cluster=cluster)
                self.say(_("The worker compares the queues now."))
                return HttpResponseRedirect(reverse("cluster-kubernetes", args=[cluster.uid]))
            case "namespace":
                form: Any = NamespaceForm(request.POST, teams=teams)
                name = "namespace_form"
            case "share":
                form, name = ShareForm(request.POST, teams=teams), "share_form"
            case _:
                form, name = KubernetesForm(request.POST, teams=teams), "settings_form"
        if form.is_valid():
            try:
                said = self._do(request, cluster, name, form.values())
            except Refusal as refusal:
                form.show(refusal)
            else:
                self.say(said)
                return HttpResponseRedirect(reverse("cluster-kubernetes", args=[cluster.uid]))
        return self.show(request, self.cluster(uid), 422, **{name: form})

    def _do(self, request: HttpRequest, cluster: Cluster, name: str, values: dict[str, Any]) -> str:
        if name == "namespace_form":
            row = services.team_namespace_put(actor=self.actor, cluster=cluster, **values)
            return _("Jobs of %(team)s run in %(namespace)s.") % {"team": row.team.slug, "namespace": row.namespace}
        if name == "share_form":
            share = services.team_share_put(actor=self.actor, cluster=cluster, **values)
            facts = {"team": share.team.slug, "gpus": share.gpus, "type": share.instance_type}
            return _("%(team)s has %(gpus)s GPUs of %(type)s now.") % facts
        version = posted_version(request) if kubernetes_of(cluster) is not None else None
        services.kubernetes_settings_put(actor=self.actor, cluster=cluster, expected_version=version, **values)
        return _("The settings were changed.")


class NamespaceRemove(Page):
    """Forget where a team's jobs run."""

    right = "clusters.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Do it and go back to the page."""
        row = namespace_for(actor=self.actor, may="clusters.operate", uid=uid)
        services.team_namespace_remove(actor=self.actor, row=row)
        self.say(_("%(name)s is no longer known.") % {"name": row.namespace})
        return HttpResponseRedirect(reverse("cluster-kubernetes", args=[row.cluster.uid]))


class ShareRemove(Page):
    """Take a team's share away."""

    right = "clusters.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Do it and go back to the page."""
        row = share_for(actor=self.actor, may="clusters.operate", uid=uid)
        services.team_share_remove(actor=self.actor, row=row)
        text = _("%(team)s has no GPUs of %(type)s of its own now.")
        self.say(text % {"team": row.team.slug, "type": row.instance_type})
        return HttpResponseRedirect(reverse("cluster-kubernetes", args=[row.cluster.uid]))
