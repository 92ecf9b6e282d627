"""An attempt as a Kubernetes workload: the same job as for Slurm, in pods, with the runner beside its script."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings

from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.kube_selectors import kubernetes_of, place_of
from apps.clusters.kube_states import WorkloadKind
from apps.clusters.models import Cluster, Node
from apps.clusters.states import ClusterKind, NodePhase
from apps.core import clock
from apps.health.models import Finding
from apps.health.states import FATAL, LIVE
from apps.jobs.array_rules import array_of
from apps.jobs.ingest import ingest_token
from apps.jobs.models import Attempt, Job
from apps.jobs.states import ATTEMPT_ENDED
from worker.jobscript import runner_source
from worker.providers.errors import InvalidRequest
from worker.providers.kubernetes.names import ARRAY
from worker.providers.workload_values import ClaimMount, TopologyWish, WorkloadSpec, WorkloadSubmit

#: Where a job without a mount writes; it goes with its pods.
NO_MOUNT = "/tmp/quarterdeck"  # noqa: S108
#: Objects of a manifest are swept a day after its end; so long its names may still be taken.
GIVES_WAY = timedelta(days=3)
#: What a pod gets of a node's CPUs and memory where a job asks for whole GPUs and says nothing else: the kubelet, the
#: node's own pods and the page cache need the rest.
_SHARE = 0.9


def workload_submit(job: Job, attempt: Attempt) -> WorkloadSubmit:
    """Everything the cluster needs. Raises InvalidRequest for a cluster without settings."""
    known = kubernetes_of(job.cluster)
    if known is None:
        raise InvalidRequest(f"nobody said how to reach the Kubernetes of {job.cluster.name}", source="portal")
    place = place_of(job.cluster, job.team)
    common: dict[str, Any] = {
        "uid": attempt.uid,
        "job_uid": job.uid,
        "name": job.name,
        "team": job.team.slug,
        "owner": job.owner_name,
        "namespace": place.namespace,
        "queue": place.queue if known.scheduler != "plain" else "",
        "scheduler": known.scheduler,
    }
    if job.manifest:
        return WorkloadSubmit(**common, manifest=job.manifest, replaces=_ended(job))
    kind = job.workload_kind if job.workload_kind not in ("", WorkloadKind.MANIFEST) else WorkloadKind.INDEXED_JOB
    spec = _spec(job, attempt, known, common["namespace"], common["queue"])
    return WorkloadSubmit(**common, kind=str(kind), spec=spec)


def _ended(job: Job) -> frozenset[str]:
    """The team's attempts at manifests that ended lately here: their objects are kept for a day and give way."""
    rows = Attempt.objects.filter(job__cluster=job.cluster, job__team=job.team, phase__in=ATTEMPT_ENDED)
    rows = rows.exclude(job__manifest="").filter(ended_at__gt=clock.now() - GIVES_WAY)
    return frozenset(rows.order_by("-ended_at").values_list("uid", flat=True)[:1000])


def _spec(job: Job, attempt: Attempt, known: KubernetesSettings, namespace: str, queue: str) -> WorkloadSpec:
    mounts = tuple(_mount(row) for row in known.mounts)
    directory = working_directory(job, known)
    cpus, memory_mib = _share(job)
    array = array_of(attempt.array) if attempt.array else None
    excluded = tuple(dict.fromkeys([*left_out(job, attempt), *attempt.avoided_nodes]))
    efa, pages = network_devices(job)
    level = known.topology_level
    # A wish, not a condition: a job that stands apart is slower, one that never begins is no job.
    topology = TopologyWish(level) if level and known.scheduler == "kueue" and job.nodes > 1 and not array else None
    return WorkloadSpec(
        name=job.name,
        uid=attempt.uid,
        job_uid=job.uid,
        team=job.team.slug,
        owner=job.owner_name,
        namespace=namespace,
        image=job.image or known.default_image,
        nodes=job.nodes,
        time_limit_min=job.time_limit_min,
        script=job.script,
        gpus_per_node=job.gpus_per_node,
        gpu_type=job.gpu_type,
        processes_per_node=job.tasks_per_node if job.tasks_per_node > 1 else 0,
        cpus_per_node=cpus,
        memory_mib=memory_mib,
        instance_types=instance_types(job.cluster, job.gpu_type if job.gpus_per_node else ""),
        environment=environment(job, attempt, directory),
        secret_environment={"QD_INGEST_TOKEN": ingest_token(attempt.uid)},
        annotations={ARRAY: attempt.array} if array else {},
        scheduler=known.scheduler,
        queue=queue,
        priority_class=job.priority_class,
        pod_priority_class=known.pod_priority_class,
        topology=topology,
        efa_per_node=efa,
        hugepages_mib=pages,
        mounts=mounts,
        array=array.tasks if array else (),
        array_at_once=array.limit if array else 0,
        auto_resume_retries=_auto_resume(job),
        runner=runner_source().decode(),
        service_account=known.service_account,
        image_pull_secrets=tuple(str(name) for name in known.pull_secrets),
        excluded_nodes=excluded,
    )


def left_out(job: Job, attempt: Attempt) -> list[str]:
    """Nodes that failed under the job, less those it cannot do without and that nothing speaks against any more.

    One that is still away takes no pod in any case.
    """
    names = list(attempt.excluded_nodes)
    rows = Node.objects.filter(cluster=job.cluster, gpus__gte=job.gpus_per_node, phase=NodePhase.READY)
    if job.gpus_per_node and job.gpu_type:
        rows = rows.filter(gpu_type=job.gpu_type)
    if not names or rows.exclude(name__in=names).count() >= job.nodes:
        return names
    ill = Finding.objects.filter(
        node__cluster=job.cluster, node__name__in=names, phase__in=sorted(LIVE), severity__in=sorted(FATAL)
    ).values_list("node__name", flat=True)
    return [name for name in names if name in set(ill)]


def environment(job: Job, attempt: Attempt, directory: str) -> dict[str, str]:
    """What the script finds, the same as under Slurm; the token goes through a Secret."""
    found = {
        **{str(name): str(value) for name, value in job.environment.items()},
        "QD_ATTEMPT": attempt.uid,
        "QD_JOB": job.uid,
        "QD_WORKING_DIRECTORY": directory,
        "QD_CHECKPOINT_DIR": f"{directory}/checkpoints",
        "QD_INGEST_URL": f"{settings.CONFIG.base_url}/api/v1/ingest/attempts/{attempt.uid}/events",
        "KUBEFLOW_TRAINER_STATUS_URL": f"{settings.CONFIG.base_url}/api/v1/ingest/attempts/{attempt.uid}/status",
    }
    if attempt.resume_from:
        found["QD_RESUME_FROM"] = attempt.resume_from
    return found


def working_directory(job: Job, known: KubernetesSettings) -> str:
    """One folder a job on the first mount, the same for all its attempts; without a mount it lasts as long as a pod."""
    first = next((row for row in known.mounts if not row.get("read_only")), None)
    root = str(first["path"]).rstrip("/") if first else NO_MOUNT
    return f"{root}/{job.team.slug}/{job.uid}"


def _mount(row: Mapping[str, Any]) -> ClaimMount:
    return ClaimMount(
        claim=str(row["claim"]),
        path=str(row["path"]),
        sub_path=str(row.get("sub_path") or ""),
        is_read_only=bool(row.get("read_only")),
    )


def instance_types(cluster: Cluster, gpu_type: str) -> tuple[str, ...]:
    """The types of the cluster's nodes that have this GPU: pods go nowhere else; none known: the cluster decides."""
    if not gpu_type:
        return ()
    rows = (
        Node.objects.filter(cluster=cluster, gpu_type=gpu_type).exclude(instance_type="").exclude(phase=NodePhase.GONE)
    )
    return tuple(sorted(set(rows.values_list("instance_type", flat=True))))


def network_devices(job: Job) -> tuple[int | None, int | None]:
    """EFA devices and huge pages of each pod: by the type where nodes are not known yet, else none that no node has.

    A pod that asks for what its nodes do not offer never begins.
    """
    rows = Node.objects.filter(cluster=job.cluster, gpus__gt=0).exclude(phase=NodePhase.GONE)
    rows = rows.filter(gpu_type=job.gpu_type) if job.gpu_type else rows.filter(gpus__gte=job.gpus_per_node)
    told = list(rows.values_list("labels", flat=True)[:1000])
    if not told:
        return None, None
    efa = min(_number(labels, "capacity:efa") for labels in told)
    pages = min(_number(labels, "capacity:hugepages") for labels in told)
    if efa and job.gpus_per_node and not job.gpu_type and job.nodes > 1 and not job.array:
        # No type says it: what each node has that may take a pod of it.
        return efa, (None if pages else 0)
    return (None if efa else 0), (None if pages else 0)


def _number(labels: Mapping[str, Any], key: str) -> int:
    text = str(labels.get(key) or "0")
    return int(text) if text.isdigit() else 0


def _share(job: Job) -> tuple[int, int]:
    """CPUs and memory of each pod: as asked; a job with GPUs that says nothing of one gets its part of the node.

    A request is also the pod's weight where CPUs are short: one CPU for eight GPUs would starve what feeds them.
    """
    cpus = max(job.cpus_per_task * job.tasks_per_node, 1)
    memory_mib = job.memory_per_node_mib
    if not job.gpus_per_node or (memory_mib and cpus > 1):
        return cpus, memory_mib
    rows = Node.objects.filter(cluster=job.cluster, gpus__gte=job.gpus_per_node, memory_mib__gt=0)
    rows = rows.exclude(phase=NodePhase.GONE)
    if job.gpu_type:
        rows = rows.filter(gpu_type=job.gpu_type)
    smallest = rows.order_by("memory_mib", "cpus").values_list("gpus", "memory_mib", "cpus").first()
    if smallest is None:
        return cpus, memory_mib
    part = _SHARE * job.gpus_per_node / smallest[0]
    if cpus == 1:
        cpus = max(1, int(smallest[2] * part))
    return cpus, memory_mib or int(smallest[1] * part)


def _auto_resume(job: Job) -> int:
    """HyperPod resumes PyTorchJobs by itself where it was told to repair its nodes; attempts beyond that are ours."""
    recovers = job.cluster.kind == ClusterKind.HYPERPOD_EKS and job.cluster.settings.get("recovers")
    return 1 if recovers and job.workload_kind == WorkloadKind.PYTORCHJOB and job.max_recoveries else 0
