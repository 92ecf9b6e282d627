"""Choices of clusters that run Kubernetes: how they are reached, who queues, what workloads are written as."""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class KubeAuth(TextChoices):
    """How the worker proves who it is to the API server."""

    EKS = "eks", _("the cloud account's own identity (EKS token)")
    KUBECONFIG = "kubeconfig", _("a kubeconfig")
    IN_CLUSTER = "in-cluster", _("the service account of the portal's own pod")


class KubeScheduler(TextChoices):
    """Who lets whole jobs begin. PLAIN: the portal itself, all pods of a job at once or none."""

    KUEUE = "kueue", "Kueue"
    PLAIN = "plain", _("the portal, whole jobs at a time")
    VOLCANO = "volcano", "Volcano"
    KAI = "kai", "KAI"


class WorkloadKind(TextChoices):
    """What a job is written as on Kubernetes."""

    INDEXED_JOB = "indexed_job", "Indexed Job"
    JOBSET = "jobset", "JobSet"
    PYTORCHJOB = "pytorchjob", "PyTorchJob"
    TRAINJOB = "trainjob", "TrainJob"
    MANIFEST = "manifest", _("own manifest")


class Allowance(TextChoices):
    """What a cluster's administrators let manifests of people do beyond what is safe among teams."""

    PRIVILEGED = "privileged", _("privileged containers")
    HOST_NETWORK = "host_network", _("the host's network")
    HOST_PID = "host_pid", _("the host's processes")
    HOST_IPC = "host_ipc", _("the host's shared memory")
    PROC_MOUNT = "proc_mount", _("an unmasked /proc")
    UNCONFINED = "unconfined", _("no seccomp or AppArmor profile")
    EXTERNAL_SERVICES = "external_services", _("services that open the cluster to the outside")
