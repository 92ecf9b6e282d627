"""What Kueue, the scheduler and the kubelet say, as codes and sentences a person can act on."""

from __future__ import annotations

from typing import Any

import pytest

from worker.providers.kubernetes.kueue_reasons import eviction, pending_reasons, quota_reasons
from worker.providers.kubernetes.reason_values import Rival
from worker.providers.kubernetes.reasons import event_reason, node_reasons, pod_reason, unschedulable

SET = "couldn't assign flavors to pod set main: "


def said(reasons: Any) -> list[tuple[str, str]]:
    return [(row.code, str(row)) for row in reasons]


# --- Kueue -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (
            SET + "insufficient unused quota for nvidia.com/gpu in flavor p5en, 16 more needed",
            [("QuotaInUse", "16 more of nvidia.com/gpu are needed in p5en than are free for its team.")],
        ),
        (
            SET
            + "insufficient unused quota for cpu in flavor one, 3 more needed, insufficient unused quota for cpu in "
            "flavor two, 5 more needed. Pending the preemption of 2 workload(s)",
            [
                ("QuotaInUse", "3 more of cpu are needed in one than are free for its team."),
                ("QuotaInUse", "5 more of cpu are needed in two than are free for its team."),
                ("Preempting", "2 jobs are being stopped to make room for it."),
            ],
        ),
        (
            SET + "insufficient unused quota for memory in flavor p5, 1753610190848 more needed",
            [("QuotaInUse", "1.59 TiB more of memory are needed in p5 than are free for its team.")],
        ),
        (
            SET + "insufficient quota for memory in flavor p5, request > maximum capacity (2000Gi > 1881420Mi)",
            [("MoreThanQuota", "It asks for more memory in p5 than the team can ever have: 1.95 TiB of 1.79 TiB.")],
        ),
        (
            SET + "borrowing limit for nvidia.com/gpu in flavor p5en exceeded",
            [("BorrowingLimit", "The team may borrow no more nvidia.com/gpu in p5en.")],
        ),
        (
            SET + "insufficient quota for nvidia.com/gpu in flavor p5en, request > maximum capacity (64 > 32)",
            [("MoreThanQuota", "It asks for more nvidia.com/gpu in p5en than the team can ever have: 64 of 32.")],
        ),
        (
            SET + "insufficient quota for cpu in flavor default, previously considered podsets requests (2) + current "
            "podset request (10) > maximum capacity (8)",
            [("MoreThanQuota", "It asks for more cpu in default than the team can ever have: 2 + 10 of 8.")],
        ),
        (
            SET + 'topology "aws" allows to fit only 3 out of 4 pod(s). Total nodes: 9; excluded: resource "cpu": 2',
            [("TopologyFull", "No part of the network aws has room for all pods: 3 of 4 fit.")],
        ),
        (
            SET + 'topology "aws" doesn\'t allow to fit any of 16 pod(s)',
            [("TopologyFull", "No part of the network aws has room for all pods: 0 of 16 fit.")],
        ),
        (
            SET + "untolerated taint {block cr-1 NoSchedule <nil>} in flavor p5en",
            [("Taint", "Its pods do not tolerate the taint block of p5en.")],
        ),
        (
            SET + "untolerated taint &Taint{Key:block,Value:cr-1,Effect:NoSchedule,} in flavor p5en",
            [("Taint", "Its pods do not tolerate the taint block of p5en.")],
        ),
        (
            SET + "flavor p5en doesn't match node affinity",
            [("NodeAffinity", "Its pods ask for nodes that p5en has not.")],
        ),
        (SET + "resource rdma/ib unavailable in ClusterQueue", [("NotOffered", "Its queue offers no rdma/ib.")]),
        ("LocalQueue vision doesn't exist", [("QueueMissing", "Its queue vision is not there.")]),
        ("ClusterQueue vision is inactive", [("QueueStopped", "Its queue vision takes nothing at the moment.")]),
        ("Something new", [("Queued", "It waits in its queue: Something new")]),
    ],
)
def test_why_a_job_has_no_quota(message, wanted):
    assert said(quota_reasons(message)) == wanted


def workload(*conditions: tuple[str, str, str, str], active: bool = True, **status: Any) -> dict[str, Any]:
    rows = [dict(zip(("type", "status", "reason", "message"), row, strict=True)) for row in conditions]
    return {"spec": {"active": active}, "status": {"conditions": rows, **status}}


TOLD = "Preempted to accommodate a workload (UID: wl-1, JobUID: job-1) due to "


def test_a_preempted_job_names_who_took_its_place():
    asked = []

    def who(workload_uid: str, job_uid: str) -> Rival | None:
        asked.append((workload_uid, job_uid))
        return Rival("pretrain-70b", "speech", "high")

    told = workload(
        ("Evicted", "True", "Preempted", TOLD + "prioritization in the ClusterQueue; preemptor path: /a"),
        ("Preempted", "True", "InClusterQueue", TOLD + "prioritization in the ClusterQueue"),
        ("QuotaReserved", "False", "Pending", SET + "borrowing limit for cpu in flavor a exceeded"),
    )

    assert said(pending_reasons(told, who)) == [
        ("Preempted", "pretrain-70b of speech took its place by its priority, high."),
        ("BorrowingLimit", "The team may borrow no more cpu in a."),
    ]
    assert asked == [("wl-1", "job-1")]
    assert "wl-1" not in str(pending_reasons(told)[0])


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        ("prioritization in the ClusterQueue", "A job of higher priority in the same queue took its place."),
        ("reclamation within the cohort", "Another team took back what it had lent."),
        (
            "reclamation within the cohort while borrowing",
            "Another team of higher priority took its place by borrowing.",
        ),
        ("Fair Sharing within the cohort", "Another team took its place by its fair share."),
        ("something new", "Another job took its place."),
    ],
)
def test_by_what_right_without_a_name(cause, sentence):
    told = eviction(
        workload(("Evicted", "True", "Preempted", "Preempted to … (UID: UNKNOWN, JobUID: UNKNOWN) due to " + cause)),
        lambda *_: pytest.fail("nobody is asked about an unknown uid"),
    )

    assert told is not None
    assert str(told) == sentence


@pytest.mark.parametrize(
    ("reason", "code", "is_final"),
    [
        ("PodsReadyTimeout", "PodsReadyTimeout", False),
        ("ClusterQueueStopped", "ClusterQueueStopped", False),
        ("NodeFailures", "NodeFailures", False),
        ("DeactivatedDueToRequeuingLimitExceeded", "Deactivated", True),
        ("MaximumExecutionTimeExceeded", "MaximumExecutionTimeExceeded", True),
        ("SomethingNew", "Evicted", False),
    ],
)
def test_why_a_job_was_put_back(reason, code, is_final):
    told = eviction(workload(("Evicted", "True", reason, "so it was")))

    assert told is not None
    assert (told.code, told.is_final, told.raw) == (code, is_final, "so it was")


def test_states_without_a_quota_sentence():
    reserved = ("QuotaReserved", "True", "QuotaReserved", "")

    assert pending_reasons(workload(reserved, ("Admitted", "True", "Admitted", ""))) == ()
    assert said(pending_reasons(workload()))[0][0] == "Queued"
    assert said(pending_reasons(workload(active=False)))[0][0] == "Deactivated"
    assert said(pending_reasons(workload(reserved)))[0][0] == "QuotaReserved"
    waiting = workload(reserved, admissionChecks=[{"name": "block", "state": "Pending"}])
    assert said(pending_reasons(waiting)) == [
        ("CheckPending", "Its quota is reserved; the check block is not through yet.")
    ]


# --- pods ------------------------------------------------------------------------------------------


def pod(**status: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": {"memory": "64Gi"}}}
    return {"spec": {"nodeName": "ip-1", "containers": [{"name": "main", **limits}]}, "status": status}


def waits(reason: str, message: str = "") -> dict[str, Any]:
    return pod(
        containerStatuses=[
            {"name": "main", "image": "a:1", "state": {"waiting": {"reason": reason, "message": message}}}
        ]
    )


def ends(code: int, reason: str = "Error", **more: Any) -> dict[str, Any]:
    ended = {"terminated": {"exitCode": code, "reason": reason}}
    return pod(containerStatuses=[{"name": "main", "state": ended, **more}])


@pytest.mark.parametrize(
    ("found", "code", "sentence"),
    [
        (waits("ImagePullBackOff", 'Back-off: "a:1": not found'), "ImageMissing", "a:1 is not in its registry"),
        (waits("ErrImagePull", "401 Unauthorized"), "ImageDenied", "does not let the cluster read the image a:1"),
        (waits("ErrImagePull", "no space left on device"), "ImageNoSpace", "no room for the image a:1"),
        (waits("ErrImagePull", "no match for platform in manifest"), "ImageArchitecture", "architecture"),
        (waits("ErrImagePull", "i/o timeout"), "ImagePull", "cannot be pulled: i/o timeout"),
        (waits("InvalidImageName"), "ImageName", "a:1 is no name of an image"),
        (
            waits("CreateContainerConfigError", 'secret "token" not found'),
            "Missing",
            "main needs the secret token, which is not there",
        ),
        (waits("CrashLoopBackOff"), "CrashLoop", "started 1 times"),
        (ends(137, "OOMKilled"), "OOMKilled", "main used more memory than its limit of 64 GiB and was killed"),
        (ends(139), "Signal", "main was ended by SIGSEGV"),
        (ends(3), "ExitCode", "main ended with the exit code 3"),
        (
            pod(reason="Evicted", message="The node was low on resource: ephemeral-storage. Threshold…"),
            "Evicted",
            "the node ip-1 ran low on ephemeral-storage",
        ),
        (
            pod(
                reason="Evicted", message="Pod ephemeral local storage usage exceeds the total limit of containers 1Gi"
            ),
            "Evicted",
            "wrote more to the node's disk",
        ),
        (pod(reason="NodeLost"), "NodeLost", "ip-1 does not answer"),
        (pod(reason="Terminated", message="imminent node shutdown"), "NodeShutdown", "ip-1 was shut down"),
        (
            pod(
                reason="UnexpectedAdmissionError",
                message="Allocate failed, requested number of devices unavailable for nvidia.com/gpu. Requested",
            ),
            "NodeRefused",
            "no healthy nvidia.com/gpu left",
        ),
        (pod(reason="DeadlineExceeded"), "DeadlineExceeded", "ran as long as it may"),
        (
            pod(conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]),
            "Drained",
            "ip-1 was drained",
        ),
        (
            pod(conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]),
            "PodPreempted",
            "higher priority",
        ),
        (
            pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
            "Gated",
            "held back",
        ),
    ],
)
def test_why_a_pod_does_not_run(found, code, sentence):
    reason = pod_reason(found)

    assert reason is not None
    assert reason.code == code
    assert sentence in str(reason)


@pytest.mark.parametrize(
    "well",
    [
        {},
        pod(phase="Running", containerStatuses=[{"name": "main", "state": {"running": {}}}]),
        waits("ContainerCreating"),
        ends(0, "Completed"),
        pod(conditions=[{"type": "PodScheduled", "status": "True"}]),
    ],
)
def test_a_pod_that_is_well_has_no_reason(well):
    assert pod_reason(well) is None


def test_out_of_memory_is_told_before_what_followed_from_it():
    rows = [
        {"name": "side", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}},
        {
            "name": "main",
            "state": {"running": {}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        },
    ]

    assert pod_reason(pod(containerStatuses=rows)).code == "OOMKilled"


def test_the_scheduler_s_counts_in_words():
    message = (
        "0/24 nodes are available: 12 Insufficient nvidia.com/gpu, 8 node(s) had untolerated taint "
        "{nvidia.com/gpu: present}, 3 node(s) didn't match Pod's node affinity/selector, 1 node(s) were unschedulable. "
        "preemption: 0/24 nodes are available: 12 No preemption victims found for incoming pod."
    )
    reason = unschedulable(message)

    assert reason.code == "UnschedulableInsufficient"
    assert str(reason) == (
        "None of 24 nodes takes it: 12 have not enough nvidia.com/gpu, 8 have a taint that it does not tolerate "
        "(nvidia.com/gpu: present), 3 are of another type than it asks for, or left out, 1 are cordoned."
    )


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("0/3 nodes are available: 3 Insufficient cpu.", "UnschedulableInsufficient"),
        ("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "VolumeUnbound"),
        ('0/3 nodes are available: persistentvolumeclaim "data" not found.', "Missing"),
        ("0/3 nodes are available: 3 node(s) had volume node affinity conflict.", "UnschedulableVolumeZone"),
        ("no nodes available to schedule pods", "Unschedulable"),
    ],
)
def test_other_words_of_the_scheduler(message, code):
    assert unschedulable(message).code == code


# --- nodes and events ------------------------------------------------------------------------------


def node(ready: str = "True", labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, "message": "kubelet stopped"}, *more.pop("conditions", [])]
    return {"metadata": {"labels": labels or {}}, "spec": more, "status": {"conditions": conditions}}


def test_what_stands_against_a_node():
    sick = node(
        "False",
        {
            "sagemaker.amazonaws.com/node-health-status": "UnschedulablePendingReplacement",
            "sagemaker.amazonaws.com/fault-types": "NvidiaErrorXID",
            "sagemaker.amazonaws.com/fault-reasons": "Xid79",
            "sagemaker.amazonaws.com/deep-health-check-status": "Failed",
        },
        unschedulable=True,
        conditions=[{"type": "DiskPressure", "status": "True"}],
    )

    assert said(node_reasons(sick)) == [
        ("NotReady", "It is not ready: kubelet stopped"),
        ("DiskPressure", "It is short of disk."),
        ("Cordoned", "It is cordoned."),
        ("HyperPodHealth", "HyperPod says UnschedulablePendingReplacement (NvidiaErrorXID, Xid79)."),
        ("HyperPodCheck", "HyperPod's deep health check: Failed."),
    ]
    well = {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
    assert node_reasons(node(labels=well)) == ()
    assert said(node_reasons(node("Unknown"))) == [("NotReady", "Its kubelet does not answer.")]


def event(reason: str, message: str = "", name: str = "train-0") -> dict[str, Any]:
    return {"reason": reason, "message": message, "involvedObject": {"kind": "Pod", "name": name}}


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (event("FailedScheduling", "0/2 nodes are available: 2 Insufficient cpu."), "UnschedulableInsufficient"),
        (event("Failed", 'Failed to pull image "a:1": not found'), "ImageMissing"),
        (event("BackOff", 'Back-off pulling image "a:1"'), "ImagePull"),
        (event("FailedMount", 'MountVolume.SetUp failed: configmap "files" not found'), "Missing"),
        (event("FailedMount", "timed out"), "VolumeMount"),
        (event("Evicted", "The node was low on resource: memory."), "Evicted"),
        (event("Preempted", TOLD + "reclamation within the cohort"), "Preempted"),
        (event("NodeNotReady"), "NotReady"),
        (event("BackoffLimitExceeded"), "BackoffLimit"),
        (event("EvictedDueToPodsReadyTimeout", "late"), "Evicted"),
    ],
)
def test_events_as_lines_of_a_timeline(found, code):
    reason = event_reason(found)

    assert reason is not None
    assert reason.code == code
    assert str(reason)


@pytest.mark.parametrize("code", ["Pulled", "Scheduled", "Started", "SuccessfulCreate", "BackOff", ""])
def test_events_that_nobody_looks_for(code):
    assert event_reason(event(code, "Back-off restarting failed container")) is None


def test_an_image_of_an_event_is_named():
    assert "a:1 " in str(event_reason(event("Failed", 'Failed to pull image "a:1": manifest unknown')))
