"""How close the machines of a fleet stand in the network, and the same for Slurm and Kubernetes: pure text."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Share of node pairs under one leaf switch, and how many leaves hold the nodes."""

    nodes: int
    leaves: int
    pairs: int
    close_pairs: int

    @property
    def percent(self) -> int:
        """Pairs under one leaf of all pairs."""
        return round(100 * self.close_pairs / self.pairs) if self.pairs else 100


def placement_quality(paths: Sequence[Sequence[str]]) -> Placement | None:
    """Of nodes whose place AWS told; None while it told none."""
    leaves = Counter(path[-1] for path in paths if path)
    known = sum(leaves.values())
    if not known:
        return None
    close = sum(n * (n - 1) // 2 for n in leaves.values())
    return Placement(known, len(leaves), known * (known - 1) // 2, close)


def _tree(places: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    """(leaf to its nodes, switch to the switches below it)."""
    leaves: dict[str, list[str]] = defaultdict(list)
    below: dict[str, set[str]] = defaultdict(set)
    for name, path in sorted(places.items()):
        if not path:
            continue
        leaves[path[-1]].append(name)
        for upper, lower in itertools.pairwise(path):
            below[upper].add(lower)
    return dict(leaves), dict(below)


def slurm_conf(places: Mapping[str, Sequence[str]]) -> str:
    """topology.conf for TopologyPlugin=topology/tree."""
    leaves, below = _tree(places)
    lines = [f"SwitchName={leaf} Nodes={','.join(names)}" for leaf, names in sorted(leaves.items())]
    lines += [f"SwitchName={upper} Switches={','.join(sorted(lower))}" for upper, lower in sorted(below.items())]
    return "\n".join(["# topology/tree, by EC2's network nodes", *lines, ""])


def slurm_yaml(places: Mapping[str, Sequence[str]], cluster: str) -> str:
    """topology.yaml of Slurm 25.05 and later, one tree. JSON strings are YAML strings."""
    leaves, below = _tree(places)
    lines = ["---", f"- topology: {json.dumps(cluster)}", "  cluster_default: true", "  tree:", "    switches:"]
    for upper, lower in sorted(below.items()):
        lines += [f"      - switch: {json.dumps(upper)}", f"        children: {json.dumps(','.join(sorted(lower)))}"]
    for leaf, names in sorted(leaves.items()):
        lines += [f"      - switch: {json.dumps(leaf)}", f"        nodes: {json.dumps(','.join(names))}"]
    return "\n".join([*lines, ""])


def kubernetes_labels(places: Mapping[str, Sequence[str]]) -> str:
    """One ``kubectl label`` a node: the layers as AWS's cloud provider labels them, the top one first."""
    lines = ["#!/bin/sh"]
    for name, path in sorted(places.items()):
        labels = " ".join(
            f"topology.k8s.aws/network-node-layer-{number}={node}" for number, node in enumerate(path, start=1)
        )
        if labels:
            lines.append(f"kubectl label --overwrite node {name} {labels}")
    return "\n".join([*lines, ""])
