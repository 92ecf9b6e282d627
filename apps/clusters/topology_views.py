"""Downloads of where a cluster's nodes hang in the network, for Slurm and Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from django.http import HttpRequest, HttpResponse
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.models import Cluster
from apps.clusters.selectors import cluster_for, live_nodes
from apps.clusters.topology import kubernetes_labels, placement_quality, slurm_conf, slurm_yaml
from apps.core.api import Endpoint
from apps.core.errors import NotFound
from apps.core.pages import Page

Places = Mapping[str, Sequence[str]]
FORMS: Mapping[str, Callable[[Cluster, Places], str]] = {
    "topology.conf": lambda cluster, places: slurm_conf(places),
    "topology.yaml": lambda cluster, places: slurm_yaml(places, cluster.name),
    "labels.sh": lambda cluster, places: kubernetes_labels(places),
}


def places_of(cluster: Cluster) -> dict[str, list[str]]:
    """Network nodes by node name, of those that AWS told."""
    return {n.name: n.network_nodes for n in live_nodes(cluster).values() if n.network_nodes}


class TopologyFile(Page):
    """One of the files."""

    right = "clusters.view"

    def get(self, request: HttpRequest, uid: str, form: str) -> HttpResponse:
        """As a download. Raises NotFound."""
        cluster = cluster_for(actor=self.actor, may="clusters.view", uid=uid)
        if form not in FORMS:
            raise NotFound(f"no file {form}; one of {', '.join(FORMS)}")
        text = FORMS[form](cluster, places_of(cluster))
        headers = {"Content-Disposition": f'attachment; filename="{form}"'}
        return HttpResponse(text, content_type="text/plain; charset=utf-8", headers=headers)


class TopologySerializer(serializers.Serializer[None]):
    """Nodes with their network nodes, and the files made of them."""

    nodes = serializers.DictField()
    percent_under_one_leaf = serializers.IntegerField(allow_null=True)
    files = serializers.DictField()


class Topology(Endpoint):
    """The network of a cluster's nodes."""

    rights = {"GET": "clusters.view"}
    serializer_class = TopologySerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        cluster = cluster_for(actor=self.actor, may="clusters.view", uid=uid)
        places = places_of(cluster)
        quality = placement_quality(list(places.values()))
        files = {name: write(cluster, places) for name, write in FORMS.items()}
        percent = quality.percent if quality else None
        return Response({"nodes": places, "percent_under_one_leaf": percent, "files": files})
