"""Objects of the pretend Kubernetes through the official client: versions, patches, deletion, lists and validation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, dynamic

from sandbox.kubernetes import ClusterApi
from tests.kubernetes_site import ask, cluster, config_map, connect, pod, until

KUEUE = "kueue.x-k8s.io"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[ClusterApi]:
    with cluster(tmp_path / "state") as served:
        yield served


@pytest.fixture
def api(made: ClusterApi) -> client.ApiClient:
    return connect(made)


@pytest.fixture
def core(api: client.ApiClient) -> client.CoreV1Api:
    return client.CoreV1Api(api)


def refused(code: int, call: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
    with pytest.raises(client.ApiException) as caught:
        call(*arguments, **named)
    assert caught.value.status == code, caught.value.body
    return json.loads(caught.value.body)


def test_a_new_object_has_identity_and_an_old_version_cannot_replace_it(core: client.CoreV1Api) -> None:
    first = core.create_namespaced_config_map("default", config_map("one"))
    assert first.metadata.uid
    assert first.metadata.creation_timestamp
    changed = core.patch_namespaced_config_map("one", "default", {"data": {"b": "2"}})
    assert int(changed.metadata.resource_version) > int(first.metadata.resource_version)
    assert changed.data == {"a": "1", "b": "2"}
    first.data = {"c": "3"}
    assert refused(409, core.replace_namespaced_config_map, "one", "default", first)["reason"] == "Conflict"
    changed.data = {"c": "3"}
    assert core.replace_namespaced_config_map("one", "default", changed).data == {"c": "3"}
    same = core.patch_namespaced_config_map("one", "default", {"data": {"c": "3"}})
    again = core.patch_namespaced_config_map("one", "default", {"data": {"c": "3"}})
    assert same.metadata.resource_version == again.metadata.resource_version


def test_a_taken_name_is_told_with_details(core: client.CoreV1Api) -> None:
    core.create_namespaced_config_map("default", config_map("one"))
    told = refused(409, core.create_namespaced_config_map, "default", config_map("one"))
    assert (told["reason"], told["details"]) == ("AlreadyExists", {"name": "one", "kind": "configmaps"})
    assert refused(404, core.create_namespaced_config_map, "nowhere", config_map("x"))["reason"] == "NotFound"


def test_a_dry_run_leaves_nothing(core: client.CoreV1Api) -> None:
    told = core.create_namespaced_config_map("default", config_map("one"), dry_run="All")
    assert told.metadata.uid
    refused(404, core.read_namespaced_config_map, "one", "default")
    refused(400, core.create_namespaced_config_map, "default", config_map("one"), dry_run="Some")


def test_the_generation_counts_the_spec_and_the_status_has_its_own_door(api: client.ApiClient) -> None:
    batch = client.BatchV1Api(api)
    job = {
        "metadata": {"name": "j"},
        "spec": {"suspend": True, "template": {"spec": pod("x")["spec"]}},
        "status": {"active": 5},
    }
    new = batch.create_namespaced_job("default", job)
    assert (new.metadata.generation, new.status.active, new.spec.backoff_limit) == (1, None, 6)
    new = batch.patch_namespaced_job_status("j", "default", {"status": {"active": 2}, "spec": {"suspend": False}})
    assert (new.metadata.generation, new.status.active, new.spec.suspend) == (1, 2, True)
    new = batch.patch_namespaced_job("j", "default", {"spec": {"suspend": False}, "status": {"active": 9}})
    assert (new.metadata.generation, new.status.active, new.spec.suspend) == (2, 2, False)
    new = batch.patch_namespaced_job("j", "default", {"metadata": {"labels": {"a": "b"}}})
    assert new.metadata.generation == 2


def test_selectors_by_equality_sets_and_fields(core: client.CoreV1Api) -> None:
    for number in range(4):
        labels = {"rank": str(number), "team": "a" if number < 2 else "b"} | ({"odd": "yes"} if number % 2 else {})
        core.create_namespaced_pod("default", pod(f"p{number}", labels=labels))

    def names(**selectors: str) -> list[str]:
        return [one.metadata.name for one in core.list_namespaced_pod("default", **selectors).items]

    assert names(label_selector="team=a") == ["p0", "p1"]
    assert names(label_selector="team!=a,!odd") == ["p2"]
    assert names(label_selector="rank in (1, 2),odd") == ["p1"]
    assert names(label_selector="rank notin (1,2)") == ["p0", "p3"]
    assert names(field_selector="metadata.name=p3") == ["p3"]
    assert names(field_selector="status.phase!=Pending") == []
    assert names(field_selector="spec.nodeName=") == ["p0", "p1", "p2", "p3"]
    refused(400, core.list_namespaced_pod, "default", field_selector="spec.image=x")
    refused(400, core.list_namespaced_pod, "default", label_selector="a in (b")


def test_pages_come_from_one_moment_and_expire(made: ClusterApi, core: client.CoreV1Api) -> None:
    for number in range(7):
        core.create_namespaced_pod("default", pod(f"p{number}"))
    first = core.list_namespaced_pod("default", limit=3)
    assert first.metadata.remaining_item_count == 4
    core.delete_namespaced_pod("p4", "default")
    core.create_namespaced_pod("default", pod("p9"))
    second = core.list_namespaced_pod("default", limit=3, _continue=first.metadata._continue)
    assert [one.metadata.name for one in second.items] == ["p3", "p4", "p5"]
    assert second.metadata.resource_version == first.metadata.resource_version
    made.store.compact()
    told = refused(410, core.list_namespaced_pod, "default", limit=3, _continue=second.metadata._continue)
    assert told["reason"] == "Expired"
    rest = core.list_namespaced_pod("default", limit=3, _continue=told["metadata"]["continue"])
    assert [one.metadata.name for one in rest.items] == ["p6", "p9"]
    refused(400, core.list_namespaced_pod, "default", limit=3, _continue="nonsense")


def test_four_kinds_of_patch(api: client.ApiClient, core: client.CoreV1Api) -> None:
    apps = client.AppsV1Api(api)
    template = {"metadata": {"labels": {"app": "x"}}, "spec": pod("x", restartPolicy="Always")["spec"]}
    spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
    apps.create_namespaced_deployment("default", {"metadata": {"name": "d"}, "spec": spec})
    change = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "b"}]}}}}
    strategic = apps.patch_namespaced_deployment("d", "default", change)
    assert [one.name for one in strategic.spec.template.spec.containers] == ["main", "side"]
    gone = {"spec": {"template": {"spec": {"containers": [{"name": "main", "$patch": "delete"}]}}}}
    strategic = apps.patch_namespaced_deployment("d", "default", gone)
    assert [one.name for one in strategic.spec.template.spec.containers] == ["side"]
    operations = [
        {"op": "test", "path": "/spec/replicas", "value": 1},
        {"op": "replace", "path": "/spec/replicas", "value": 4},
    ]
    assert apps.patch_namespaced_deployment("d", "default", operations).spec.replicas == 4
    assert refused(422, apps.patch_namespaced_deployment, "d", "default", operations)["reason"] == "Invalid"
    assert apps.read_namespaced_deployment_scale("d", "default").spec.replicas == 4
    assert apps.patch_namespaced_deployment_scale("d", "default", {"spec": {"replicas": 2}}).spec.replicas == 2
    merged = apps.patch_namespaced_deployment("d", "default", change, _content_type="application/merge-patch+json")
    assert [one.image for one in merged.spec.template.spec.containers] == ["b"]


def test_server_side_apply_owns_fields_and_tells_conflicts(api: client.ApiClient) -> None:
    maps = dynamic.DynamicClient(api).resources.get(api_version="v1", kind="ConfigMap")

    def put(manager: str, data: dict[str, str], **more: Any) -> Any:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": data}
        return maps.server_side_apply(body=body, namespace="default", field_manager=manager, **more)

    put("a", {"x": "1", "y": "1"})
    assert put("b", {"z": "1"}).to_dict()["data"] == {"x": "1", "y": "1", "z": "1"}
    with pytest.raises(dynamic.exceptions.ConflictError) as caught:
        put("b", {"x": "2"})
    cause = json.loads(caught.value.body)["details"]["causes"][0]
    assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".data.x")
    forced = put("b", {"x": "2"}, force_conflicts=True).to_dict()
    assert forced["data"] == {"x": "2", "y": "1"}
    assert put("a", {"x": "2"}).to_dict()["data"] == {"x": "2"}
    assert {one["manager"] for one in put("a", {"x": "2"}).to_dict()["metadata"]["managedFields"]} == {"a", "b"}


def test_bad_objects_are_told_field_by_field(made: ClusterApi, api: client.ApiClient, core: client.CoreV1Api) -> None:
    batch, custom = client.BatchV1Api(api), client.CustomObjectsApi(api)
    told = refused(422, core.create_namespaced_pod, "default", pod("Bad_Name", container={"image": ""}))
    assert {cause["field"] for cause in told["details"]["causes"]} == {"metadata.name", "spec.containers[0].image"}
    job = {"metadata": {"name": "j"}, "spec": {"template": {"spec": {"containers": pod("x")["spec"]["containers"]}}}}
    told = refused(422, batch.create_namespaced_job, "default", job)
    assert told["details"]["causes"][0]["field"] == "spec.template.spec.restartPolicy"
    wrong = {"metadata": {"name": "j"}, "spec": {"parallelism": "two", "template": {"spec": pod("x")["spec"]}}}
    code, told = ask(made, "POST", "/apis/batch/v1/namespaces/default/jobs", wrong)
    assert (code, "spec.parallelism" in told["message"]) == (400, True)
    queue = {
        "apiVersion": f"{KUEUE}/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "q"},
        "spec": {"queueingStrategy": "Sometimes", "cohort": "c", "preemption": {"withinClusterQueue": 3}},
    }
    told = refused(422, custom.create_cluster_custom_object, KUEUE, "v1beta2", "clusterqueues", queue)
    reasons = {cause["field"]: cause["reason"] for cause in told["details"]["causes"]}
    assert reasons["spec.queueingStrategy"] == "FieldValueNotSupported"
    assert reasons["spec.preemption.withinClusterQueue"] == "FieldValueTypeInvalid"
    del queue["spec"]["queueingStrategy"], queue["spec"]["preemption"]
    told = refused(
        400, custom.create_cluster_custom_object, KUEUE, "v1beta2", "clusterqueues", queue, field_validation="Strict"
    )
    assert 'unknown field "spec.cohort"' in told["message"]
    new = custom.create_cluster_custom_object(KUEUE, "v1beta2", "clusterqueues", queue)
    assert "cohort" not in new["spec"]
    assert new["spec"]["queueingStrategy"] == "BestEffortFIFO"


def test_amounts_written_as_numbers_come_back_as_strings(made: ClusterApi, core: client.CoreV1Api) -> None:
    body = pod("numbers", container={"resources": {"limits": {"nvidia.com/gpu": 4, "cpu": 2}}})
    body["metadata"]["namespace"] = "default"
    made.apply(body)
    told = core.read_namespaced_pod("numbers", "default").spec.containers[0].resources
    assert told.limits == {"nvidia.com/gpu": "4", "cpu": "2"}


def test_kueue_in_its_two_versions(api: client.ApiClient) -> None:
    custom = client.CustomObjectsApi(api)
    resources = [{"name": "nvidia.com/gpu", "nominalQuota": 8, "borrowingLimit": 4}]
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "h100", "resources": resources}]}
    queue = {
        "apiVersion": f"{KUEUE}/v1beta1",
        "kind": "ClusterQueue",
        "metadata": {"name": "q"},
        "spec": {"cohort": "all", "resourceGroups": [group]},
    }
    custom.create_cluster_custom_object(KUEUE, "v1beta1", "clusterqueues", queue)
    newer = custom.get_cluster_custom_object(KUEUE, "v1beta2", "clusterqueues", "q")
    assert (newer["apiVersion"], newer["spec"]["cohortName"]) == (f"{KUEUE}/v1beta2", "all")
    del queue["spec"]["cohort"]
    queue["metadata"]["name"] = "lonely"
    told = refused(422, custom.create_cluster_custom_object, KUEUE, "v1beta1", "clusterqueues", queue)
    assert "borrowingLimit" in told["message"]
    versions = {
        group.name: [one.version for one in group.versions] for group in client.ApisApi(api).get_api_versions().groups
    }
    assert versions[KUEUE] == ["v1beta2", "v1beta1"]
    refused(404, custom.list_cluster_custom_object, KUEUE, "v1", "clusterqueues")


def test_dependents_follow_their_owner_as_asked(api: client.ApiClient, core: client.CoreV1Api) -> None:
    for policy in ("Background", "Foreground", "Orphan"):
        owner = core.create_namespaced_config_map("default", config_map(f"owner-{policy.lower()}"))
        reference = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner.metadata.name,
            "uid": owner.metadata.uid,
            "blockOwnerDeletion": True,
        }
        name = f"child-{policy.lower()}"
        core.create_namespaced_config_map("default", config_map(name, ownerReferences=[reference]))
        core.delete_namespaced_config_map(owner.metadata.name, "default", propagation_policy=policy)
        left = {"owner-" + policy.lower()} if policy == "Orphan" else {owner.metadata.name, name}

        def names() -> set[str]:
            return {one.metadata.name for one in core.list_namespaced_config_map("default").items}

        until(f"{policy}: {left} gone", lambda left=left: not left & names())
        if policy == "Orphan":
            assert core.read_namespaced_config_map(name, "default").metadata.owner_references is None


def test_a_finalizer_holds_an_object_and_a_namespace_takes_its_content_along(core: client.CoreV1Api) -> None:
    core.create_namespace({"metadata": {"name": "team"}})
    core.create_namespaced_config_map("team", config_map("held", finalizers=["example.com/hold"]))
    core.create_namespaced_pod("team", pod("p"))
    core.delete_namespace("team")
    until("the pod gone", lambda: not core.list_namespaced_pod("team").items)
    held = core.read_namespaced_config_map("held", "team")
    assert held.metadata.deletion_timestamp
    assert core.read_namespace("team").status.phase == "Terminating"
    told = refused(403, core.create_namespaced_config_map, "team", config_map("late"))
    assert told["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    core.patch_namespaced_config_map("held", "team", {"metadata": {"finalizers": None}})
    until("the namespace gone", lambda: "team" not in [one.metadata.name for one in core.list_namespace().items])


def test_preconditions_grace_and_eviction(core: client.CoreV1Api) -> None:
    one = core.create_namespaced_pod("default", pod("p"))
    wrong = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
    refused(409, core.delete_namespaced_pod, "p", "default", body=wrong)
    body = client.V1Binding(
        metadata=client.V1ObjectMeta(name="p"), target=client.V1ObjectReference(kind="Node", name="n")
    )
    core.create_namespaced_pod_binding("p", "default", body, _preload_content=False)
    assert core.read_namespaced_pod("p", "default").spec.node_name == "n"
    refused(409, core.create_namespaced_pod_binding, "p", "default", body)
    core.create_namespaced_pod_eviction("p", "default", client.V1Eviction(metadata=client.V1ObjectMeta(name="p")))
    leaving = core.read_namespaced_pod("p", "default")
    assert (leaving.metadata.deletion_grace_period_seconds, leaving.metadata.uid) == (30, one.metadata.uid)
    core.delete_namespaced_pod("p", "default", grace_period_seconds=0)
    refused(404, core.read_namespaced_pod, "p", "default")


def test_a_crd_made_by_a_client_is_served_and_takes_its_objects_along(api: client.ApiClient) -> None:
    custom, extensions = client.CustomObjectsApi(api), client.ApiextensionsV1Api(api)
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "required": ["size"], "properties": {"size": {"type": "integer", "maximum": 3}}}
        },
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "boats", "kind": "Boat"},
        "versions": [version],
    }
    extensions.create_custom_resource_definition({"metadata": {"name": "boats.example.com"}, "spec": spec})
    where = ("example.com", "v1", "default", "boats")
    boat = {"apiVersion": "example.com/v1", "kind": "Boat", "metadata": {"name": "b"}, "spec": {"size": 2}}
    custom.create_namespaced_custom_object(*where, boat)
    bad = {**boat, "metadata": {"name": "c"}, "spec": {"size": 4}}
    assert "less than or equal to 3" in refused(422, custom.create_namespaced_custom_object, *where, bad)["message"]
    extensions.delete_custom_resource_definition("boats.example.com")

    def gone() -> bool:
        try:
            custom.list_namespaced_custom_object(*where)
        except client.ApiException as error:
            return error.status == 404
        return False

    until("the kind gone", gone)


def test_state_outlives_a_restart(tmp_path: Path) -> None:
    with cluster(tmp_path / "state") as made:
        kept = client.CoreV1Api(connect(made)).create_namespaced_config_map("default", config_map("kept"))
        token = made.token
    with cluster(tmp_path / "state") as made:
        assert made.token == token
        again = client.CoreV1Api(connect(made)).read_namespaced_config_map("kept", "default")
        assert again.metadata.uid == kept.metadata.uid
        assert again.metadata.resource_version == kept.metadata.resource_version


NONSENSE: list[Any] = [
    None,
    [],
    "text",
    {"metadata": []},
    {"metadata": {"name": 5}},
    {"metadata": {"generateName": 7}},
    {"metadata": {"name": "a", "ownerReferences": [5]}},
    {"metadata": {"name": "a", "finalizers": [{}]}},
    {"metadata": {"name": "a", "labels": {"x": 5}}},
    {"metadata": {"name": "a\nb"}, "spec": {}},
    {"metadata": {"name": "a"}, "spec": 5},
    {"metadata": {"name": "a"}, "spec": {"containers": [None]}},
    {"metadata": {"name": "a"}, "spec": {"template": {"spec": None}}},
    {"metadata": {"name": "a"}, "spec": {"versions": 5, "names": 7}},
]


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/default/pods",
        "/apis/batch/v1/namespaces/default/jobs",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/kueue.x-k8s.io/v1beta1/namespaces/default/workloads",
    ],
)
def test_nonsense_is_refused_and_breaks_nothing(made: ClusterApi, path: str) -> None:
    for body in NONSENSE:
        code, told = ask(made, "POST", path, b"" if body is None else body)
        assert code in (400, 422), (body, told)
        assert told["message"]
