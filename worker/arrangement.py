"""What Kueue is to know of a cluster, from its nodes, the teams' shares and their quotas."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from apps.catalog.selectors import type_by_name
from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.kube_selectors import TeamPlace, TypeSize, queue_name, team_places, types_of
from apps.clusters.models import Cluster, Node
from worker.providers.kubernetes.efa import EFA, GPU, HUGEPAGES, HUGEPAGES_MIB, efa_of
from worker.providers.kubernetes.kueue_values import Arrangement, Flavor, Layers, Share, TeamQueue

TYPE_LABEL = "node.kubernetes.io/instance-type"
HOSTNAME = "kubernetes.io/hostname"
#: AWS's names of the network's layers, the widest first.
AWS_LAYERS = tuple(f"topology.k8s.aws/network-node-layer-{n}" for n in (1, 2, 3))
TOPOLOGY = "quarterdeck"


def arrangement_of(cluster: Cluster, settings: KubernetesSettings) -> Arrangement:
    """The wanted state. Empty of teams and flavors where the cluster has no machine and no team a share."""
    places = team_places(cluster)
    sizes = _sizes(cluster, places)
    cohort = settings.cohort
    layers = _layers(settings)
    taints: tuple[tuple[str, str, str], ...] = ()
    flavors = tuple(
        Flavor(s.name, ((TYPE_LABEL, _label_of(cluster, s.name)),), taints, TOPOLOGY if layers else "") for s in sizes
    )
    teams = tuple(
        TeamQueue(
            team=place.team.slug,
            name=queue_name(place.team),
            namespaces=(place.place.namespace,),
            shares=_shares(place, sizes, has_cohort=bool(cohort)),
            weight=f"{place.weight.normalize():f}",
        )
        for place in places
        if sizes
    )
    rest = _rest(places, sizes) if cohort and sizes else ()
    return Arrangement(flavors, teams, cohort if sizes else "", rest, (), layers if sizes else ())


def _sizes(cluster: Cluster, places: Sequence[TeamPlace]) -> list[TypeSize]:
    """The types of the cluster's nodes, and those that a team was given and that are not there now."""
    found = {size.name: size for size in types_of(cluster)}
    for name in {share.instance_type for place in places for share in place.shares}:
        kind = type_by_name(name)
        if name not in found and kind is not None:
            found[name] = TypeSize(name, 0, kind.gpus, kind.vcpus, kind.memory_gib * 1024)
    # Machines with GPUs first: the first flavor that fits is taken, and what needs none is put last.
    return sorted(found.values(), key=lambda size: (not size.gpus, size.name))


def _label_of(cluster: Cluster, name: str) -> str:
    """What the nodes of a type say in their label: HyperPod writes "ml." before it."""
    node = Node.objects.filter(cluster=cluster, instance_type=name).exclude(labels={}).only("labels").first()
    return str(node.labels.get(TYPE_LABEL) or name) if node is not None else name


def _layers(settings: KubernetesSettings) -> tuple[Layers, ...]:
    level = settings.topology_level
    if not level:
        return ()
    above = AWS_LAYERS[: AWS_LAYERS.index(level) + 1] if level in AWS_LAYERS else (level,)
    return (Layers(TOPOLOGY, tuple(dict.fromkeys([*above, HOSTNAME]))),)


def _amounts(size: TypeSize, gpus: int, nodes: Fraction) -> dict[str, str]:
    """What so many GPUs of a type, or so many of its nodes where it has none, come with."""
    part = Fraction(gpus, size.gpus) if size.gpus else nodes
    efa = efa_of([size.name])
    return {
        "cpu": _whole(part * size.cpus),
        "memory": f"{_whole(part * size.memory_mib)}Mi",
        GPU: str(gpus),
        EFA: _whole(part * efa),
        HUGEPAGES: f"{_whole(part * HUGEPAGES_MIB if efa else Fraction(0))}Mi",
    }


def _whole(amount: Fraction) -> str:
    return str(-((-amount) // 1))


def _shares(place: TeamPlace, sizes: Sequence[TypeSize], *, has_cohort: bool) -> tuple[Share, ...]:
    """A team's own of every type. It borrows GPUs up to its quota, and of the rest whatever they come with."""
    given = {share.instance_type: share for share in place.shares}
    own = sum(share.gpus for share in place.shares)
    found = []
    for size in sizes:
        share = given.get(size.name)
        gpus = share.gpus if share is not None else 0
        room = max(0, place.quota_gpus - own)
        for resource, amount in _amounts(size, gpus, Fraction(0)).items():
            borrowing = lending = None
            if has_cohort and resource == GPU:
                asked = share.borrowing_gpus if share is not None else None
                borrowing = str(room if asked is None else min(asked, room))
                lending = str(share.lending_gpus) if share is not None and share.lending_gpus is not None else None
            found.append(Share(size.name, resource, amount, borrowing, lending))
    return tuple(found)


def _rest(places: Sequence[TeamPlace], sizes: Sequence[TypeSize]) -> tuple[Share, ...]:
    """What no team has of its own: the cohort's, from which all borrow."""
    found = []
    for size in sizes:
        own = sum(s.gpus for place in places for s in place.shares if s.instance_type == size.name)
        free = max(0, size.all_gpus - own)
        for resource, amount in _amounts(size, free, Fraction(size.nodes)).items():
            found.append(Share(size.name, resource, amount))
    return tuple(found)
