"""The page of a job on Kubernetes: why it waits, how it ended, its pods, and what cannot be asked of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apps.jobs.models import Attempt
from apps.jobs.reason_words import waiting_words
from tests.demo_kubernetes import demo_kubernetes
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]


@pytest.fixture(scope="module")
def kube(site: DemoRows, django_db_blocker: Any) -> DemoRows:
    """The demo site with a cluster of Kubernetes."""
    with django_db_blocker.unblock():
        return demo_kubernetes(site)


def page(client: Client, kube: DemoRows, name: str, tab: str = "") -> str:
    uid = kube.jobs[name].uid
    return client.get(f"/jobs/{uid}/{tab}" if tab else f"/jobs/{uid}").content.decode()


def test_a_waiting_job_says_what_the_cluster_says(sign_in: SignIn, kube: DemoRows) -> None:
    text = page(sign_in("owner"), kube, "clip-align")
    assert "Waiting: number 1 of team nlp on kepler." in text
    assert "asr-final of speech took its place by its priority, high." in text
    assert "8 more of nvidia.com/gpu are needed in p5-48xlarge than are free for its team." in text
    for word in ("Slurm", "slurm", "Partition"):
        assert word not in text
    assert "Kubernetes" in text
    korean = page(sign_in("owner", "ko"), kube, "clip-align")
    assert "took its place" not in korean
    assert "are needed in" not in korean


def test_a_running_job_with_a_pod_that_hinders_says_so_at_once(sign_in: SignIn, kube: DemoRows) -> None:
    from apps.core.said import said

    words = said("The image %(image)s is not in its registry.", image="registry.example.org/no:1")
    Attempt.objects.filter(job=kube.jobs["vit-huge"]).update(observed_words=words, observed_reason="ImageMissing")
    text = page(sign_in("owner"), kube, "vit-huge")
    assert "charged of" in text
    assert "The image registry.example.org/no:1 is not in its registry." in text


def test_an_end_names_the_limit(sign_in: SignIn, kube: DemoRows) -> None:
    text = page(sign_in("owner"), kube, "dataset-tokenize")
    assert "main used more memory than its limit of 64 GiB and was killed; $" in text


def test_the_timeline_and_the_events_have_what_the_cluster_said(sign_in: SignIn, kube: DemoRows) -> None:
    client = sign_in("owner")
    told = page(client, kube, "clip-align", "timeline").partition('id="tab-live"')[2]
    assert told.index("Kueue has not looked") < told.index("asr-final of speech took") < told.index("in Kubernetes")
    assert "in Slurm" not in told
    events = page(client, kube, "clip-align", "events?source=kubernetes")
    assert "asr-final of speech took" in events
    assert "attempt 1" in events
    slurm = page(client, kube, "moe-8x7b-ablation", "events?source=kubernetes")
    assert "Nothing of this kind" in slurm


def test_pods_stand_by_rank_with_lines_to_look_oneself(sign_in: SignIn, kube: DemoRows) -> None:
    client = sign_in("owner")
    text = page(client, kube, "vit-huge", "pods")
    assert text.index("ip-10-2-0-1.ec2.internal") < text.index("ip-10-2-0-2.ec2.internal")
    attempt = Attempt.objects.get(job=kube.jobs["vit-huge"])
    assert f"kubectl -n nlp get jobset {attempt.scheduler_id.rsplit('/', 1)[-1]} -o yaml" in text
    assert f"-l quarterdeck.dev/attempt={attempt.uid}" in text
    assert f"?runner={attempt.uid}-1" in text
    own = page(client, kube, "dataset-tokenize", "pods")
    assert "the pod&#x27;s own output" in own or "the pod's own output" in own
    assert "?runner=pod-0-" in own
    assert ">137<" in own
    logs = page(client, kube, "vit-huge", "logs")
    assert "rank 1 · ip-10-2-0-2.ec2.internal" in logs
    manifest = page(client, kube, "grpo-rollout", "pods")
    assert "get all,configmaps" in manifest
    assert "Pods</a>" not in page(client, kube, "moe-8x7b-ablation")
    assert sign_in("outsider").get(f"/jobs/{kube.jobs['vit-huge'].uid}/pods").status_code == 404


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("SIGNAL", "USR1", "sends no signals"),
        ("PRIORITY", "10", "knows no nice"),
        ("PARTITION", "train", "no partitions"),
    ],
)
def test_what_kubernetes_cannot_do_is_absent_and_says_why(
    sign_in: SignIn, kube: DemoRows, kind: str, value: str, words: str
) -> None:
    client = sign_in("owner")
    for name in ("vit-huge", "clip-align"):
        assert f"?kind={kind}&" not in page(client, kube, name)
    job = kube.jobs["vit-huge" if kind == "SIGNAL" else "clip-align"]
    told = client.get(f"/jobs/act?kind={kind}&value={value}&uid={job.uid}").content.decode()
    assert words in told


def test_a_manifest_is_not_started_again(sign_in: SignIn, kube: DemoRows) -> None:
    client = sign_in("owner")
    assert 'data-dialog="ask-requeue"' not in page(client, kube, "grpo-rollout")
    assert 'data-dialog="ask-requeue"' in page(client, kube, "vit-huge")
    assert "kind=TIME_LIMIT" not in page(client, kube, "grpo-rollout")
    assert "kind=TIME_LIMIT" in page(client, kube, "vit-huge")


def test_every_code_of_the_provider_that_waits_has_words() -> None:
    assert waiting_words("QuotaInUse") == "the quota of its queue is in use"
    assert waiting_words("UnschedulableGpu") == "no node takes it"
    assert waiting_words("Resources") == "not enough free GPUs or nodes"
    assert waiting_words("NobodysCode") == "NobodysCode"
