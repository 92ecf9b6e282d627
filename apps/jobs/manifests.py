"""A manifest that a person brought: what is wrong with it and where, what it asks for, how it is sent."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from apps.clusters.kube_selectors import kubernetes_of, place_of
from apps.clusters.kube_states import KubeScheduler, WorkloadKind
from apps.clusters.models import Cluster
from apps.core.errors import FieldProblem
from apps.jobs.models import Attempt, Job, JobTemplate
from apps.jobs.permissions import can_submit_job
from apps.jobs.template_rules import fill_template, yaml_text
from apps.teams.models import Team
from apps.teams.permissions import Actor

if TYPE_CHECKING:
    from apps.jobs.services import JobSpec

MAX_MANIFEST_BYTES = 1024 * 1024
#: Members of a submit that a manifest says itself; it is kept to the letter, so they could not reach it.
SAID_BY_IT = (
    *("script", "image", "array", "parts", "environment", "slurm_options", "partition", "retry_rules"),
    *("priority_class", "gpu_type"),
)


@dataclass(frozen=True)
class Flaw:
    """One thing wrong: its document from 1 (0: the whole text), the field's path and its line from 1 (0: unknown)."""

    code: str
    text: str
    document: int = 0
    path: str = ""
    line: int = 0

    @property
    def place(self) -> str:
        """Where, in words; empty for the whole text."""
        facts = {"document": self.document, "line": self.line}
        parts = [_("document %(document)s") % facts if self.document else "", _("line %(line)s") % facts]
        return ", ".join(part for part in (parts[0], parts[1] if self.line else "", self.path) if part)

    @property
    def words(self) -> str:
        """The sentence behind its place."""
        return f"{self.place}: {self.text}" if self.place else self.text


@dataclass(frozen=True)
class ManifestRead:
    """What a manifest asks for: ``nodes`` pods at the same time, each of at most ``gpus_per_node`` GPUs.

    Pods without GPUs do not count beside pods with some. ``time_limit_min`` is None where nothing in it ends it. All
    counts are 0 while there are ``flaws``. ``objects`` are "Kind/name" in their order. ``text`` is what was read.
    """

    flaws: tuple[Flaw, ...] = ()
    objects: tuple[str, ...] = ()
    name: str = ""
    pods: int = 0
    nodes: int = 0
    gpus: int = 0
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    memory_per_node_mib: int = 0
    time_limit_min: int | None = None
    text: str = ""


def is_manifest(template: JobTemplate | None) -> bool:
    """Whether the text of a template is a manifest and no script."""
    return template is not None and template.defaults.get("workload_kind") == WorkloadKind.MANIFEST


def brought(spec: JobSpec) -> tuple[JobSpec, list[FieldProblem]]:
    """The spec with the manifest that its template makes of the parameters, and what is wrong with those."""
    kept = spec.template
    if kept is None or not is_manifest(kept):
        return spec, []
    text, problems = fill_template(kept.script, kept.parameters, spec.template_parameters, kept.name, yaml_text)
    return replace(spec, manifest=text), problems


def read_text(data: bytes | str) -> tuple[str, tuple[Flaw, ...]]:
    """The manifest as text, and what is wrong with it as a whole."""
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    if len(raw) > MAX_MANIFEST_BYTES:
        facts = {"size": f"{len(raw):,}", "most": f"{MAX_MANIFEST_BYTES:,}"}
        return "", (Flaw("TooLarge", _("%(size)s bytes; at most %(most)s (1 MiB)") % facts),)
    try:
        text = raw.decode().removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        return "", (Flaw("NotText", _("not UTF-8 text (byte %(byte)s)") % {"byte": error.start}),)
    if not text.strip():
        return "", (Flaw("Empty", _("the manifest is empty")),)
    return text, ()


def manifest_read(text: str, cluster: Cluster, team: Team) -> ManifestRead:
    """Judge a manifest by what the cluster takes from the team. It is parsed where the worker's providers are."""
    text, flaws = read_text(text)
    if flaws:
        return ManifestRead(flaws=flaws)
    found: dict[str, Any] = dict(import_string(settings.MANIFEST_CHECK)(text, cluster, team))
    flaws = tuple(Flaw(**{**row, "text": str(row["text"])}) for row in found.pop("problems"))
    return ManifestRead(**{**found, "flaws": flaws, "objects": tuple(found.get("objects", ())), "text": text})


def counted(spec: JobSpec, read: ManifestRead) -> JobSpec:
    """The spec with the size that its manifest asks for, so that quota and money are held as for any job.

    Kubernetes itself starts again what a manifest says; another attempt would meet the names of the first.
    """
    return replace(
        spec,
        nodes=max(1, read.nodes),
        gpus_per_node=read.gpus_per_node,
        gpu_type="",
        tasks_per_node=1,
        cpus_per_task=max(1, read.cpus_per_node),
        memory_per_node_mib=read.memory_per_node_mib,
        time_limit_min=read.time_limit_min or spec.time_limit_min,
        workload_kind=WorkloadKind.MANIFEST,
        max_recoveries=0,
    )


def manifest_problems(spec: JobSpec, read: ManifestRead) -> list[FieldProblem]:
    """What stands against a submit with this manifest."""
    problems = [FieldProblem("/manifest", flaw.code, flaw.words) for flaw in read.flaws]
    text = _("the manifest says this itself, and it is sent to the letter")
    problems += [FieldProblem(f"/{name}", "in-manifest", text) for name in SAID_BY_IT if getattr(spec, name)]
    if spec.template is None and spec.workload_kind:
        problems.append(FieldProblem("/workload_kind", "in-manifest", text))
    if spec.template is not None and not is_manifest(spec.template):
        problems.append(FieldProblem("/template", "in-manifest", _("a manifest takes the place of a template")))
    if not read.flaws and read.time_limit_min is None and spec.time_limit_min < 1:
        words = _("nothing in the manifest ends it (activeDeadlineSeconds): say how long it may run")
        problems.append(FieldProblem("/time_limit_min", "required", words))
    return problems


@dataclass(frozen=True)
class SentLine:
    """A line of a manifest as it is sent; ``mark`` is add for what the portal added, del for what that replaced."""

    mark: str
    text: str


def sent_lines(job: Job, attempt: Attempt) -> list[SentLine]:
    """The manifest of a job as this attempt sends it, the labels of its owner marked, what Secrets hold hidden."""
    place, known = place_of(job.cluster, job.team), kubernetes_of(job.cluster)
    sent = import_string(settings.MANIFEST_SENT)(
        job.manifest,
        job=job.uid,
        attempt=attempt.uid,
        team=job.team.slug,
        owner=job.owner_name,
        queue="" if known is not None and known.scheduler == KubeScheduler.PLAIN else place.queue,
        scheduler=str(known.scheduler if known is not None else KubeScheduler.KUEUE),
    )
    return lines_between(shown_text(job.manifest).splitlines(), shown_text(str(sent)).splitlines())


def shown_text(text: str) -> str:
    """A manifest as it is shown: without what its Secrets hold."""
    return str(import_string(settings.MANIFEST_SHOWN)(text)) if text else ""


def text_for(actor: Actor, job: Job) -> str:
    """A job's manifest to be submitted again: to the letter for those who may submit for its team, else as shown."""
    return job.manifest if can_submit_job(actor, job.team) else shown_text(job.manifest)


def lines_between(before: Sequence[str], after: Sequence[str]) -> list[SentLine]:
    """All lines of the second text, with those that only it has marked, and those it took the place of before them."""
    found: list[SentLine] = []
    for what, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if what in ("replace", "delete"):
            found += [SentLine("del", line) for line in before[i:j]]
        found += [SentLine("" if what == "equal" else "add", line) for line in after[k:m]]
    return found
