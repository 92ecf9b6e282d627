"""Whether what a submit asks for can be had on a cluster: sizes, options, rights, nodes, blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from apps.clusters.models import Cluster, Node
from apps.clusters.states import ClusterPhase
from apps.core.errors import FieldProblem
from apps.jobs.action_selectors import is_operator
from apps.jobs.block_ends import longest_limit, trimmed_limit
from apps.jobs.option_rules import hosts_in
from apps.jobs.sbatch import PER_GPU, check_options, value_of
from apps.jobs.selectors import usable_nodes
from apps.teams.permissions import Actor

if TYPE_CHECKING:
    from apps.jobs.services import JobSpec

#: Any one line of text: a name is shown and handed on as data, never as part of a command or a path.
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,100}")
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
MAX_TIME_MIN = 60 * 24 * 90


def limit_that_fits(spec: JobSpec, nodes: Sequence[Node]) -> int | None:
    """The longest time limit to offer instead of one that a block does not hold: 0 for none, None where it fits."""
    most = longest_limit(nodes, spec.nodes)
    return None if most is None or spec.time_limit_min <= most else trimmed_limit(most)


def trimmed_words(asked: int, fits: int) -> str:
    """That a limit was cut."""
    facts = {"asked": asked, "fits": fits}
    return _("time limit cut from %(asked)s to %(fits)s min: the block that its nodes belong to ends") % facts


def too_long_for_block(spec: JobSpec, fits: int) -> FieldProblem:
    """A job that would outlive the block it runs in: refused, with the longest limit that fits."""
    if not fits:
        text = _("the block that these nodes belong to ends before a job could; wait for other nodes")
        return FieldProblem("/time_limit_min", "block-ends", text)
    text = _("%(asked)s min; the block that these nodes belong to ends first, at most %(most)s min fit from now") % {
        "asked": spec.time_limit_min,
        "most": fits,
    }
    return FieldProblem("/time_limit_min", "block-ends", text)


def check_fields(spec: JobSpec) -> list[FieldProblem]:
    """Sizes, name and environment."""
    problems = []
    if not _NAME.fullmatch(spec.name):
        problems.append(FieldProblem("/name", "invalid", _("one line of text, at most 100 characters")))
    bounds = (
        ("nodes", spec.nodes, 1, 10_000),
        ("gpus_per_node", spec.gpus_per_node, 0, 16),
        ("time_limit_min", spec.time_limit_min, 1, MAX_TIME_MIN),
        ("tasks_per_node", spec.tasks_per_node, 1, 1024),
        ("cpus_per_task", spec.cpus_per_task, 1, 1024),
        ("memory_per_node_mib", spec.memory_per_node_mib, 0, 100_000_000),
        ("max_recoveries", spec.max_recoveries, 0, 20),
    )
    for name, value, low, high in bounds:
        if not low <= value <= high:
            text = _("must be from %(low)s to %(high)s") % {"low": f"{low:,}", "high": f"{high:,}"}
            problems.append(FieldProblem(f"/{name}", "out-of-range", text))
    problems += check_options(spec.slurm_options)[1]
    for key, text in spec.environment.items():
        if not _ENV_NAME.fullmatch(key) or (key.startswith(("QD_", "SLURM_")) and key != "QD_EXAMPLES"):
            problems.append(FieldProblem(f"/environment/{key}", "invalid", _("not a name a job may set")))
        elif "\n" in text or "\x00" in text:
            problems.append(FieldProblem(f"/environment/{key}", "invalid", _("one line of text")))
    return problems


def out_of_range(problems: Sequence[FieldProblem]) -> bool:
    """Whether a size among these problems is one that no job may have."""
    return any(problem.code == "out-of-range" for problem in problems)


def check_kept_options(spec: JobSpec) -> list[FieldProblem]:
    """Options that would take more than is held for."""
    options, problems = check_options(spec.slurm_options)
    if problems:
        return []
    by_gpu = [name for name in PER_GPU if value_of(options, name) is not None]
    if by_gpu and not spec.gpus_per_node:
        text = _("--%(name)s asks for GPUs by itself: say how many a node has") % {"name": by_gpu[0]}
        problems.append(FieldProblem("/slurm_options/0", "no-gpus", text))
    named = hosts_in(value_of(options, "nodelist") or "")
    if named > spec.nodes:
        text = _("--nodelist names %(named)s nodes and the job has %(nodes)s") % {"named": named, "nodes": spec.nodes}
        problems.append(FieldProblem("/nodelist", "more-nodes", text))
    return problems


def check_rights(actor: Actor, spec: JobSpec) -> list[FieldProblem]:
    """Options that pass others in the queue: jobs without a user of their own go to Slurm with an operator's rights."""
    options, problems = check_options(spec.slurm_options)
    if problems or is_operator(actor):
        return []
    if value_of(options, "priority") is not None:
        problems.append(FieldProblem("/slurm_options/0", "operators", _("only operators set a job's priority")))
    if (value_of(options, "nice") or "").strip().startswith("-"):
        problems.append(FieldProblem("/slurm_options/0", "operators", _("only operators set a nice below zero")))
    return problems


def check_cluster(spec: JobSpec, cluster: Cluster, fitting: int) -> list[FieldProblem]:
    """Whether the cluster takes jobs and has what is asked for; ``fitting`` of its nodes fit."""
    problems = []
    if cluster.phase not in (ClusterPhase.READY, ClusterPhase.UNREACHABLE) or cluster.delete_requested_at is not None:
        text = _("cluster %(name)s is not ready") % {"name": cluster.name}
        problems.append(FieldProblem("/cluster", "not-ready", text))
        return problems
    if not cluster.takes_jobs:
        text = _("cluster %(name)s has no scheduler that the portal can submit to") % {"name": cluster.name}
        problems.append(FieldProblem("/cluster", "no-scheduler", text))
        return problems
    everything = usable_nodes(cluster)
    if not everything:
        text = _("cluster %(name)s has no nodes yet") % {"name": cluster.name}
        problems.append(FieldProblem("/cluster", "no-nodes", text))
        return problems
    types = sorted({n.gpu_type for n in everything if n.gpu_type})
    if spec.gpu_type and spec.gpu_type not in types:
        problems.append(
            FieldProblem(
                "/gpu_type",
                "not-here",
                _("cluster %(name)s has no %(gpu)s; it has %(types)s")
                % {"name": cluster.name, "gpu": spec.gpu_type, "types": ", ".join(types) or _("no GPUs")},
            )
        )
    elif not fitting:
        most = max(n.gpus for n in everything if not spec.gpu_type or n.gpu_type == spec.gpu_type)
        problems.append(
            FieldProblem(
                "/gpus_per_node",
                "too-many",
                _("no node has %(gpus)s GPUs; the largest has %(most)s") % {"gpus": spec.gpus_per_node, "most": most},
            )
        )
    elif spec.nodes > fitting:
        problems.append(
            FieldProblem(
                "/nodes",
                "too-many",
                _("%(nodes)s nodes asked for; cluster %(name)s has %(fitting)s that fit")
                % {"nodes": spec.nodes, "name": cluster.name, "fitting": fitting},
            )
        )
    limit = cluster.observed_max_time_min
    if limit is not None and spec.time_limit_min > limit:
        problems.append(
            FieldProblem(
                "/time_limit_min",
                "too-long",
                _("%(asked)s min; the cluster allows %(limit)s min") % {"asked": spec.time_limit_min, "limit": limit},
            )
        )
    partitions = [p.get("name") for p in cluster.observed_partitions]
    if spec.partition and partitions and spec.partition not in partitions:
        problems.append(
            FieldProblem(
                "/partition",
                "unknown",
                _("no partition %(name)s; there are %(known)s")
                % {"name": spec.partition, "known": ", ".join(map(str, partitions))},
            )
        )
    return problems
