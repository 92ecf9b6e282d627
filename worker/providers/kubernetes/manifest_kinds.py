"""The kinds that a manifest may hold, those that belong to a whole cluster, and where Kueue reads a queue's name."""

from __future__ import annotations

from worker.providers.kubernetes.pod_sets import SHAPES

#: Kinds without pods that go along with a workload.
COMPANIONS = frozenset({("", "ConfigMap"), ("", "Secret"), ("", "Service"), ("", "PersistentVolumeClaim")})
#: All that a manifest may hold, as (API group, kind).
KNOWN = frozenset(SHAPES) | COMPANIONS
#: Kinds that stand above namespaces, and so above teams.
CLUSTER_SCOPED = frozenset(
    {
        *(("", "Namespace"), ("", "Node"), ("", "PersistentVolume")),
        *(("rbac.authorization.k8s.io", "ClusterRole"), ("rbac.authorization.k8s.io", "ClusterRoleBinding")),
        ("apiextensions.k8s.io", "CustomResourceDefinition"),
        ("apiregistration.k8s.io", "APIService"),
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"),
        *(("scheduling.k8s.io", "PriorityClass"), ("node.k8s.io", "RuntimeClass")),
        *(("storage.k8s.io", "StorageClass"), ("storage.k8s.io", "CSIDriver"), ("storage.k8s.io", "CSINode")),
        ("storage.k8s.io", "VolumeAttachment"),
        ("networking.k8s.io", "IngressClass"),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema"),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"),
        ("certificates.k8s.io", "CertificateSigningRequest"),
        *(("resource.k8s.io", "DeviceClass"), ("resource.k8s.io", "ResourceSlice")),
        *(("kueue.x-k8s.io", "AdmissionCheck"), ("kueue.x-k8s.io", "ClusterQueue"), ("kueue.x-k8s.io", "Cohort")),
        *(("kueue.x-k8s.io", "ResourceFlavor"), ("kueue.x-k8s.io", "Topology")),
        ("kueue.x-k8s.io", "WorkloadPriorityClass"),
        ("trainer.kubeflow.org", "ClusterTrainingRuntime"),
    }
)
#: Kinds that Kueue queues by a label.
MANAGED_BY_KUEUE = frozenset(SHAPES) - {("trainer.kubeflow.org", "TrainingRuntime")}


def queue_steps(kind: tuple[str, str]) -> tuple[str, ...]:
    """The steps to whatever carries the queue's label: the object itself, or its pods' template."""
    return ("spec", "template") if kind == ("apps", "ReplicaSet") else ()
