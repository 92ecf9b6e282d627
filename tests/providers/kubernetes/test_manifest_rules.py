"""Ways around the queue, the count, the end and the team's own data, each refused at its field or counted."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest

from tests.providers.kubernetes.test_manifest import BOX, POD, POLICY, job, problems
from worker.providers.kubernetes.manifest import check_manifest, demand_of, read_manifest
from worker.providers.kubernetes.manifest_rules import MAX_GRACE_S
from worker.providers.kubernetes.pod_rules import PodPolicy
from worker.providers.kubernetes.pod_sets import SHAPES, Demand

STRICT = replace(POLICY, pods=PodPolicy(priority_classes=frozenset({"team-normal"})))
TRAINER = "trainer.kubeflow.org/trainjob-ancestor-step"


def train_job(spec: str, runtime: str = "{name: torch}") -> str:
    """A TrainJob with the lines ``spec`` beside its runtime."""
    head = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec:\n"
    return f"{head}  runtimeRef: {runtime}\n" + textwrap.indent(textwrap.dedent(spec), "  ")


ONE_NODE = "trainer: {numNodes: 1, resourcesPerNode: {limits: {nvidia.com/gpu: 1}}}\n"


def test_a_cron_job_is_refused_with_what_to_do_instead():
    (found,) = check_manifest(read_manifest("apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: a}\n"), POLICY)
    assert "bring a Job instead" in str(found.text)
    assert ("batch", "CronJob") not in SHAPES


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        (job(meta="finalizers: [example.com/keep]"), "Finalizers", "metadata.finalizers"),
        (job(spec=f"terminationGracePeriodSeconds: {MAX_GRACE_S + 1}"), "GraceTooLong", None),
        (job(spec="terminationGracePeriodSeconds: true"), "GraceTooLong", None),
        (
            job("lifecycle: {}\nlivenessProbe: {terminationGracePeriodSeconds: 9999}"),
            "GraceTooLong",
            f"{BOX}.livenessProbe.terminationGracePeriodSeconds",
        ),
    ],
)
def test_what_would_hold_up_the_end_is_refused(text, code, path):
    assert problems(text) == [(code, path or f"{POD}.terminationGracePeriodSeconds")]


def test_a_pod_s_finalizers_are_refused_and_a_fair_grace_is_taken():
    text = job(spec=f"terminationGracePeriodSeconds: {MAX_GRACE_S}")
    assert problems(text) == []
    held = text.replace("  template:\n", "  template:\n    metadata: {finalizers: [a/b]}\n")
    assert problems(held) == [("Finalizers", "spec.template.metadata.finalizers")]


@pytest.mark.parametrize(
    ("line", "code"),
    [("ttlSecondsAfterFinished: 0", "GoneTooSoon"), ("managedBy: example.com/other", "ManagedElsewhere")],
)
def test_what_ended_stays_and_is_run_by_this_cluster(line, code):
    text = job().replace("spec:\n", f"spec:\n  {line}\n", 1)
    assert problems(text) == [(code, f"spec.{line.split(':')[0]}")]


def test_what_ended_may_be_cleared_after_a_day():
    text = job().replace("spec:\n", "spec:\n  ttlSecondsAfterFinished: 86400\n", 1)
    assert problems(text) == []


@pytest.mark.parametrize(
    "label", ["kueue.x-k8s.io/queue-name", "kai.scheduler/queue", "scheduling.volcano.sh/queue-name"]
)
@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_a_queue_of_another_team_is_refused_by_every_scheduler_s_name(label, part):
    assert problems(job(meta=f"{part}: {{{label}: other}}")) == [("OtherQueue", f"metadata.{part}.{label}")]
    assert problems(job(meta=f"{part}: {{{label}: vision}}")) == []
    inner = job().replace("  template:\n", f"  template:\n    metadata: {{{part}: {{{label}: other}}}}\n")
    assert problems(inner) == [("OtherQueue", f"spec.template.metadata.{part}.{label}")]


@pytest.mark.parametrize("label", ["kueue.x-k8s.io/prebuilt-workload-name", "scheduling.k8s.io/group-name"])
def test_what_was_let_in_for_another_is_not_joined(label):
    assert problems(job(meta=f"labels: {{{label}: other}}")) == [("QueuePassed", f"metadata.labels.{label}")]


def test_only_the_cluster_s_priority_classes_are_for_pods():
    assert problems(job(spec="priorityClassName: team-normal"), STRICT) == []
    assert problems(job(spec="priorityClassName: very-high"), STRICT) == [("PriorityClass", f"{POD}.priorityClassName")]
    label = job(meta="labels: {priorityClassName: very-high}")
    assert problems(label, STRICT) == [("PriorityClass", "metadata.labels.priorityClassName")]


def test_the_queue_and_priority_of_a_pytorchjob_s_gang():
    text = pytorch("Worker", "runPolicy: {schedulingPolicy: {queue: other, priorityClass: system-node-critical}}")
    base = "spec.runPolicy.schedulingPolicy"
    assert problems(text) == [("OtherQueue", f"{base}.queue"), ("PriorityClass", f"{base}.priorityClass")]


def pytorch(role: str, more: str) -> str:
    box = "containers: [{name: pytorch, image: a, resources: {limits: {nvidia.com/gpu: 8}}}]"
    head = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: p}\nspec:\n"
    roles = f"  pytorchReplicaSpecs: {{{role}: {{replicas: 1, template: {{spec: {{{box}}}}}}}}}\n"
    return f"{head}  {more}\n{roles}"


@pytest.mark.parametrize("role", ["Worker", "worker"])
def test_elastic_workers_are_counted_however_they_are_spelled(role):
    assert demand_of(read_manifest(pytorch(role, "elasticPolicy: {maxReplicas: 16}"))) == Demand(16, 128)


@pytest.mark.parametrize("name", ["aws.amazon.com/neuron", "amd.com/gpu", "nvidia.com/gpu.shared", "google.com/tpu"])
def test_accelerators_that_nobody_counts_are_refused(name):
    assert problems(job(f"resources: {{limits: {{{name}: 1}}}}")) == [
        ("ResourceClaims", f"{BOX}.resources.limits.{name}")
    ]


def test_devices_of_the_network_are_taken():
    assert problems(job("resources: {limits: {nvidia.com/gpu: 8, rdma/hca: 1, vpc.amazonaws.com/efa: 32}}")) == []


@pytest.mark.parametrize(
    ("row", "is_taken"),
    [("value: all", False), ("valueFrom: {fieldRef: {fieldPath: metadata.name}}", False), ("value: none", True)],
)
def test_gpus_are_not_shown_past_the_device_plugin(row, is_taken):
    found = problems(job(f"env: [{{name: NVIDIA_VISIBLE_DEVICES, {row}}}]"))
    assert found == ([] if is_taken else [("VisibleDevices", f"{BOX}.env[0]")])


def test_resources_of_the_pod_as_a_whole_do_not_hide_its_gpus():
    whole = "resources: {requests: {nvidia.com/gpu: 0, cpu: 4, memory: 2Gi}}"
    text = job("resources: {limits: {nvidia.com/gpu: 8, cpu: 2, memory: 1Gi}}", spec=whole)
    assert demand_of(read_manifest(text)) == Demand(1, 8, 0, 4000, 2048)


RUNTIME = f"""\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {{name: r}}
spec:
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {{labels: {{{TRAINER}: trainer}}}}
          spec:
            parallelism: 2
            completions: 2
            template: {{spec: {{containers: [{{name: node, image: a}}]}}}}
      - name: extra
        replicas: 3
        template:
          spec:
            parallelism: 10
            completions: 10
            template: {{spec: {{containers: [{{name: a, image: a, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}}}
---
"""


@pytest.mark.parametrize(
    ("trainer", "pods", "gpus"),
    [
        ("{numNodes: 5, resourcesPerNode: {limits: {nvidia.com/gpu: 1}}}", 35, 245),
        ("{resourcesPerNode: {limits: {nvidia.com/gpu: 1}}}", 32, 242),
        ("{}", 32, 240),
    ],
)
def test_all_jobs_of_a_runtime_in_the_manifest_are_counted(trainer, pods, gpus):
    text = RUNTIME + train_job(f"trainer: {trainer}\n", "{name: r, kind: TrainingRuntime}")
    assert problems(text) == []
    found = demand_of(read_manifest(text))
    assert (found.pods, found.gpus) == (pods, gpus)


def test_a_runtime_that_nobody_has_read_is_not_taken():
    text = train_job(ONE_NODE, "{name: other, kind: TrainingRuntime}")
    assert problems(text) == [("BadValue", "spec.runtimeRef.name")]
    assert problems(train_job(ONE_NODE)) == []


def test_pods_of_the_cluster_s_runtimes_would_pass_by_another_scheduler():
    other = replace(POLICY, pods=PodPolicy(schedulers=frozenset({"volcano"})))
    assert problems(train_job(ONE_NODE), other) == [("SchedulerName", "spec.runtimeRef")]
    own = RUNTIME + train_job(ONE_NODE, "{name: r, kind: TrainingRuntime}")
    assert problems(own, other) == []


@pytest.mark.parametrize("field", ["podTemplateOverrides", "podSpecOverrides", "managedBy"])
def test_fields_of_a_trainjob_that_are_not_read_are_refused(field):
    text = train_job(f"{ONE_NODE}{field}: [{{spec: {{serviceAccountName: admin}}}}]\n")
    assert problems(text) == [("UnknownField", f"spec.{field}")]


def test_secrets_of_a_trainjob_s_initializers_are_judged():
    env = "env: [{name: T, valueFrom: {secretKeyRef: {name: qd-att-01, key: T}}}]"
    text = train_job(f"{ONE_NODE}initializer: {{dataset: {{{env}}}, model: {{secretRef: {{name: qd-att-02}}}}}}\n")
    base = "spec.initializer"
    assert problems(text) == [
        ("Secret", f"{base}.dataset.env[0].valueFrom.secretKeyRef.name"),
        ("Secret", f"{base}.model.secretRef.name"),
    ]


@pytest.mark.parametrize(
    "field", ["volumeName: v", "dataSource: {name: a}", "dataSourceRef: {name: a}", "selector: {a: b}"]
)
def test_a_claim_gets_a_new_volume(field):
    name = field.partition(":")[0]
    claim = f"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: p}}\nspec: {{{field}}}\n---\n"
    assert problems(claim + job()) == [("ClaimedVolume", f"spec.{name}")]
    inner = job(spec=f"volumes: [{{name: v, ephemeral: {{volumeClaimTemplate: {{spec: {{{field}}}}}}}}}]")
    assert problems(inner) == [("ClaimedVolume", f"{POD}.volumes[0].ephemeral.volumeClaimTemplate.spec.{name}")]
    stateful = (
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s}\nspec:\n"
        "  template: {spec: {containers: [{name: a, image: a}]}}\n"
        f"  volumeClaimTemplates: [{{metadata: {{name: d}}, spec: {{{field}}}}}]\n"
    )
    assert problems(stateful) == [("ClaimedVolume", f"spec.volumeClaimTemplates[0].spec.{name}")]
