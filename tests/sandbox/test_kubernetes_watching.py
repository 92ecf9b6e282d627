"""Watches, logs, faults and rights of the pretend Kubernetes, through the official client."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from kubernetes import client, dynamic, watch

from sandbox.control.faults import BadFault, inject
from sandbox.kubernetes import ClusterApi
from sandbox.kubernetes.access import User
from tests.kubernetes_site import ask, cluster, config_map, connect, pod, until


@pytest.fixture
def made(tmp_path: Path) -> Iterator[ClusterApi]:
    with cluster(tmp_path / "state") as served:
        yield served


@pytest.fixture
def core(made: ClusterApi) -> client.CoreV1Api:
    return client.CoreV1Api(connect(made))


def seen(core: client.CoreV1Api, revision: str, **more: Any) -> list[tuple[str, str]]:
    stream = watch.Watch().stream(
        core.list_namespaced_pod, "default", resource_version=revision, **{"timeout_seconds": 1, **more}
    )
    return [(event["type"], event["object"].metadata.name) for event in stream if event["type"] != "BOOKMARK"]


def raw(made: ClusterApi, query: str) -> list[dict[str, Any]]:
    import urllib.request

    request = urllib.request.Request(f"{made.url}/api/v1/namespaces/default/pods?{query}")
    request.add_header("Authorization", f"Bearer {made.token}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return [json.loads(line) for line in answer.read().splitlines()]


def test_a_watch_goes_on_from_its_list(core: client.CoreV1Api) -> None:
    core.create_namespaced_pod("default", pod("a"))
    listed = core.list_namespaced_pod("default").metadata.resource_version
    core.create_namespaced_pod("default", pod("b", labels={"team": "x"}))
    core.patch_namespaced_pod("a", "default", {"metadata": {"labels": {"team": "x"}}})
    core.patch_namespaced_pod("b", "default", {"metadata": {"labels": {"team": "y"}}})
    core.delete_namespaced_pod("a", "default")
    assert seen(core, listed) == [("ADDED", "b"), ("MODIFIED", "a"), ("MODIFIED", "b"), ("DELETED", "a")]
    # What begins to match is new to this client, what ceases to is gone for it.
    chosen = [("ADDED", "b"), ("ADDED", "a"), ("DELETED", "b"), ("DELETED", "a")]
    assert seen(core, listed, label_selector="team=x") == chosen


def test_a_watch_tells_at_once(core: client.CoreV1Api) -> None:
    revision = core.list_namespaced_pod("default").metadata.resource_version
    threading.Timer(0.3, core.create_namespaced_pod, ("default", pod("late"))).start()
    begun = time.monotonic()
    stream = watch.Watch()
    for event in stream.stream(core.list_namespaced_pod, "default", resource_version=revision, timeout_seconds=10):
        assert event["object"].metadata.name == "late"
        stream.stop()
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("flag", ["1", "true", "True", "t"])
def test_any_truth_begins_a_watch_and_bookmarks_keep_it(made: ClusterApi, core: client.CoreV1Api, flag: str) -> None:
    made.settings.bookmark_s = 0.2
    revision = core.list_namespaced_pod("default").metadata.resource_version
    core.create_namespaced_config_map("default", config_map(f"moves-on-{flag.lower()}"))
    query = f"watch={flag}&allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion={revision}"
    events = raw(made, query)
    assert {event["type"] for event in events} == {"BOOKMARK"}
    assert len(events) >= 3
    assert int(events[-1]["object"]["metadata"]["resourceVersion"]) > int(revision)


def test_the_first_events_can_be_asked_for(made: ClusterApi, core: client.CoreV1Api) -> None:
    core.create_namespaced_pod("default", pod("a"))
    events = raw(
        made,
        "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1&timeoutSeconds=1",
    )
    assert [event["type"] for event in events[:2]] == ["ADDED", "BOOKMARK"]
    assert events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_lost_history_is_410_in_both_forms(made: ClusterApi, core: client.CoreV1Api) -> None:
    revision = core.list_namespaced_pod("default").metadata.resource_version
    core.create_namespaced_pod("default", pod("a"))
    made.store.compact()
    event = raw(made, f"watch=1&resourceVersion={revision}")[0]
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    with pytest.raises(client.ApiException) as caught:
        seen(core, revision)
    assert caught.value.status == 410
    made.settings.gone_as_event = False
    code, told = ask(made, "GET", f"/api/v1/namespaces/default/pods?watch=1&resourceVersion={revision}")
    assert (code, told["reason"]) == (410, "Expired")


def test_logs_by_tail_by_age_and_followed(made: ClusterApi, core: client.CoreV1Api) -> None:
    uid = core.create_namespaced_pod("default", pod("p")).metadata.uid
    with pytest.raises(client.ApiException) as caught:
        core.read_namespaced_pod_log("p", "default")
    assert caught.value.status == 400
    made.logs.append(uid, "main", 0, "old", at=time.time() - 600)
    made.logs.append(uid, "main", 0, "one\ntwo")
    made.set_status("pods", "default", "p", {"phase": "Running"})
    assert core.read_namespaced_pod_log("p", "default") == "old\none\ntwo\n"
    assert core.read_namespaced_pod_log("p", "default", tail_lines=1) == "two\n"
    assert core.read_namespaced_pod_log("p", "default", since_seconds=60) == "one\ntwo\n"
    assert core.read_namespaced_pod_log("p", "default", tail_lines=1, timestamps=True).endswith("Z two\n")

    def end() -> None:
        made.logs.append(uid, "main", 0, "three")
        made.set_status("pods", "default", "p", {"phase": "Succeeded"})

    threading.Timer(0.4, end).start()
    lines = watch.Watch().stream(core.read_namespaced_pod_log, "p", "default", follow=True)
    assert list(lines) == ["old", "one", "two", "three"]


def test_faults_are_seen_as_what_they_pretend(made: ClusterApi, core: client.CoreV1Api) -> None:
    expected = (
        ("unauthorized", {}, 401),
        ("access-denied", {}, 403),
        ("throttling", {"retry_after": 3}, 429),
        ("server-error", {}, 500),
        ("server-error", {"shape": "unavailable"}, 503),
        ("history-lost", {}, 410),
    )
    for kind, more, code in expected:
        made.world.fault_add(kind, left=1, service="kubernetes", operation="list-pods", **more)
        core.list_namespaced_config_map("default")
        told = ask(made, "GET", "/api/v1/namespaces/default/pods")
        assert told[0] == told[1]["code"] == code, kind
        if code == 429:
            assert told[1]["details"]["retryAfterSeconds"] == 3
        core.list_namespaced_pod("default")
    made.world.fault_add("slow-api", left=1, service="kubernetes", delay=0.5)
    begun = time.monotonic()
    core.list_namespaced_pod("default")
    assert time.monotonic() - begun > 0.5


def test_a_lost_reply_has_done_its_work(made: ClusterApi, core: client.CoreV1Api) -> None:
    made.world.fault_add(
        "server-error", left=1, service="kubernetes", operation="create-configmaps", shape="lost-reply"
    )
    with pytest.raises(Exception, match="(?i)connection|remote"):
        ask(made, "POST", "/api/v1/namespaces/default/configmaps", config_map("made"))
    assert core.read_namespaced_config_map("made", "default").metadata.uid


def test_watches_are_cut_on_demand(made: ClusterApi, core: client.CoreV1Api) -> None:
    made.world.fault_add("watch-cut", service="kubernetes", every=0.5)
    begun = time.monotonic()
    assert raw(made, "watch=1&timeoutSeconds=60") == []
    assert 0.4 < time.monotonic() - begun < 5


def test_an_account_may_what_its_roles_say(made: ClusterApi) -> None:
    admin = connect(made)
    rights = client.RbacAuthorizationV1Api(admin)
    until("the account", lambda: made.store.scan("serviceaccounts", "default"))
    token = client.CoreV1Api(admin).create_namespaced_service_account_token(
        "default", "default", client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=["sandbox"]))
    )
    core = client.CoreV1Api(connect(made, token.status.token))
    with pytest.raises(client.ApiException) as caught:
        core.list_namespaced_pod("default")
    assert caught.value.status == 403
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "get"]}]
    rights.create_namespaced_role("default", {"metadata": {"name": "reader"}, "rules": rules})
    binding = {
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
    }
    rights.create_namespaced_role_binding("default", binding)
    core.list_namespaced_pod("default")
    for namespace, verb, allowed in (
        ("default", "list", True),
        ("default", "delete", False),
        ("kube-system", "list", False),
    ):
        attributes = client.V1ResourceAttributes(namespace=namespace, verb=verb, resource="pods", group="")
        review = client.V1SelfSubjectAccessReview(
            spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
        )
        told = client.AuthorizationV1Api(core.api_client).create_self_subject_access_review(review)
        assert told.status.allowed is allowed, (namespace, verb)
    with pytest.raises(client.ApiException) as caught:
        client.CoreV1Api(connect(made, "nonsense")).list_namespace()
    assert caught.value.status == 401


def eks_token(cluster_name: str, secret: str) -> str:
    url = "https://sts.us-east-1.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15"
    request = AWSRequest(method="GET", url=url, headers={"x-k8s-aws-id": cluster_name})
    SigV4QueryAuth(Credentials("AKIDEXAMPLE", secret), "sts", "us-east-1", expires=60).add_auth(request)
    return "k8s-aws-v1." + base64.urlsafe_b64encode(request.url.encode()).decode().rstrip("=")


def test_tokens_of_eks_open_only_their_own_cluster(made: ClusterApi) -> None:
    made.access.secrets_of = {"AKIDEXAMPLE": "right"}.get
    made.access.identity = lambda key: User(key, ("system:masters",))
    assert client.CoreV1Api(connect(made, eks_token("test", "right"))).list_namespace().items
    for wrong in (eks_token("another", "right"), eks_token("test", "wrong"), eks_token("test", "right") + "="):
        with pytest.raises(client.ApiException) as caught:
            client.CoreV1Api(connect(made, wrong)).list_namespace()
        assert caught.value.status == 401


def test_faults_are_put_in_force_like_those_of_the_other_services(made: ClusterApi, core: client.CoreV1Api) -> None:
    class Desk:
        world = made.world

        @staticmethod
        def note(text: str) -> None:
            assert text

    asked = {"kind": "history-lost", "service": "kubernetes", "operation": "list-pods", "times": "1"}
    done = inject(Desk(), asked)  # type: ignore[arg-type]
    assert done.sentence == "kubernetes list-pods has lost its history, 1 times."
    code, _ = ask(made, "GET", "/api/v1/namespaces/default/pods")
    assert code == 410
    core.list_namespaced_pod("default")
    done = inject(Desk(), {"kind": "watch-cut", "service": "kubernetes", "every": "0.5"})  # type: ignore[arg-type]
    assert raw(made, "watch=1&timeoutSeconds=60") == []
    for wrong in ({"kind": "watch-cut", "service": "aws"}, {"kind": "unauthorized", "service": "slurm"}):
        with pytest.raises(BadFault):
            inject(Desk(), wrong)  # type: ignore[arg-type]


def test_custom_objects_are_applied_and_watched(made: ClusterApi, core: client.CoreV1Api) -> None:
    queues = dynamic.DynamicClient(core.api_client).resources.get(
        api_version="kueue.x-k8s.io/v1beta1", kind="LocalQueue"
    )
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": "team"},
        "spec": {"clusterQueue": "all"},
    }
    revision = made.store.revision
    queues.server_side_apply(body=body, namespace="default", field_manager="portal")
    again = queues.server_side_apply(body=body, namespace="default", field_manager="portal")
    assert queues.get(name="team", namespace="default").metadata.resourceVersion == again.metadata.resourceVersion
    body["spec"] = {"clusterQueue": "another"}
    with pytest.raises(dynamic.exceptions.UnprocessibleEntityError, match=r"spec\.clusterQueue"):
        queues.server_side_apply(body=body, namespace="default", field_manager="portal")
    seen_events = [
        (event["type"], event["raw_object"]["apiVersion"])
        for event in queues.watch(namespace="default", resource_version=revision, timeout=1)
    ]
    assert seen_events == [("ADDED", "kueue.x-k8s.io/v1beta1")]
