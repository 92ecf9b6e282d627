"""One call to an API server at a time: what comes back, what every refusal becomes, and how a watch ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.kubernetes import ClusterApi
from sandbox.kubernetes.access import User
from sandbox.world import World
from tests import kubernetes_site as site
from worker.providers import errors as e
from worker.providers.kubernetes import errors as ke
from worker.providers.kubernetes.calls import APPLY, Caller
from worker.providers.kubernetes.client import KubernetesAccess
from worker.providers.kubernetes.resources import PODS, Resource

MAPS = Resource("", "v1", "configmaps", "ConfigMap")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterApi]:
    with site.cluster(tmp_path, world=World()) as made:
        yield made


@pytest.fixture
def caller(cluster: ClusterApi) -> Iterator[Caller]:
    made = Caller(KubernetesAccess(cluster.url, token=cluster.token, timeout_s=3))
    yield made
    made.close()


def test_an_object_is_made_read_changed_and_deleted(caller: Caller) -> None:
    place = MAPS.path("default")
    made = caller.create(place, site.config_map("one"))
    again = caller.get(MAPS.path("default", "one"))
    assert again["metadata"]["uid"] == made["metadata"]["uid"]
    changed = caller.patch(MAPS.path("default", "one"), {"data": {"b": "2"}})
    assert changed["data"] == {"a": "1", "b": "2"}
    applied = site.config_map("two")
    assert caller.patch(MAPS.path("default", "two"), applied, APPLY)["data"] == {"a": "1"}
    caller.delete(MAPS.path("default", "one"))
    with pytest.raises(e.NotFound):
        caller.get(MAPS.path("default", "one"))


def test_a_dry_run_leaves_nothing(caller: Caller) -> None:
    caller.create(MAPS.path("default"), site.config_map("one"), dry_run=True)
    with pytest.raises(e.NotFound):
        caller.get(MAPS.path("default", "one"))


def test_a_name_that_is_taken_is_a_conflict_of_its_own_code(caller: Caller) -> None:
    caller.create(MAPS.path("default"), site.config_map("one"))
    with pytest.raises(e.Conflict) as told:
        caller.create(MAPS.path("default"), site.config_map("one"))
    assert told.value.code == ke.EXISTS
    assert "configmaps" in str(told.value)


def test_only_the_object_that_was_meant_is_deleted(caller: Caller) -> None:
    caller.create(MAPS.path("default"), site.config_map("one"))
    with pytest.raises(e.Conflict):
        caller.delete(MAPS.path("default", "one"), uid="another")
    assert caller.get(MAPS.path("default", "one"))


def test_a_list_goes_through_all_pages(caller: Caller) -> None:
    for number in range(7):
        caller.create(MAPS.path("default"), site.config_map(f"map-{number}"))
    page = caller.page(MAPS.path("default"), limit=3)
    assert len(page.items) == 3
    assert page.token
    items, version = caller.listed(MAPS.path("default"))
    assert len([item for item in items if item["metadata"]["name"].startswith("map-")]) == 7
    assert version
    assert all(item["kind"] == "ConfigMap" for item in items)


def test_a_bad_object_names_its_field(caller: Caller) -> None:
    pod = site.pod("one")
    pod["spec"]["containers"][0]["name"] = "No Name"
    with pytest.raises(e.InvalidRequest) as told:
        caller.create(PODS.path("default"), pod)
    assert "spec.containers[0].name" in str(told.value)


def test_a_call_that_is_not_allowed_names_verb_and_resource(cluster: ClusterApi) -> None:
    cluster.access.users["small"] = User("small", ("system:authenticated",))
    caller = Caller(KubernetesAccess(cluster.url, token="small"))
    with pytest.raises(e.AccessDenied) as told:
        caller.listed(PODS.path())
    assert 'cannot list resource "pods"' in str(told.value)


def test_a_token_that_nobody_knows_is_denied_and_not_repeated(cluster: ClusterApi) -> None:
    caller = Caller(KubernetesAccess(cluster.url, token="of-nobody"))
    with pytest.raises(e.AccessDenied) as told:
        caller.listed(PODS.path())
    assert "of-nobody" not in str(told.value)


@pytest.mark.parametrize(
    ("fault", "parameters", "kind"),
    [
        ("throttling", {"retry_after": 7}, e.Throttled),
        ("server-error", {}, e.Unavailable),
        ("server-error", {"shape": "html"}, e.Unavailable),
        ("server-error", {"shape": "cut"}, e.Unavailable),
        ("server-error", {"shape": "unavailable"}, e.Unavailable),
        ("unauthorized", {}, e.AccessDenied),
        ("access-denied", {}, e.AccessDenied),
        ("history-lost", {}, ke.HistoryGone),
    ],
)
def test_faults_become_errors(
    cluster: ClusterApi, caller: Caller, fault: str, parameters: dict[str, object], kind: type[Exception]
) -> None:
    cluster.world.fault_add(fault, service="kubernetes", **parameters)
    with pytest.raises(kind) as told:
        caller.listed(PODS.path())
    if isinstance(told.value, ke.SlowDown):
        assert told.value.retry_after_s == 7


def test_no_server_is_known_to_have_got_nothing(caller: Caller, cluster: ClusterApi) -> None:
    cluster.stop()
    with pytest.raises(e.Unavailable) as told:
        caller.listed(PODS.path())
    assert told.value.code in (ke.UNSENT, "cut")


def test_a_slow_answer_ends_in_time(cluster: ClusterApi) -> None:
    caller = Caller(KubernetesAccess(cluster.url, token=cluster.token, timeout_s=0.5))
    cluster.world.fault_add("slow-api", service="kubernetes", delay=3)
    began = time.monotonic()
    with pytest.raises(e.Unavailable):
        caller.listed(PODS.path())
    assert time.monotonic() - began < 2


def test_a_watch_tells_what_changes_and_ends_when_told(caller: Caller) -> None:
    _items, version = caller.listed(MAPS.path())
    heard: list[str] = []
    watch = caller.watch(MAPS.path(), {"resourceVersion": version})

    def listen() -> None:
        heard.extend(str(line["object"]["metadata"].get("name")) for line in watch)

    thread = threading.Thread(target=listen)
    thread.start()
    caller.create(MAPS.path("default"), site.config_map("one"))
    site.until("the watch tells it", lambda: "one" in heard)
    watch.stop()
    thread.join(timeout=3)
    assert not thread.is_alive()


def test_what_is_served_is_found(caller: Caller) -> None:
    served = caller.served()
    jobs = served.by_kind("JobSet")
    assert jobs is not None
    assert jobs.path("a", "b") == "/apis/jobset.x-k8s.io/v1alpha2/namespaces/a/jobsets/b"
    assert "kueue.x-k8s.io/v1beta2 Workload" in served.kinds
    assert "kueue.x-k8s.io/v1beta1 Workload" not in served.kinds
