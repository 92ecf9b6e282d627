"""What each kind must have right: ranks, devices, queueing, names; and what cannot be written as it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.providers.kubernetes.specs import CLUSTER_RUNTIME, JOBS, KAI_GANG, P5EN, workload
from worker.providers.errors import InvalidRequest
from worker.providers.kubernetes import efa
from worker.providers.kubernetes.render import kinds_for, owned, refusals, render, workload_of
from worker.providers.kubernetes.start import start_script
from worker.providers.workload_values import KINDS, ClaimMount, TopologyWish, WorkloadSpec

CATALOG = Path(__file__).resolve().parents[3] / "apps" / "catalog" / "data" / "instance_types.json"
NAME = "qd-att-01jdz8k3v7q4n5t6x8y9z0abcd"
GANG = JOBS["p5en-4-topology"]


def templates(made: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of a workload object."""
    spec = made["spec"]
    if made["kind"] == "Job":
        return [spec["template"]]
    if made["kind"] == "PyTorchJob":
        return [replica["template"] for replica in spec["pytorchReplicaSpecs"].values()]
    jobs = spec["template"]["spec"] if made["kind"] == "TrainingRuntime" else spec
    return [job["template"]["spec"]["template"] for job in jobs["replicatedJobs"]]


def rendered(spec: WorkloadSpec, kind: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The workload object and the templates of its pods."""
    objects = render(spec, kind)
    return workload_of(objects), templates(objects[0])


def variables(template: dict[str, Any]) -> dict[str, Any]:
    return {row["name"]: row.get("value", row.get("valueFrom")) for row in template["spec"]["containers"][0]["env"]}


# --- ranks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "master"), [("indexed_job", f"{NAME}-0.{NAME}"), ("jobset", f"{NAME}-node-0-0.{NAME}")]
)
def test_indexed_pods_meet_at_the_first(kind, master):
    _made, (template,) = rendered(GANG, kind)
    found = variables(template)
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}

    assert found["MASTER_ADDR"] == found["PET_MASTER_ADDR"] == master
    assert found["PET_RDZV_ENDPOINT"] == f"{master}:29500"
    assert (found["WORLD_SIZE"], found["PET_NNODES"], found["PET_NPROC_PER_NODE"]) == ("4", "4", "8")
    assert found["RANK"] == found["NODE_RANK"] == found["PET_NODE_RANK"] == index


def test_an_indexed_job_has_a_service_of_its_name_that_finds_pods_before_they_are_ready():
    job, service, *_ = render(GANG, "indexed_job")

    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"] == NAME
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"batch.kubernetes.io/job-name": NAME},
    }
    assert "Service" not in [made["kind"] for made in render(JOBS["one-gpu-script"], "indexed_job")]


def test_what_an_operator_sets_itself_is_left_to_it():
    _made, both = rendered(GANG, "pytorchjob")
    _made, (runtime,) = rendered(GANG, "trainjob")

    assert [t["spec"]["containers"][0]["name"] for t in both] == ["pytorch", "pytorch"]
    for template in both:
        assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "PET_NNODES"} & set(variables(template))
    assert not [name for name in variables(runtime) if name.startswith("PET_")]
    assert variables(runtime)["MASTER_ADDR"] == f"{NAME}-node-0-0.{NAME}"
    with pytest.raises(InvalidRequest, match="PET_NNODES, which the controller of a trainjob sets itself"):
        render(replace(GANG, environment={"PET_NNODES": "2"}), "trainjob")


def test_a_person_cannot_set_what_finds_the_other_ranks():
    spec = replace(GANG, environment={"MASTER_ADDR": "elsewhere", "QD_ATTEMPT": "other", "NCCL_DEBUG": "INFO"})
    _made, (template,) = rendered(spec, "jobset")
    names = [row["name"] for row in template["spec"]["containers"][0]["env"]]

    assert len(names) == len(set(names))
    assert variables(template)["MASTER_ADDR"] == f"{NAME}-node-0-0.{NAME}"
    assert variables(template)["QD_ATTEMPT"] == spec.uid
    assert variables(template)["NCCL_DEBUG"] == "INFO"


def test_a_gang_of_n_is_a_master_and_its_workers():
    made, _templates = rendered(GANG, "pytorchjob")
    alone, _templates = rendered(JOBS["one-gpu-script"], "pytorchjob")

    assert [r["replicas"] for r in made["spec"]["pytorchReplicaSpecs"].values()] == [1, 3]
    assert list(alone["spec"]["pytorchReplicaSpecs"]) == ["Master"]


# --- devices, memory, places -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "count"),
    [
        (("p5.48xlarge",), 32),
        (("p5e.48xlarge",), 32),
        (("p5en.48xlarge",), 16),
        (("p6-b200.48xlarge",), 8),
        (("p6-b300.48xlarge",), 16),
        (("p6e-gb200.36xlarge",), 4),
        (("ml.p5en.48xlarge",), 16),
        (("p5.48xlarge", "p5en.48xlarge"), 16),
        (("g6e.xlarge",), None),
        ((), None),
    ],
)
def test_efa_by_instance_type(types, count):
    _made, (template,) = rendered(workload(nodes=2, gpus_per_node=4, instance_types=types), "jobset")
    limits = template["spec"]["containers"][0]["resources"]["limits"]
    found = variables(template)

    assert limits.get("vpc.amazonaws.com/efa") == (str(count) if count else None)
    assert limits.get("hugepages-2Mi") == ("5120Mi" if count else None)
    assert found.get("FI_PROVIDER") == ("efa" if count else None)
    assert found["NCCL_SOCKET_IFNAME"] == "^docker,lo,veth"


def test_a_single_node_takes_no_network_device():
    _made, (template,) = rendered(workload(**P5EN), "indexed_job")

    assert "vpc.amazonaws.com/efa" not in template["spec"]["containers"][0]["resources"]["limits"]
    assert "FI_PROVIDER" not in variables(template)


def test_the_table_knows_every_type_of_the_catalogue_with_efa():
    types = {row["name"]: row["efa_interfaces"] for row in json.loads(CATALOG.read_text())["types"]}
    differing = {name for name, count in types.items() if efa.EFA_PER_NODE.get(name, 0) != count}

    # A GB200 node offers Kubernetes half of the interfaces that EC2 lists.
    assert differing == {"p6e-gb200.36xlarge"}


def test_shared_memory_and_volumes():
    _made, (template,) = rendered(GANG, "jobset")
    volumes = {row["name"]: row for row in template["spec"]["volumes"]}
    mounts = {row["mountPath"]: row for row in template["spec"]["containers"][0]["volumeMounts"]}

    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "950000Mi"}
    assert mounts["/dev/shm"] == {"name": "shm", "mountPath": "/dev/shm"}
    assert mounts["/data"] == {"name": "claim-1", "mountPath": "/data", "subPath": "datasets", "readOnly": True}
    assert volumes["claim-1"]["persistentVolumeClaim"] == {"claimName": "fsx-vision"}
    bare = workload(script="", command=("true",))
    assert "volumes" not in rendered(bare, "jobset")[1][0]["spec"]


def test_where_pods_may_stand():
    spec = rendered(JOBS["p5-64-restarts"], "jobset")[1][0]["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

    assert [(row["key"], row["operator"]) for row in term["matchExpressions"]] == [
        ("node.kubernetes.io/instance-type", "In"),
        ("kubernetes.io/hostname", "NotIn"),
    ]
    assert [row["key"] for row in spec["tolerations"]] == ["nvidia.com/gpu", "quarterdeck.dev/block"]
    assert spec["terminationGracePeriodSeconds"] == 600


# --- queueing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_waits_for_kueue_and_ends_in_time(kind):
    made, _templates = rendered(GANG, kind)
    spec = made["spec"]
    suspend = spec["runPolicy"] if kind == "pytorchjob" else spec
    deadline = spec["replicatedJobs"][0]["template"]["spec"] if kind == "jobset" else suspend

    assert suspend["suspend"] is True
    assert deadline["activeDeadlineSeconds"] == 3600
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "vision"
    assert made["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"


@pytest.mark.parametrize("kind", KINDS)
def test_topology_is_asked_of_kueue_on_the_pods(kind):
    _made, found = rendered(GANG, kind)
    wish = replace(GANG, topology=TopologyWish("zone"))

    for template in found:
        notes = template["metadata"]["annotations"]
        assert notes["kueue.x-k8s.io/podset-required-topology"] == "topology.k8s.aws/network-node-layer-3"
        assert ("kueue.x-k8s.io/podset-group-name" in notes) == (kind == "pytorchjob")
    for template in rendered(wish, kind)[1]:
        notes = template["metadata"]["annotations"]
        assert notes["kueue.x-k8s.io/podset-preferred-topology"] == "zone"
        assert ("kueue.x-k8s.io/podset-group-name" in notes) == (kind == "pytorchjob")


def test_without_kueue_the_portal_lets_the_whole_gang_begin():
    made, _templates = rendered(JOBS["plain-gang"], "jobset")

    assert made["spec"]["suspend"] is True
    assert not [label for label in made["metadata"]["labels"] if "kueue" in label]


@pytest.mark.parametrize(
    ("spec", "name", "group"),
    [
        (JOBS["volcano-gang"], "volcano", "scheduling.volcano.sh/v1beta1"),
        (KAI_GANG, "kai-scheduler", "scheduling.run.ai/v2alpha2"),
    ],
)
def test_other_schedulers_get_their_pod_group(spec, name, group):
    objects = render(spec, "jobset")
    (template,) = templates(objects[0])
    pods = next(made for made in objects if made["kind"] == "PodGroup")

    assert objects[0]["spec"]["suspend"] is False
    assert template["spec"]["schedulerName"] == name
    assert (pods["apiVersion"], pods["spec"]["minMember"], pods["spec"]["queue"]) == (group, 3, "research")
    assert pods["metadata"]["name"] in template["metadata"]["annotations"].values()


def test_hyperpod_resumes_what_asks_for_it():
    made, found = rendered(JOBS["hyperpod-auto-resume"], "pytorchjob")

    assert made["metadata"]["annotations"]["sagemaker.amazonaws.com/enable-job-auto-resume"] == "true"
    assert made["metadata"]["annotations"]["sagemaker.amazonaws.com/job-max-retry-count"] == "2"
    assert found[0]["spec"]["nodeSelector"]["sagemaker.amazonaws.com/node-health-status"] == "Schedulable"
    assert made["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"


def test_a_runtime_of_the_cluster_is_patched_and_none_is_made():
    (made, *others) = render(CLUSTER_RUNTIME, "trainjob")
    (patch,) = made["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]

    assert made["spec"]["runtimeRef"]["name"] == "torch-distributed"
    assert [other["kind"] for other in others] == ["ConfigMap"]
    assert job["template"]["spec"]["template"]["metadata"]["labels"]["quarterdeck.dev/attempt"] == GANG.uid


# --- whose, and in which order -----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_all_objects_and_pods_are_marked_and_named_after_the_attempt(kind):
    objects = render(JOBS["b300-2-runner"], kind)

    assert {made["metadata"]["name"] for made in objects} == {NAME}
    assert {made["metadata"]["namespace"] for made in objects} == {"team-vision"}
    for made in [*objects, *templates(objects[0])]:
        assert made["metadata"]["labels"]["quarterdeck.dev/attempt"] == JOBS["b300-2-runner"].uid
    assert [made["kind"] for made in objects][-2:] == ["ConfigMap", "Secret"]
    assert render(JOBS["b300-2-runner"], kind) == objects


def test_secrets_are_nowhere_else():
    for kind in KINDS:
        clear = [made for made in render(JOBS["b300-2-runner"], kind) if made["kind"] != "Secret"]
        assert "not-in-the-clear" not in json.dumps(clear)
    assert "not-in-the-clear" not in repr(JOBS["b300-2-runner"])


def test_what_belongs_to_the_workload_goes_with_it():
    job, service, *_ = render(GANG, "indexed_job")
    stored = {**job, "metadata": {**job["metadata"], "uid": "u-1"}}

    assert owned(service, stored)["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": NAME,
            "uid": "u-1",
            "controller": False,
            "blockOwnerDeletion": False,
        }
    ]
    assert "ownerReferences" not in service["metadata"]


# --- what cannot be written --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nodes": 0}, "nodes is 0, the least is 1"),
        ({"time_limit_min": 0}, "time_limit_min is 0"),
        ({"gpus_per_node": -1}, "gpus_per_node is -1, below zero"),
        ({"image": "a\nb"}, r"image 'a\\nb' is no name of an image"),
        ({"image": ""}, "image '' is no name"),
        ({"script": ""}, "neither a script nor a command"),
        ({"namespace": "Team"}, "namespace 'Team' is no name"),
        ({"namespace": ""}, "namespace is empty"),
        ({"uid": ""}, "uid is empty"),
        ({"queue": ""}, "there is no queue"),
        ({"scheduler": "cron"}, "scheduler 'cron' is none of"),
        ({"environment": {"A B": "1"}}, "environment has 'A B'"),
        ({"mounts": (ClaimMount("a", "data"),)}, "mount path 'data' is not absolute"),
        ({"mounts": (ClaimMount("a", "/d"), ClaimMount("b", "/d"))}, "mount path '/d' is used twice"),
        ({"memory_mib": 10, "shm_mib": 11}, "shm_mib is 11, more than"),
        ({"array": (1, 1)}, "a task twice"),
        ({"array": (-1,)}, "a task below zero"),
        ({"array": tuple(range(10_001))}, "the most is 10000"),
        ({"array": (1,), "nodes": 2}, "an array of single-node tasks"),
        ({"nodes": 2, "max_restarts": 1}, "restarts single pods, not the gang"),
        ({"runtime": "torch"}, "runtime 'torch' is for a TrainJob"),
        ({"script": "x" * 1_000_001}, "the script is too long"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(change, says):
    with pytest.raises(InvalidRequest, match=says):
        render(workload(**change), "indexed_job")


def test_kinds_that_fit():
    assert kinds_for(workload()) == KINDS
    assert kinds_for(JOBS["array-of-20"]) == ("indexed_job",)
    assert kinds_for(JOBS["hyperpod-auto-resume"]) == ("pytorchjob",)
    assert kinds_for(JOBS["p5-64-restarts"]) == ("jobset", "trainjob")
    assert refusals(workload(), "cron_job") == ["kind 'cron_job' is none of indexed_job, jobset, pytorchjob, trainjob"]


# --- the start script, really run --------------------------------------------------------------


def run(tmp_path: Path, spec: WorkloadSpec, **environment: str) -> list[str]:
    """What the pod's command prints, with its files in a folder of this test."""
    text = start_script(spec).replace("/quarterdeck/", f"{tmp_path}/")
    (tmp_path / "start").write_text(text)
    (tmp_path / "script").write_text(spec.script)
    (tmp_path / "quarterdeck_runner.py").write_text(spec.runner)
    ended = subprocess.run(
        ["/bin/sh", tmp_path / "start"],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return ended.stdout.splitlines()


SAYS = '#!/bin/sh -e\necho "$NODE_RANK ${QD_ARRAY_TASK:-none} ${QD_CHECKPOINT_DIR:-none}"\n'
RUNNER = "import os, subprocess, sys\nprint(*sys.argv[1:3], flush=True)\nos.execvp(sys.argv[4], sys.argv[4:])\n"


def test_the_script_runs_by_its_own_interpreter(tmp_path):
    assert run(tmp_path, workload(script=SAYS)) == ["0 none none"]
    assert run(tmp_path, workload(script=SAYS), RANK="3") == ["3 none none"]
    assert run(tmp_path, workload(script=SAYS), PET_NODE_RANK="2", RANK="7") == ["2 none none"]
    python = "#!/usr/bin/env python3\nimport sys\nprint(sys.version_info[0])\n"
    assert run(tmp_path, workload(script=python)) == ["3"]


def test_a_command_keeps_its_words(tmp_path):
    spec = workload(script="", command=("printf", "%s\n", "a  b", "$HOME", "it's"), runner=RUNNER)

    assert run(tmp_path, spec) == ["--role batch", "a  b", "$HOME", "it's"]


def test_the_first_rank_reports_as_the_job(tmp_path):
    spec = workload(script=SAYS, runner=RUNNER, nodes=2)

    assert run(tmp_path, spec, RANK="0") == ["--role batch", "0 none none"]
    assert run(tmp_path, spec, RANK="1") == ["--role rank", "1 none none"]


def test_each_task_of_an_array_knows_its_number(tmp_path):
    spec = workload(script=SAYS, runner=RUNNER, array=(3, 5, 9))
    where = tmp_path / "checkpoints"
    environment = {"QD_ARRAY_TASKS": "3 5 9", "QD_CHECKPOINT_DIR": str(where)}

    assert run(tmp_path, spec, JOB_COMPLETION_INDEX="1", **environment) == [
        "--role batch",
        f"0 5 {where}/task-5",
    ]
    assert (where / "task-5").is_dir()
