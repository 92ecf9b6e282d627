"""Whether every further part of a heterogeneous job can be had, where, and at what price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from apps.clusters.models import Cluster
from apps.core.errors import FieldProblem
from apps.jobs.checks import (
    check_cluster,
    check_fields,
    check_kept_options,
    check_rights,
    limit_that_fits,
    out_of_range,
    too_long_for_block,
)
from apps.jobs.option_rules import PYXIS_NONE, PYXIS_VALUE
from apps.jobs.part_rules import MAX_PARTS, MEMBERS, Part, told_part
from apps.jobs.pricing import price_on, share_price
from apps.jobs.sbatch import check_options, kept_options, value_of
from apps.jobs.selectors import usable_nodes
from apps.teams.permissions import Actor

if TYPE_CHECKING:
    from apps.jobs.services import JobSpec


#: Fields by which a template says how its jobs are shaped; further parts would pass them by.
_SHAPE = frozenset(MEMBERS) - {"name"}


@dataclass(frozen=True)
class Parts:
    """The further parts with their prices, what they hold together, and what is wrong with each by its pointer."""

    parts: tuple[Part, ...] = ()
    gpu_hours: Decimal = Decimal(0)
    usd: Decimal = Decimal(0)
    problems: tuple[FieldProblem, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of all of them."""
        return sum(part.gpus for part in self.parts)


def spec_of_part(spec: JobSpec, part: Part) -> JobSpec:
    """A part as if it were a job by itself, so that the same checks hold for it."""
    return replace(
        spec,
        name=part.name or spec.name,
        nodes=part.nodes,
        gpus_per_node=part.gpus_per_node,
        gpu_type=part.gpu_type,
        tasks_per_node=part.tasks_per_node,
        cpus_per_task=part.cpus_per_task,
        memory_per_node_mib=part.memory_per_node_mib,
        partition=part.partition,
        time_limit_min=part.time_limit_min or spec.time_limit_min,
        slurm_options=part.slurm_options,
        environment={},
        parts=(),
    )


def check_parts(actor: Actor, spec: JobSpec, cluster: Cluster, account: str) -> Parts:
    """Judge the further parts of a spec whose own fields are the first; ``account`` is the first part's in Slurm."""
    from apps.jobs.services import with_whole_nodes

    if not spec.parts:
        return Parts()
    problems: list[FieldProblem] = []
    if len(spec.parts) >= MAX_PARTS:
        text = _("%(n)s parts; Slurm takes %(most)s") % {"n": len(spec.parts) + 1, "most": MAX_PARTS}
        return Parts(problems=(FieldProblem("/parts", "too-many", text),))
    if spec.template is not None and set(spec.template.locked) & _SHAPE:
        text = _("template %(name)s fixes the size of its jobs: they have no further parts")
        problems.append(FieldProblem("/parts", "locked", text % {"name": spec.template.name}))
    if spec.array.strip():
        problems.append(FieldProblem("/array", "invalid", _("a heterogeneous job cannot be an array")))
    containers = set(_containers(check_options(spec.slurm_options)[0]).values())
    whole, hours, usd = [], Decimal(0), Decimal(0)
    for index, part in enumerate(told_part(row) for row in spec.parts):
        one = with_whole_nodes(spec_of_part(spec, part), cluster)
        options, found = check_options(one.slurm_options)
        nodes = usable_nodes(cluster, one.gpu_type, one.gpus_per_node, one.partition or cluster.partition)
        found = [*check_fields(one), *check_cluster(one, cluster, len(nodes)), *check_kept_options(one)]
        found += check_rights(actor, one)
        if (own := value_of(options, "account")) not in (None, account):
            text = _("all parts of a job run under one account: %(account)s, not %(own)s")
            found.append(FieldProblem("/slurm_options/0", "account", text % {"account": account or "–", "own": own}))
        for name, words in _containers(options).items():
            if words not in containers:
                text = _("--%(name)s: every step of the job runs in the container of its first part")
                found.append(FieldProblem("/slurm_options/0", "container", text % {"name": name}))
        if out_of_range(found):
            problems += _of_part(found, index, part)
            continue
        offered = limit_that_fits(one, nodes)
        if offered is not None:
            found.append(too_long_for_block(one, offered))
        price = price_on(cluster, nodes, one.gpu_type or (nodes[0].gpu_type if nodes else ""))
        if price is None and one.gpus_per_node and not found:
            kind = one.gpu_type or _("these GPUs")
            found.append(FieldProblem("/gpu_type", "no-price", _("no price is known for %(gpu)s") % {"gpu": kind}))
        problems += _of_part(found, index, part)
        share = share_price(cluster, one, nodes) if not one.gpus_per_node else None
        made = replace(
            part,
            gpus_per_node=one.gpus_per_node,
            partition=one.partition or cluster.partition,
            slurm_options=tuple(options),
            usd_per_gpu_hour=price[0] if price is not None else Decimal(0),
            usd_per_node_hour=share[0] if share is not None else Decimal(0),
        )
        more = made.cost(made.gpus, one.time_limit_min * 60)
        hours, usd = hours + more[0], usd + more[1].quantize(Decimal("0.000001"))
        whole.append(made)
    return Parts(tuple(whole), hours, usd, tuple(problems), _warnings(spec, whole, cluster) if not problems else ())


def _containers(options: Sequence[str]) -> dict[str, str]:
    """A part's own options for pyxis by name. Its variables reach every srun of the script, of whichever part."""
    return {o.name: o.plain for o in kept_options(options) if o.name in PYXIS_VALUE | PYXIS_NONE}


def _of_part(found: Sequence[FieldProblem], index: int, part: Part) -> list[FieldProblem]:
    """Problems as those of a part; what is wrong with the job as a whole is said once, of its first part."""
    of_the_job = {"/cluster", "/max_recoveries"} | ({"/name"} if not part.name else set())
    text = _("part %(part)s: %(text)s")
    return [
        FieldProblem(f"/parts/{index}{p.pointer}", p.code, text % {"part": index + 1, "text": p.detail})
        for p in found
        if p.pointer not in of_the_job
    ]


def _warnings(spec: JobSpec, parts: Sequence[Part], cluster: Cluster) -> tuple[str, ...]:
    """Slurm takes a job whose parts cannot run at the same time and lets it wait for ever."""
    least = len(usable_nodes(cluster))
    wanted = spec.nodes + sum(part.nodes for part in parts)
    if wanted <= least:
        return ()
    text = _("its parts start together and want %(wanted)s nodes if none shares one; the cluster has %(nodes)s")
    return (text % {"wanted": wanted, "nodes": least},)
