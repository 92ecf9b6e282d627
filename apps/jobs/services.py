"""What people do with jobs: preview, submit, cancel, requeue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _

from apps.audit.services import event, record
from apps.checkpoints.models import CheckpointSeries
from apps.clusters.models import Cluster
from apps.clusters.states import ClusterPhase, NodePhase
from apps.core import clock, ids
from apps.core.errors import FieldProblem, Forbidden, InvalidInput, Refusal, TransitionConflict
from apps.costs.selectors import Standing, standing_of
from apps.costs.services import hold_money, month_open
from apps.costs.states import Unit
from apps.intents.services import intent_ask
from apps.jobs.array_rules import Array, array_of
from apps.jobs.checks import (
    check_cluster,
    check_fields,
    check_kept_options,
    check_rights,
    limit_that_fits,
    out_of_range,
    too_long_for_block,
    trimmed_words,
)
from apps.jobs.dependency_models import JobDependency
from apps.jobs.dependency_selectors import resolve_dependency
from apps.jobs.identity import Submitter, acting_user, submitter_of
from apps.jobs.kube_checks import check_scheduler, kubernetes_warnings, with_cluster_defaults
from apps.jobs.manifests import ManifestRead, brought, counted, manifest_problems, manifest_read
from apps.jobs.models import Attempt, Job, JobTemplate
from apps.jobs.part_checks import check_parts
from apps.jobs.part_rules import Part
from apps.jobs.permissions import can_submit_job
from apps.jobs.pricing import price_on, share_price, takes_whole_nodes
from apps.jobs.retry_rules import parse_rules
from apps.jobs.rules import check_script, hold_for
from apps.jobs.sbatch import check_options, refused_by_release, value_of
from apps.jobs.selectors import StopLine, stop_lines, usable_nodes
from apps.jobs.states import JobOrigin
from apps.jobs.template_rules import fill_template
from apps.jobs.template_selectors import inherited_rules, use_problems
from apps.quotas.services import gpus_take
from apps.teams.models import Team
from apps.teams.permissions import Actor

INTENT = "job.reconcile"


@dataclass(frozen=True)
class JobSpec:
    """Everything a submit says; see Job for the units.

    ``parts`` are the further parts of a heterogeneous job (members of part_rules.Part); its own fields are the first.
    ``trim``: a time limit that the blocks of the nodes do not hold is cut to the longest that they do. ``image``,
    ``workload_kind`` ("": the cluster's choice) and ``priority_class`` are for Kubernetes; a ``manifest`` there takes
    the place of script and image.
    """

    name: str
    nodes: int
    gpus_per_node: int
    time_limit_min: int
    script: str = ""
    gpu_type: str = ""
    tasks_per_node: int = 1
    cpus_per_task: int = 1
    memory_per_node_mib: int = 0
    partition: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    slurm_options: Sequence[str] = ()
    array: str = ""
    parts: Sequence[Mapping[str, Any]] = ()
    dependency: str = ""
    retry_rules: Sequence[str] = ()
    max_recoveries: int = 3
    trim: bool = False
    image: str = ""
    workload_kind: str = ""
    priority_class: str = ""
    manifest: str = ""
    template: JobTemplate | None = None
    template_parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preview:
    """What will happen when this is submitted; ``problems`` empty means it would be accepted.

    ``time_limit_min`` is the limit it would run with. ``offered_limit_min`` is the longest that the blocks of its
    nodes hold, where the one asked for is too long; None otherwise. ``slurm_user`` "" is the cluster's own.
    ``usd_per_node_hour`` is what a job without GPUs pays for its share of each node. ``image`` and ``workload_kind``
    are what it gets on Kubernetes, "" on Slurm; ``manifest`` is what was read of one that a person brought.
    """

    script: str
    gpus: int
    gpu_hours: Decimal
    usd: Decimal
    usd_per_gpu_hour: Decimal
    price_source: str
    budget: Standing
    quota: Standing
    free_nodes: int
    problems: tuple[FieldProblem, ...]
    warnings: tuple[str, ...]
    time_limit_min: int = 0
    offered_limit_min: int | None = None
    slurm_user: str = ""
    slurm_account: str = ""
    retry_defaults: tuple[Mapping[str, str], ...] = ()
    usd_per_node_hour: Decimal = Decimal(0)
    parts: tuple[Part, ...] = ()
    image: str = ""
    workload_kind: str = ""
    manifest: ManifestRead | None = None

    @property
    def usd_left(self) -> Decimal:
        """The team's free budget after the hold."""
        return self.budget.free - self.usd

    @property
    def gpus_left(self) -> Decimal:
        """The team's free GPUs after the hold."""
        return self.quota.free - self.gpus


def job_preview(*, actor: Actor, team: Team, cluster: Cluster, spec: JobSpec) -> Preview:
    """Check a spec against cluster, quota and budget; nothing is held. Raises Forbidden."""
    if not can_submit_job(actor, team):
        raise Forbidden(_("you may not submit jobs for team %(team)s") % {"team": team.slug})
    warnings: list[str] = []
    spec, unfilled = brought(spec)
    told, spec = spec, with_cluster_defaults(with_whole_nodes(spec, cluster), cluster)
    problems = [*unfilled, *use_problems(told, team, cluster, gpus_taken=spec.gpus_per_node)]
    takes = spec.manifest and cluster.is_kubernetes and not unfilled
    read = manifest_read(spec.manifest, cluster, team) if takes else None
    if read is not None:
        problems += manifest_problems(told, read)
        spec = counted(spec, read)
    if read is None and spec.gpus_per_node > told.gpus_per_node:
        name = takes_whole_nodes(check_options(spec.slurm_options)[0])[0]
        text = _("--%(name)s takes whole nodes: all %(gpus)s GPUs of each are held")
        warnings.append(text % {"name": name, "gpus": spec.gpus_per_node})
    script = spec.script
    if spec.template is not None and not spec.manifest:
        kept = spec.template
        script, found = fill_template(kept.script, kept.parameters, spec.template_parameters, kept.name)
        problems += found
    script, found = check_script(script) if not spec.manifest else ("", [])
    problems += found + ([] if cluster.is_kubernetes else refused_by_release(script, cluster.observed_version))
    warnings += kubernetes_warnings(script, cluster)
    sizes = check_fields(spec)
    # A manifest that cannot be read has no size to judge.
    problems += sizes if read is None or not read.flaws else []
    array, found = read_array(spec.array)
    problems += found
    try:
        parse_rules(spec.retry_rules)
    except ValueError as error:
        problems.append(FieldProblem("/retry_rules", "invalid", str(error)))
    _needed, for_slurm, found = resolve_dependency(actor, spec.dependency)
    problems += found + check_scheduler(spec, cluster, for_slurm)
    nodes = usable_nodes(cluster, spec.gpu_type, spec.gpus_per_node, spec.partition or cluster.partition)
    if read is None or not read.flaws:
        problems += check_cluster(spec, cluster, len(nodes))
    problems += check_kept_options(spec)
    problems += check_rights(actor, spec)
    # On Kubernetes the portal's own identity acts, in the team's namespace.
    slurms = None if cluster.is_kubernetes else submitter_of(actor, team, cluster, spec.slurm_options)
    submitter = slurms or Submitter()
    problems += submitter.problems
    offered = limit_that_fits(spec, nodes)
    if offered and spec.trim:
        warnings.append(trimmed_words(spec.time_limit_min, offered))
        spec, offered = replace(spec, time_limit_min=offered), None
    elif offered is not None:
        problems.append(too_long_for_block(spec, offered))
    gpu_type = spec.gpu_type or (nodes[0].gpu_type if nodes else "")
    price = price_on(cluster, nodes, gpu_type)
    if price is None:
        usd_per_gpu_hour, source = Decimal(0), ""
        if not problems and spec.gpus_per_node:
            text = _("no price is known for %(gpu)s") % {"gpu": gpu_type or _("these GPUs")}
            problems.append(FieldProblem("/gpu_type", "no-price", text))
    else:
        usd_per_gpu_hour, source = price
    usd_per_node_hour = Decimal(0)
    if not spec.gpus_per_node and (share := share_price(cluster, spec, nodes)) is not None:
        usd_per_node_hour, source = share
    # What no job may ask for is not reckoned: its price may have more digits than money has.
    size = (0, 0, 0) if out_of_range(sizes) else (spec.nodes, spec.gpus_per_node, spec.time_limit_min)
    hours, usd = hold_for(*size, usd_per_gpu_hour, usd_per_node_hour)
    parts = check_parts(actor, spec, cluster, submitter.slurm_account)
    problems += parts.problems
    warnings += parts.warnings
    hours, usd = hours * len(array.tasks) + parts.gpu_hours, usd * len(array.tasks) + parts.usd
    with transaction.atomic():
        month_open(team)
    budget, quota = standing_of(team, Unit.USD), standing_of(team, Unit.GPUS)
    ready = [n for n in nodes if n.phase == NodePhase.READY]
    free = [n for n in ready if n.gpus - n.gpus_used >= spec.gpus_per_node]
    if len(free) < spec.nodes <= len(nodes):
        warnings.append(
            _("%(free)s of the %(nodes)s nodes are free now; the job will wait")
            % {"free": len(free), "nodes": spec.nodes}
        )
    if cluster.phase == ClusterPhase.UNREACHABLE:
        warnings.append(_("the cluster does not answer right now; the job is submitted when it does"))
    return Preview(
        script=script,
        gpus=size[0] * size[1] * array.at_once + parts.gpus,
        gpu_hours=hours,
        usd=usd,
        usd_per_gpu_hour=usd_per_gpu_hour,
        usd_per_node_hour=usd_per_node_hour,
        price_source=source,
        budget=budget,
        quota=quota,
        free_nodes=len(free),
        time_limit_min=spec.time_limit_min,
        offered_limit_min=offered or None,
        slurm_user=submitter.slurm_user,
        slurm_account=submitter.slurm_account,
        # Another attempt at a manifest would meet the names of the first.
        retry_defaults=tuple(inherited_rules(spec.template, team)) if read is None else (),
        parts=parts.parts,
        image=spec.image,
        workload_kind=spec.workload_kind,
        manifest=read,
        problems=tuple(problems),
        warnings=tuple(warnings),
    )


def fresh(cluster: Cluster) -> Cluster:
    """The cluster and its settings as they are stored now."""
    return Cluster.objects.select_related("account", "kubernetes").get(pk=cluster.pk)


def read_array(text: str) -> tuple[Array, list[FieldProblem]]:
    """The array of a spec, a single task where there is none, and what is wrong with it."""
    try:
        return array_of(text.strip()), []
    except ValueError as error:
        return array_of(""), [FieldProblem("/array", "invalid", str(error))]


def with_whole_nodes(spec: JobSpec, cluster: Cluster) -> JobSpec:
    """A job of whole nodes takes all their GPUs, however many it names: what it is held for must say so.

    One that names none stays without where a node without GPUs fits: it pays for a whole node all the same.
    """
    options, problems = check_options(spec.slurm_options)
    if problems or not takes_whole_nodes(options):
        return spec
    nodes = usable_nodes(cluster, spec.gpu_type, 0, spec.partition or cluster.partition)
    if not spec.gpus_per_node and any(not n.gpus for n in nodes):
        return spec
    return replace(spec, gpus_per_node=max([spec.gpus_per_node, *(n.gpus for n in nodes)]))


def job_of(*, actor: Actor, team: Team, cluster: Cluster, spec: JobSpec, preview: Preview) -> Job:
    """The job of a spec whose preview found nothing wrong, as it would be written; it has no uid and no row."""
    spec = with_whole_nodes(spec, cluster)
    if preview.manifest is not None:
        spec = counted(spec, preview.manifest)
    array, _found = read_array(spec.array)
    _needed, told, _found = resolve_dependency(actor, spec.dependency)
    options = [*spec.slurm_options]
    if told:
        before = value_of(check_options(options)[0], "dependency")
        options = [o for o in options if not o.startswith(("--dependency", "-d"))] if before else options
        options.append(f"--dependency={','.join([*([before] if before else []), *(wait.text for wait in told)])}")
    return Job(
        team=team,
        owner_id=actor.user_id,
        owner_name=actor.name,
        cluster=cluster,
        template=spec.template,
        template_parameters=dict(spec.template_parameters),
        template_version=spec.template.number if spec.template else 0,
        name=spec.name,
        script=preview.script,
        nodes=spec.nodes,
        gpus_per_node=spec.gpus_per_node,
        gpu_type=spec.gpu_type,
        tasks_per_node=spec.tasks_per_node,
        cpus_per_task=spec.cpus_per_task,
        memory_per_node_mib=spec.memory_per_node_mib,
        time_limit_min=preview.time_limit_min,
        partition=spec.partition or cluster.partition,
        environment=dict(spec.environment),
        slurm_options=check_options(options)[0],
        array=array.text if spec.array else "",
        tasks=len(array.tasks),
        tasks_at_once=array.at_once,
        parts=[part.row() for part in preview.parts],
        image=preview.image,
        workload_kind=preview.workload_kind,
        priority_class=spec.priority_class,
        manifest=preview.manifest.text if preview.manifest is not None else "",
        max_recoveries=spec.max_recoveries,
        retry_rules=[rule.text for rule in parse_rules(spec.retry_rules)],
        retry_defaults=[dict(row) for row in preview.retry_defaults],
        usd_per_gpu_hour=preview.usd_per_gpu_hour,
        usd_per_node_hour=preview.usd_per_node_hour,
        price_source=preview.price_source,
        slurm_user=preview.slurm_user,
        slurm_account=preview.slurm_account,
    )


def job_submit(*, actor: Actor, team: Team, cluster: Cluster, spec: JobSpec) -> Job:
    """Accept a job: hold its GPUs and money, write it with its first attempt, ask the worker; all or nothing.

    Raises Forbidden, InvalidInput, QuotaExceeded, BudgetExhausted.
    """
    preview = job_preview(actor=actor, team=team, cluster=cluster, spec=spec)
    spec = with_whole_nodes(spec, cluster)
    if preview.problems:
        raise InvalidInput(
            "; ".join(f"{p.pointer}: {p.detail}" for p in preview.problems[:5]), problems=preview.problems
        )
    job = job_of(actor=actor, team=team, cluster=cluster, spec=spec, preview=preview)
    job.uid = ids.new_uid("job")
    needed, _told, _found = resolve_dependency(actor, spec.dependency)
    with transaction.atomic():
        if preview.manifest is not None and manifest_read(job.manifest, fresh(cluster), team) != preview.manifest:
            text = _("the cluster's rules for manifests have changed this moment; look at it again")
            raise InvalidInput(text, problems=[FieldProblem("/manifest", "changed", text)])
        gpus_take(team, job.gpus, subject=job.uid)
        attempt = Attempt(uid=ids.new_uid("att"), number=1, array=job.array, tasks=job.tasks)
        hold_money(
            team, preview.usd, preview.gpu_hours, subject=job.uid, detail=attempt.uid, memo=f"{spec.name}, attempt 1"
        )
        series = CheckpointSeries(team=team, name=spec.name, job_uid=job.uid)
        series.save()
        job.series = series
        job.save()
        attempt.job = job
        attempt.save()
        JobDependency.objects.bulk_create(JobDependency(job=job, needs=other, kind=kind) for kind, other in needed)
        after = {
            "name": job.name,
            "cluster": cluster.name,
            "nodes": job.nodes_in_all,
            "gpus": job.gpus,
            "time_limit_min": job.time_limit_min,
            "usd_held": str(preview.usd),
            "slurm_user": job.slurm_user or cluster.user_name,
        }
        record(actor, "job.submit", "job", job.uid, team_id=team.pk, after=after)
        event("job", job.uid, "JobAccepted", f"accepted from {actor.name}", team_id=team.pk, data=after)
        intent_ask(INTENT, job.uid)
    return job


def job_stop(*, actor: Actor, job: Job, kind: str) -> None:
    """Ask for a job to be cancelled ("cancel") or started again ("requeue"); the caller fetched it with jobs.cancel.

    Cancelling twice is one cancel; a cancel overrides a requeue. Raises TransitionConflict when it has ended.
    """
    if kind == "requeue" and job.origin == JobOrigin.OUTSIDE:
        raise TransitionConflict(_("job %(name)s was submitted past the portal") % {"name": job.name})
    if kind == "requeue" and job.manifest:
        raise TransitionConflict(_("job %(name)s is a manifest: submit it again instead") % {"name": job.name})
    with transaction.atomic():
        allowed = Job.objects.filter(pk=job.pk, ended_at__isnull=True)
        acts_as = acting_user(actor, job)
        if kind == "requeue":
            allowed = allowed.filter(stop_requested_at__isnull=True)
        elif acts_as:
            # Its owner always may: a cancel that Slurm may not let another make is then the owner's.
            allowed = allowed.exclude(stop_kind="cancel", stop_as=acts_as)
        else:
            allowed = allowed.exclude(stop_kind="cancel")
        changed = allowed.update(
            stop_requested_at=clock.now(),
            stop_kind=kind,
            stop_by=actor.name,
            stop_as=acts_as,
            # Two who read the same job ask for two things.
            generation=F("generation") + 1,
        )
        if not changed:
            fresh = Job.objects.get(pk=job.pk)
            if fresh.stop_kind == kind and not fresh.has_ended:
                return
            raise TransitionConflict(
                (_("job %(name)s has already ended") if fresh.has_ended else _("job %(name)s is already being stopped"))
                % {"name": job.name}
            )
        after = {"slurm_user": acts_as or job.cluster.user_name, "own_job": bool(acts_as)}
        record(actor, f"job.{kind}", "job", job.uid, team_id=job.team_id, before={"phase": job.phase}, after=after)
        word = "CancelRequested" if kind == "cancel" else "RequeueRequested"
        event("job", job.uid, word, f"{kind} asked for by {actor.name}", team_id=job.team_id, data={"by": actor.name})
        intent_ask(INTENT, job.uid)


def jobs_stop(*, actor: Actor, jobs: Sequence[Job], kind: str) -> list[StopLine]:
    """Stop several jobs, each in its own transaction; the lines say what became of each, in their order."""
    results = []
    for line in stop_lines(actor, jobs, kind):
        if not line.problem:
            try:
                job_stop(actor=actor, job=line.job, kind=kind)
            except Refusal as refusal:
                results.append(replace(line, problem=refusal.detail))
                continue
        results.append(line)
    return results
