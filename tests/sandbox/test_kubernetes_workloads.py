"""Workloads as the portal writes them, run by the pretend cluster: volumes, ranks, and the runner's reports."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from sandbox.kubernetes import Cluster
from sandbox.kubernetes.mounts import Paths
from sandbox.world import World
from tests.kubernetes_site import connect, pod, until
from tests.sandbox.test_kubernetes_trainers import join
from worker.providers.kubernetes.render import owned, render, workload_of
from worker.providers.workload_values import KINDS, PLAIN, ClaimMount, WorkloadSpec

RUNNER = Path("runner/quarterdeck_runner.py").read_text()
SCRIPT = """\
#!/bin/bash
echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"
touch /dev/shm/mine || exit 9
echo "$SECRET_WORD" > "$QD_CHECKPOINT_DIR/word-$NODE_RANK"
[ "$NODE_RANK" = 0 ] || exit 0
mkdir -p /fsx/checkpoints/step_10/ && echo weights > /fsx/checkpoints/step_10/model.pt
python3 - <<'END'
import os, socket
taken = socket.socket()
taken.bind((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
END
# A PyTorchJob is over with its master: the other ranks go first.
sleep 1.5
"""


class Ingest(ThreadingHTTPServer):
    """Collects what runners post."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posts: list[dict[str, Any]] = []

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The data of all events of a kind, with the rank of the runner that they came from."""
        return [
            {**event["data"], "rank": post["runner"].get("rank")}
            for post in list(self.posts)
            for event in post["events"]
            if event["kind"] == kind
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Ingest

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posts.append(body)
        answer = json.dumps({"acknowledged_seq": max((one["seq"] for one in body["events"]), default=0)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def ingest() -> Iterator[Ingest]:
    made = Ingest()
    threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    world = World()
    made = Cluster(world, tmp_path / "state", name="eks", eviction_s=0.5, restart_s=0.1)
    made.start()
    join(world, "n1")
    join(world, "n2")
    for namespace in ("vision",):
        made.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    made.api.apply(claim("shared", "vision"))
    yield made
    made.stop()


def claim(name: str, namespace: str) -> dict[str, Any]:
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteMany"], "resources": resources}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def submit(cluster: Cluster, spec: WorkloadSpec, kind: str) -> dict[str, Any]:
    """The objects in the portal's order; what belongs to the workload comes after it."""
    objects, made = render(spec, kind), None
    workload = workload_of(objects)
    for one in objects:
        if one is workload:
            made = cluster.api.apply(one)
        else:
            cluster.api.apply(owned(one, made) if made else one)
    assert made is not None
    path = {"PyTorchJob": {"runPolicy": {**made["spec"].get("runPolicy", {}), "suspend": False}}}
    change = path.get(made["kind"], {"suspend": False})
    group, plural = made["apiVersion"].rpartition("/")[0], f"{made['kind'].lower()}s"
    resource = f"{plural}.{group}"
    with cluster.api.store.lock:
        found = cluster.api.registry.by_resource(resource)
        assert found is not None
        old = cluster.api.writer.read(found, "vision", made["metadata"]["name"])
        from sandbox.kubernetes.writes import How

        new = {**old, "spec": {**old["spec"], **change}}
        return cluster.api.writer.update(found, "vision", made["metadata"]["name"], new, How(manager="test"))


@pytest.mark.parametrize("kind", KINDS)
def test_two_nodes_of_each_kind_report_and_write_their_checkpoint(cluster: Cluster, ingest: Ingest, kind: str) -> None:
    spec = WorkloadSpec(
        name="two nodes",
        uid="att_01j9zq4k3v9n8w7x6y5t4s3r2q",
        job_uid="job_01j9zq4k3v9n8w7x6y5t4s3r2q",
        team="vision",
        owner="owner@example.org",
        namespace="vision",
        image="registry.example.org/train:1",
        nodes=2,
        time_limit_min=10,
        gpus_per_node=8,
        script=SCRIPT,
        runner=RUNNER,
        scheduler=PLAIN,
        mounts=(ClaimMount("shared", "/fsx"),),
        environment={
            "QD_INGEST_URL": f"http://127.0.0.1:{ingest.server_address[1]}/ingest",
            "QD_CHECKPOINT_DIR": "/fsx/checkpoints",
            "QD_POST_INTERVAL_S": "0.1",
        },
        secret_environment={"QD_INGEST_TOKEN": "t", "SECRET_WORD": "quiet"},
    )
    made = submit(cluster, spec, kind)
    core = client.CoreV1Api(connect(cluster.api))

    def ended() -> set[str]:
        pods = core.list_namespaced_pod("vision").items
        return {one.status.phase for one in pods} if len(pods) == 2 else set()

    until("both pods ended", lambda: ended() and ended() <= {"Succeeded", "Failed"}, 30)
    logs = [
        core.read_namespaced_pod_log(one.metadata.name, "vision") for one in core.list_namespaced_pod("vision").items
    ]
    assert ended() == {"Succeeded"}, (logs, made["metadata"]["name"])
    shared = cluster.kubelets.containers.volumes.claim("vision", "shared")
    assert (shared / "checkpoints/step_10/model.pt").read_text() == "weights\n"
    assert (shared / "checkpoints/word-1").read_text() == "quiet\n"
    until("both runners told their end", lambda: len(ingest.events("exit")) == 2)
    assert {one["rank"]: one["code"] for one in ingest.events("exit")} == {None: 0, 1: 0}
    said = sorted(line for one in ingest.events("log") for line in one["text"].splitlines() if line.startswith("rank "))
    # Kubeflow's operator counts processes, the others leave that to torchrun.
    world = 16 if kind == "pytorchjob" else 2
    assert [line.split(" at ")[0] for line in said] == [f"rank 0 of {world}", f"rank 1 of {world}"]
    # Both ranks were told the same port of this machine, whatever the job asked for.
    assert len({line.split(" at ")[1] for line in said}) == 1
    assert said[0].split(" at ")[1].startswith("127.0.0.1:")
    found = [one["path"] for one in ingest.events("checkpoint")]
    assert str(shared / "checkpoints/step_10") in found


def test_files_of_a_pod_are_where_the_container_looks_for_them(cluster: Cluster) -> None:
    core = client.CoreV1Api(connect(cluster.api))
    script = "cat /etc/app/a; echo; echo $WHERE; cat /run/pod/name; ls /host/disk && echo kept > /host/disk/k"
    volumes = [
        {"name": "files", "configMap": {"name": "late", "items": [{"key": "text", "path": "a"}]}},
        {"name": "about", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"name": "disk", "hostPath": {"path": "/data"}},
    ]
    mounts = [
        {"name": "files", "mountPath": "/etc/app"},
        {"name": "about", "mountPath": "/run/pod"},
        {"name": "disk", "mountPath": "/host/disk"},
    ]
    container = {
        "command": ["sh", "-c", script],
        "volumeMounts": mounts,
        "env": [{"name": "WHERE", "value": "/etc/app"}],
    }
    core.create_namespaced_pod("vision", pod("p", container=container, volumes=volumes))

    def waiting() -> str:
        told = core.read_namespaced_pod("p", "vision").status.container_statuses
        return told[0].state.waiting.message if told and told[0].state.waiting else ""

    assert 'configmap "late" not found' in until("it waits for the ConfigMap", waiting)
    late = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"text": "see /etc/app/a"}}
    core.create_namespaced_config_map("vision", late)
    until("it ended", lambda: core.read_namespaced_pod("p", "vision").status.phase == "Succeeded")
    log = core.read_namespaced_pod_log("p", "vision")
    assert log.startswith("see /")
    assert log.count(str(cluster.api.state_dir)) == 2
    assert "\np" in log
    node = core.read_namespaced_pod("p", "vision").spec.node_name
    assert (cluster.api.state_dir / "nodes" / node / "data" / "k").read_text() == "kept\n"


def test_a_claim_that_is_missing_keeps_the_pod_from_every_node(cluster: Cluster) -> None:
    core = client.CoreV1Api(connect(cluster.api))
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]
    core.create_namespaced_pod("vision", pod("p", volumes=volumes))

    def why() -> str:
        told = core.read_namespaced_pod("p", "vision").status.conditions or ()
        return next((one.message for one in told if one.reason == "Unschedulable"), "")

    assert until("unschedulable", why) == '0/2 nodes are available: persistentvolumeclaim "none" not found.'


def test_paths_are_led_only_where_they_begin() -> None:
    paths = Paths({"/fsx": "/real/fsx", "/fsx/deep": "/other"})
    assert paths.led("ls /fsx /fsx/deep/a --out=/fsx/x") == "ls /real/fsx /other/a --out=/real/fsx/x"
    for same in ("/fsxx", "/mnt/fsx", "$HOME/fsx", "${ROOT}/fsx", "a/fsx", "/fsx-2", "/fsx.d"):
        assert paths.led(same) == same
