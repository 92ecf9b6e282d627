"""A cluster kept in memory: listed once, watched on, whole again after cuts and lost history, ended without a trace."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.kubernetes import ClusterApi
from sandbox.kubernetes.access import User
from sandbox.world import World
from tests import kubernetes_site as site
from worker.providers import errors as e
from worker.providers.kubernetes.calls import Caller
from worker.providers.kubernetes.client import KubernetesAccess
from worker.providers.kubernetes.informer import Informer
from worker.providers.kubernetes.resources import PODS


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterApi]:
    with site.cluster(tmp_path, world=World()) as made:
        yield made


@pytest.fixture
def caller(cluster: ClusterApi) -> Iterator[Caller]:
    made = Caller(KubernetesAccess(cluster.url, token=cluster.token, timeout_s=3))
    yield made
    made.close()


@pytest.fixture
def informer(caller: Caller) -> Iterator[Informer]:
    made = Informer(caller)
    yield made
    made.stop()
    assert made.running() == 0


def _names(informer: Informer, kind: str = "Pod") -> set[str]:
    return {name for _namespace, name in informer.look().of(kind)}


def _make(caller: Caller, name: str, **more: Any) -> dict[str, Any]:
    return caller.create(PODS.path("default"), site.pod(name, **more))


def test_what_is_there_and_what_comes_is_known(caller: Caller, informer: Informer) -> None:
    _make(caller, "one")
    assert _names(informer) == {"one"}
    _make(caller, "two")
    site.until("the second pod is seen", lambda: _names(informer) == {"one", "two"})
    caller.delete(PODS.path("default", "one"), grace_s=0)
    site.until("the first is gone", lambda: _names(informer) == {"two"})
    gone = informer.look().gone["Pod"]
    assert [thing["metadata"]["name"] for thing in gone.values()] == ["one"]


def test_a_look_where_nothing_changed_asks_nothing(caller: Caller, informer: Informer) -> None:
    before = informer.look().version
    asked = caller.tally.requests
    for _ in range(20):
        assert informer.look().version == before
    assert caller.tally.requests == asked


def test_objects_are_kept_without_what_nobody_reads(caller: Caller, informer: Informer) -> None:
    _make(caller, "one", container={"env": [{"name": "A", "value": "x" * 1000}]})
    (pod,) = informer.look().of("Pod").values()
    assert "env" not in pod["spec"]["containers"][0]
    assert "managedFields" not in pod["metadata"]
    assert pod["kind"] == "Pod"


def test_watches_that_are_cut_go_on_from_where_they_were(
    cluster: ClusterApi, caller: Caller, informer: Informer
) -> None:
    cluster.world.fault_add("watch-cut", service="kubernetes", every=0.3)
    informer.look()
    for number in range(12):
        _make(caller, f"pod-{number}")
        time.sleep(0.1)
    site.until("all pods are seen", lambda: len(_names(informer)) == 12)
    assert cluster.api.tally.requests["list pods"] == 1


def test_lost_history_is_listed_again_and_not_in_a_storm(
    cluster: ClusterApi, caller: Caller, informer: Informer
) -> None:
    informer.look()
    cluster.world.fault_add("watch-cut", service="kubernetes", every=0.2, operation="watch-pods", left=1)
    fault = cluster.world.fault_add("history-lost", service="kubernetes", operation="watch-pods")
    _make(caller, "one")
    time.sleep(3)
    cluster.world.fault_clear(fault.uid)
    _make(caller, "two")
    site.until("both pods are seen", lambda: _names(informer) == {"one", "two"})
    assert cluster.api.tally.requests["list pods"] <= 6


def test_a_server_that_is_away_is_said_and_nothing_is_forgotten(
    cluster: ClusterApi, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.providers.kubernetes.informer.STALE_S", 0.5)
    informer = Informer(caller)
    _make(caller, "one")
    assert _names(informer) == {"one"}
    away = cluster.world.fault_add("server-error", service="kubernetes", shape="unavailable")
    cut = cluster.world.fault_add("watch-cut", service="kubernetes", every=0.1)
    # The watches that are open were opened before: only a new life of the server would cut them.
    for watch in list(informer._watches.values()):
        # One that is just being closed cannot be cut once more.
        with contextlib.suppress(Exception):
            watch._answer.shutdown()

    def is_away() -> bool:
        try:
            informer.look()
        except e.Unavailable:
            return True
        return False

    site.until("it is said", is_away)
    cluster.world.fault_clear(away.uid)
    cluster.world.fault_clear(cut.uid)
    site.until("it is back", lambda: not is_away())
    assert _names(informer) == {"one"}
    informer.stop()
    assert informer.running() == 0


def test_a_right_that_is_missing_is_said_and_the_rest_is_read(cluster: ClusterApi) -> None:
    cluster.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "reader"},
            "rules": [{"apiGroups": ["", "batch"], "resources": ["pods", "nodes", "jobs"], "verbs": ["list", "watch"]}],
        }
    )
    cluster.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "User", "name": "small"}],
        }
    )
    cluster.access.users["small"] = User("small", ("system:authenticated",))
    informer = Informer(Caller(KubernetesAccess(cluster.url, token="small")))
    known = informer.look()
    assert "cannot list resource" in known.problems["Workload"]
    assert "Pod" not in known.problems
    informer.stop()


def test_a_right_that_is_needed_is_an_error(cluster: ClusterApi) -> None:
    cluster.access.users["none"] = User("none", ("system:authenticated",))
    informer = Informer(Caller(KubernetesAccess(cluster.url, token="none")))
    with pytest.raises(e.AccessDenied):
        informer.look()
    informer.stop()


def test_no_thread_is_left(caller: Caller, informer: Informer) -> None:
    informer.look()
    assert informer.running() > 5
    informer.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch-")]
    assert _names(informer) == set()


def test_nobody_reads_and_it_ends_by_itself(cluster: ClusterApi, caller: Caller) -> None:
    cluster.settings.bookmark_s = 0.2
    informer = Informer(caller, idle_s=0.6)
    informer.look()
    site.until("all threads ended", lambda: informer.running() == 0)
    _make(caller, "one")
    assert _names(informer) == {"one"}
    informer.stop()


def test_a_kind_that_comes_later_is_found_by_asking_again(tmp_path: Path) -> None:
    with site.cluster(tmp_path / "later", world=World(), crds=()) as made:
        caller = Caller(KubernetesAccess(made.url, token=made.token))
        informer = Informer(caller)
        assert "JobSet" not in informer.look().kinds
        from sandbox.kubernetes.crds import packed

        for crd in packed(["jobset.x-k8s.io"]):
            made.apply(crd)
        informer.discover()
        site.until("it is kept", lambda: "JobSet" in informer.look().kinds)
        informer.stop()
