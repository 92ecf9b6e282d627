"""What the portal wants of Kueue in its own words: flavors, teams with their shares, priorities, network layers."""

from __future__ import annotations

from dataclasses import dataclass

#: Versions of kueue.x-k8s.io that can be written.
V1BETA1, V1BETA2 = "v1beta1", "v1beta2"
VERSIONS = (V1BETA1, V1BETA2)
#: How a team may push others aside: nobody, its own of lower priority, also those who borrowed from it.
NEVER, OWN, RECLAIM = "never", "own", "reclaim"


@dataclass(frozen=True, slots=True)
class Flavor:
    """One sort of node: those with the labels. ``topology`` names a Layers value, ``taints`` are tolerated.

    ``labels`` and ``taints`` are pairs and triples (key, value, effect), so that the value stays hashable.
    """

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[tuple[str, str, str], ...] = ()
    topology: str = ""


@dataclass(frozen=True, slots=True)
class Layers:
    """A Topology: node labels from the widest to the narrowest."""

    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Priority:
    """A WorkloadPriorityClass."""

    name: str
    value: int
    description: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """A team's part of one resource in one flavor; ``resource`` is Kubernetes' name, amounts are quantities.

    ``borrowing`` is how much more it may use of what others leave, ``lending`` how much of its own others may use;
    None: all, "0": nothing.
    """

    flavor: str
    resource: str
    nominal: str
    borrowing: str | None = None
    lending: str | None = None


@dataclass(frozen=True, slots=True)
class TeamQueue:
    """A team's ClusterQueue, with a LocalQueue of the same name in each of its namespaces."""

    team: str
    name: str
    namespaces: tuple[str, ...]
    shares: tuple[Share, ...]
    weight: str = "1"
    preemption: str = RECLAIM
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Arrangement:
    """All that Kueue is to know of one cluster; ``cohort`` "" is none, so nobody borrows.

    ``cohort_shares`` are the cohort's own, beyond those of its teams.
    """

    flavors: tuple[Flavor, ...]
    teams: tuple[TeamQueue, ...]
    cohort: str = ""
    cohort_shares: tuple[Share, ...] = ()
    priorities: tuple[Priority, ...] = ()
    layers: tuple[Layers, ...] = ()
