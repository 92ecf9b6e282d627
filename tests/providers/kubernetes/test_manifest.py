"""Manifests of people: what is refused and where, what is counted, and that the rest stays to the letter."""

from __future__ import annotations

import textwrap

import pytest

from worker.providers.kubernetes.manifest import (
    ManifestPolicy,
    NodeSize,
    check_manifest,
    demand_of,
    read_manifest,
)
from worker.providers.kubernetes.pod_rules import PodPolicy
from worker.providers.kubernetes.pod_sets import Demand

NODE = NodeSize("p5.48xlarge", gpus=8, cpu_milli=190_000, memory_mib=2_000_000, efa=32)
POLICY = ManifestPolicy("team-vision", nodes=(NODE,), queues=frozenset({"vision"}), priorities=frozenset({"normal"}))
OWNER = {"job": "job_01", "attempt": "att_01", "team": "vision", "owner": "owner"}


def job(inner: str = "", *, spec: str = "", meta: str = "", image: str = "registry.example/train:1") -> str:
    """A Job whose container has the lines ``inner``, whose pod has ``spec``."""
    lines = ["apiVersion: batch/v1", "kind: Job", "metadata:", "  name: train"]
    lines += textwrap.indent(textwrap.dedent(meta), "  ").splitlines()
    lines += ["spec:", "  template:", "    spec:"]
    lines += textwrap.indent(textwrap.dedent(spec), " " * 6).splitlines()
    lines += ["      containers:", "      - name: main", f"        image: {image}"]
    lines += textwrap.indent(textwrap.dedent(inner), " " * 8).splitlines()
    return "\n".join(lines) + "\n"


def problems(text: str, policy: ManifestPolicy = POLICY) -> list[tuple[str, str]]:
    return [(found.code, found.path) for found in check_manifest(read_manifest(text), policy)]


def test_a_plain_job_has_no_problem():
    assert problems(job("resources: {limits: {nvidia.com/gpu: 8}}")) == []


# --- what cannot be read -----------------------------------------------------------------------

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("a:\n\tb: 1\n", "Tab", 2),
        ("a:\n  b: 1\n\tc: 2\n", "Tab", 3),
        ("kind: Job\nmetadata: {}\nkind: Pod\n", "DuplicateKey", 3),
        ("a: {b: 1, b: 2}\n", "DuplicateKey", 1),
        (BOMB, "TooManyValues", 5),
        ("a: &a\n  b: *a\n", "UnknownAlias", 2),
        ("x: " + "[" * 65 + "]" * 65, "TooDeep", 1),
        ("x: " + "[" * 1000, "TooDeep", 1),
        ("---\na: 1\n" * 51, "TooManyDocuments", 101),
        ("a: b\n" + "# " + "x" * (1 << 20), "TooLarge", 0),
        ("a: !!python/object/apply:os.system [ls]\n", "UnknownTag", 1),
        ("a: 'b\n", "NotYaml", 2),
        ("a: \x07\n", "ControlCharacter", 1),
        ("? [a, b]\n: c\n", "KeyNotText", 1),
        ("a: yes\n", "Ambiguous", 1),
        ("a: .inf\n", "NoNumber", 1),
        ("- a\n", "NotAnObject", 1),
        ("just text\n", "NotAnObject", 1),
        ("# nothing\n---\n", "Empty", 0),
        ("", "Empty", 0),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(text, code, line):
    (found,) = check_manifest(read_manifest(text), POLICY)

    assert (found.code, found.line) == (code, line)
    assert str(found.text)


def test_fifty_documents_are_taken():
    text = "---\n".join(job().replace("name: train", f"name: train-{number}") for number in range(50))

    assert len(read_manifest(text).documents) == 50
    assert problems(text) == []


def test_values_are_as_kubernetes_reads_them():
    text = "kind: A\nmode: 0644\nday: 2026-01-02\ntime: 1:30\nsize: 1e3\nnot: 'yes'\nempty:\nflag: True\n"
    text += "long: |\n  a\n  b\n"
    (doc,) = read_manifest(text).documents

    assert doc.value == {
        "kind": "A",
        "mode": 0o644,
        "day": "2026-01-02",
        "time": "1:30",
        "size": 1000.0,
        "not": "yes",
        "empty": None,
        "flag": True,
        "long": "a\nb\n",
    }


def test_merges_and_aliases_are_read():
    (doc,) = read_manifest("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\nc: *a\n").documents

    assert doc.value == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 2}}


# --- what is refused by policy -----------------------------------------------------------------

POD = "spec.template.spec"
BOX = f"{POD}.containers[0]"


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        (job(spec="hostNetwork: true"), "HostNetwork", f"{POD}.hostNetwork"),
        (job(spec="hostPID: true"), "HostPID", f"{POD}.hostPID"),
        (job(spec="hostIPC: true"), "HostIPC", f"{POD}.hostIPC"),
        (job("securityContext: {privileged: true}"), "Privileged", f"{BOX}.securityContext.privileged"),
        (
            job("securityContext: {capabilities: {add: [CAP_SYS_ADMIN]}}"),
            "Capability",
            f"{BOX}.securityContext.capabilities.add[0]",
        ),
        (job("securityContext: {procMount: Unmasked}"), "ProcMount", f"{BOX}.securityContext.procMount"),
        (
            job(spec="securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}"),
            "Sysctl",
            f"{POD}.securityContext.sysctls[0]",
        ),
        (job(spec="volumes: [{name: v, hostPath: {path: /etc}}]"), "HostPath", f"{POD}.volumes[0].hostPath"),
        (job(spec="volumes: [{name: v, nfs: {server: s, path: /}}]"), "VolumeKind", f"{POD}.volumes[0].nfs"),
        (job("ports: [{containerPort: 1, hostPort: 1}]"), "HostPort", f"{BOX}.ports[0].hostPort"),
        (job(spec="nodeName: ip-10-0-0-1"), "NodeName", f"{POD}.nodeName"),
        (job(spec="schedulerName: mine"), "SchedulerName", f"{POD}.schedulerName"),
        (job(spec="priorityClassName: system-node-critical"), "PriorityClass", f"{POD}.priorityClassName"),
        (job(spec="serviceAccountName: admin"), "ServiceAccount", f"{POD}.serviceAccountName"),
        (
            job(spec="securityContext: {seccompProfile: {type: Unconfined}}"),
            "Unconfined",
            f"{POD}.securityContext.seccompProfile",
        ),
        (
            job("env: [{name: T, valueFrom: {secretKeyRef: {name: qd-att-other, key: t}}}]"),
            "Secret",
            f"{BOX}.env[0].valueFrom.secretKeyRef.name",
        ),
        (job("envFrom: [{secretRef: {name: qd-att-other}}]"), "Secret", f"{BOX}.envFrom[0].secretRef.name"),
        (
            job(spec="volumes: [{name: v, secret: {secretName: qd-att-other}}]"),
            "Secret",
            f"{POD}.volumes[0].secret.secretName",
        ),
        (job(image='"registry.example/a\\nb"'), "ImageName", f"{BOX}.image"),
        (job(image='"a b"'), "ImageName", f"{BOX}.image"),
        (job("resources: {limits: {nvidia.com/gpu: 16}}"), "TooLargeForAnyNode", f"{POD}.containers"),
        (job("resources: {requests: {memory: 3Ti}}"), "TooLargeForAnyNode", f"{POD}.containers"),
        (job("resources: {requests: {cpu: lots}}"), "BadValue", f"{BOX}.resources.requests.cpu"),
        (
            job("resources: {limits: {nvidia.com/mig-1g.10gb: 1}}"),
            "ResourceClaims",
            f"{BOX}.resources.limits.nvidia.com/mig-1g.10gb",
        ),
        (job(meta="namespace: team-other"), "OtherNamespace", "metadata.namespace"),
        (job(meta="labels: {quarterdeck.dev/team: other}"), "KeptLabel", "metadata.labels.quarterdeck.dev/team"),
        (job(meta="labels: {a: 1}"), "LabelNotText", "metadata.labels.a"),
        (
            job(meta="labels: {kueue.x-k8s.io/queue-name: other}"),
            "OtherQueue",
            "metadata.labels.kueue.x-k8s.io/queue-name",
        ),
        (
            job(meta="labels: {kueue.x-k8s.io/priority-class: highest}"),
            "PriorityClass",
            "metadata.labels.kueue.x-k8s.io/priority-class",
        ),
        (job().replace("name: train", "name: Train_1"), "BadName", "metadata.name"),
        (job().replace("name: train", "name: qd-train"), "KeptName", "metadata.name"),
        (job().replace("name: train", "generateName: train-"), "NoName", "metadata.generateName"),
        (job() + "---\n" + job(), "TwiceTheSame", "metadata.name"),
        (job().replace("batch/v1", "example.org/v1").replace("kind: Job", "kind: Widget"), "UnknownKind", "kind"),
        ("apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: a}\n", "CronJob", "kind"),
        ("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n", "ClusterScoped", "kind"),
        ("apiVersion: v1\nkind: List\nmetadata: {name: a}\nitems: []\n", "UnknownKind", "kind"),
        ("apiVersion: v1\nkind: Pod\n", "NoName", "metadata"),
        ("kind: Pod\nmetadata: {name: a}\n", "NotAnObject", "apiVersion"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}\n", "NoContainer", "spec.containers"),
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {type: LoadBalancer}\n",
            "ExternalService",
            "spec.type",
        ),
        (
            "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ntype: kubernetes.io/service-account-token\n",
            "Secret",
            "type",
        ),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "NothingRuns", ""),
    ],
)
def test_refused_with_the_path_of_the_field(text, code, path):
    assert problems(text) == [(code, path)]


def test_the_line_of_a_refusal_is_the_field_s():
    (found,) = check_manifest(read_manifest("# first\n" + job(spec="hostNetwork: true")), POLICY)

    assert found.line == 9
    assert str(found).startswith("document 1, line 9, spec.template.spec.hostNetwork: ")


def test_what_the_cluster_allows_is_taken():
    lax = PodPolicy(
        host_paths=("/mnt/nvme",),
        allows_privileged=True,
        allows_host_network=True,
        allows_host_pid=True,
        allows_host_ipc=True,
        allows_proc_mount=True,
        allows_unconfined=True,
        capabilities=frozenset({"IPC_LOCK"}),
        sysctls=frozenset({"net.core.somaxconn"}),
        service_accounts=None,
        kept_secrets=(),
    )
    text = job(
        "securityContext: {privileged: true, procMount: Unmasked, capabilities: {add: [IPC_LOCK]}}\n"
        "envFrom: [{secretRef: {name: qd-x}}]",
        spec="""\
        hostNetwork: true
        hostPID: true
        hostIPC: true
        serviceAccountName: any
        securityContext: {sysctls: [{name: net.core.somaxconn, value: '1'}], seccompProfile: {type: Unconfined}}
        volumes: [{name: v, hostPath: {path: /mnt/nvme/scratch}}]
        """,
    )

    assert problems(text, ManifestPolicy("team-vision", pods=lax)) == []
    for path in ("/mnt/nvme2", "/mnt/nvme/../../etc", "mnt/nvme", ""):
        assert problems(
            job(spec=f"volumes: [{{name: v, hostPath: {{path: '{path}'}}}}]"), ManifestPolicy("t", pods=lax)
        ) == [("HostPath", f"{POD}.volumes[0].hostPath")]


def test_a_secret_of_the_same_manifest_may_be_used():
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: mine}\nstringData: {a: b}\n---\n"
    policy = ManifestPolicy("team-vision", pods=PodPolicy(secrets=frozenset({"shared"})))

    assert problems(secret + job("envFrom: [{secretRef: {name: mine}}, {secretRef: {name: shared}}]"), policy) == []
    assert problems(job("envFrom: [{secretRef: {name: mine}}]"), policy)[0][0] == "Secret"


def test_init_and_ephemeral_containers_and_all_templates_are_looked_at():
    text = job(spec="initContainers: [{name: i, image: a, securityContext: {privileged: true}}]")
    assert problems(text) == [("Privileged", f"{POD}.initContainers[0].securityContext.privileged")]

    runtime = """\
    apiVersion: trainer.kubeflow.org/v1alpha1
    kind: TrainJob
    metadata: {name: t}
    spec:
      runtimeRef: {name: torch}
      trainer: {numNodes: 2, image: a, resourcesPerNode: {limits: {nvidia.com/gpu: 8}}}
      runtimePatches:
      - manager: example.org/me
        trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec: {
          volumes: [{name: h, hostPath: {path: /}}]}}}}}]}}}
    """
    path = "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template.spec"
    assert problems(textwrap.dedent(runtime)) == [("HostPath", f"{path}.volumes[0].hostPath")]


def test_a_kind_that_the_server_has_not():
    policy = ManifestPolicy("team-vision", served=frozenset({"v1 Pod"}))

    assert problems(job(), policy) == [("NotServed", "apiVersion")]


# --- what is counted ---------------------------------------------------------------------------

BOX8 = (
    "{containers: [{name: m, image: a, resources: {limits: {nvidia.com/gpu: 8, memory: 1Gi}, requests: {cpu: 1500m}}}]}"
)
COUNTED = {
    "Pod": (f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {BOX8}\n", 1),
    "Job": (
        f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: a}}\n"
        f"spec: {{parallelism: 6, completions: 4, template: {{spec: {BOX8}}}}}\n",
        4,
    ),
    "Deployment": (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n"
        f"spec: {{replicas: 3, template: {{spec: {BOX8}}}}}\n",
        3,
    ),
    "ReplicaSet": (
        "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: a}\n"
        f"spec: {{replicas: 3, template: {{spec: {BOX8}}}}}\n",
        3,
    ),
    "StatefulSet": (
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: a}\n"
        f"spec: {{replicas: 3, template: {{spec: {BOX8}}}}}\n",
        3,
    ),
    "HyperPodPyTorchJob": (
        "apiVersion: sagemaker.amazonaws.com/v1\nkind: HyperPodPyTorchJob\nmetadata: {name: a}\n"
        f"spec: {{replicaSpecs: [{{name: pods, replicas: 4, spares: 1, template: {{spec: {BOX8}}}}}]}}\n",
        5,
    ),
    "JobSet": (
        "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: a}\nspec: {replicatedJobs: ["
        "{name: a, replicas: 2, template: {spec: {parallelism: 3, completions: 3, "
        f"template: {{spec: {BOX8}}}}}}}}}, "
        f"{{name: b, template: {{spec: {{template: {{spec: {BOX8}}}}}}}}}]}}\n",
        7,
    ),
    "PyTorchJob": (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec: {pytorchReplicaSpecs: "
        f"{{Master: {{template: {{spec: {BOX8}}}}}, Worker: {{replicas: 4, template: {{spec: {BOX8}}}}}}}}}\n",
        5,
    ),
    "elastic PyTorchJob": (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec: {elasticPolicy: {maxReplicas: 9}, "
        f"pytorchReplicaSpecs: {{Worker: {{replicas: 4, template: {{spec: {BOX8}}}}}}}}}\n",
        9,
    ),
    "TrainJob": (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: a}\n"
        "spec: {runtimeRef: {name: torch}, trainer: {numNodes: 5, resourcesPerNode: "
        "{limits: {nvidia.com/gpu: 8, memory: 1Gi}, requests: {cpu: 1500m}}}}\n",
        5,
    ),
    "TrainJob with its runtime": (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainingRuntime\nmetadata: {name: r}\n"
        "spec: {mlPolicy: {numNodes: 3}, template: {spec: {replicatedJobs: [{name: node, template: {metadata: {labels: "
        "{trainer.kubeflow.org/trainjob-ancestor-step: trainer}}, spec: {template: {spec: "
        f"{BOX8}}}}}}}}}]}}}}}}\n---\n"
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: a}\n"
        "spec: {runtimeRef: {kind: TrainingRuntime, name: r}}\n",
        3,
    ),
    "LeaderWorkerSet": (
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: a}\n"
        f"spec: {{replicas: 2, leaderWorkerTemplate: {{size: 4, workerTemplate: {{spec: {BOX8}}}}}}}\n",
        8,
    ),
    "LeaderWorkerSet with leader": (
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: a}\n"
        f"spec: {{replicas: 2, leaderWorkerTemplate: {{size: 4, leaderTemplate: {{spec: {BOX8}}}, "
        f"workerTemplate: {{spec: {BOX8}}}}}}}\n",
        8,
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_pods_are_counted_over_all_kinds(name):
    text, count = COUNTED[name]
    manifest = read_manifest(text)

    assert check_manifest(manifest, POLICY) == []
    assert demand_of(manifest) == Demand(pods=1, gpus=8, cpu_milli=1500, memory_mib=1024).times(count)


def test_init_containers_count_where_they_ask_for_more():
    text = job(
        "resources: {requests: {cpu: 2, memory: 1Gi}}",
        spec="""\
        initContainers:
        - {name: stays, image: a, restartPolicy: Always, resources: {requests: {cpu: 1}}}
        - {name: once, image: a, resources: {requests: {memory: 4Gi}}}
        """,
    )

    assert demand_of(read_manifest(text)) == Demand(pods=1, cpu_milli=3000, memory_mib=4096)


def test_a_trainjob_that_says_no_resources_cannot_be_counted():
    text = (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: a}\n"
        "spec: {runtimeRef: {name: torch}, trainer: {numNodes: 5}}\n"
    )

    assert problems(text) == [("BadValue", "spec.trainer.resourcesPerNode")]


@pytest.mark.parametrize("count", ["-1", "many", "1.5", "true"])
def test_a_count_that_is_none(count):
    text = job().replace("spec:\n  template", f"spec:\n  parallelism: {count}\n  template", 1)

    assert problems(text) == [("BadValue", "spec.parallelism")]
