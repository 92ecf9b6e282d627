"""The main story on an EKS cluster that the portal makes: node group, job, checkpoint, lost node, resume, settled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.flows.test_real_slurm import Api
from tests.portal_stack import Portal, portal
from tests.stack import ROOT

pytestmark = pytest.mark.timeout(500)

SCRIPT = """#!/bin/bash
#SBATCH --job-name=charlm
#SBATCH --nodes=2
#SBATCH --gpus-per-node=h100:8
cd "$QD_WORKING_DIRECTORY"
exec python3 "$QD_EXAMPLES/charlm/train.py" --steps 120 --save-every 10 --step-seconds 0.3
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Portal]:
    with portal(tmp_path / "var") as found:
        yield found


def make_cluster(operator: Api, sandbox: dict[str, Any]) -> str:
    """An EKS cluster with a group of three p5, in which team nlp owns two machines; its uid."""
    aws = sandbox["aws"]
    account = {"name": "sandbox", "region": aws["region"], "endpoint_url": aws["endpoint_url"]}
    operator("POST", "accounts", {**account, "credentials_ref": "file:sandbox-aws"})
    operator.wait("accounts", lambda a: a["results"][0]["phase"] == "CONNECTED")
    role = f"arn:aws:iam::{aws['account_id']}:role"
    group = {
        "name": "train",
        "instance_type": "p5.48xlarge",
        "nodes": 3,
        "subnet_ids": [aws["subnet_id"]],
        "security_group_ids": [aws["security_group_id"]],
        "role_arn": f"{role}/nodes",
    }
    body = {
        "kind": "eks",
        "name": "pods",
        "account": "sandbox",
        "version": "1.34",
        "subnet_ids": [aws["subnet_id"], aws["second_subnet_id"]],
        "role_arn": f"{role}/cluster",
        "admin_arns": [f"{role}/admins"],
        "groups": [group],
    }
    made = operator("POST", "managed-clusters", body, key="eks")
    operator.wait(f"managed-clusters/{made['uid']}", lambda c: c["phase"] == "READY", 180)
    settings = {
        "auth": "eks",
        "scheduler": "kueue",
        "default_image": "registry.example/train:1",
        "mounts": [{"claim": "shared", "path": "/fsx"}],
        "limits_mode": "enforce",
        "exporter_url": sandbox["dcgm"]["url_template"],
    }
    operator("PUT", f"kubernetes-clusters/{made['uid']}", settings)
    share = {"team": "nlp", "instance_type": "p5.48xlarge", "gpus": 16}
    operator("POST", f"kubernetes-clusters/{made['uid']}/shares", share, key="share")
    operator.wait(f"clusters/{made['uid']}", lambda c: c["gpus"]["total"] == 24, 120)
    kept = operator.wait(
        f"kubernetes-clusters/{made['uid']}",
        lambda k: k["queues_written_at"] and not k["drift"] and any(q["team"] == "nlp" for q in k["observed_queues"]),
        120,
    )
    assert kept["observed"]["kueue"] in ("v1beta1", "v1beta2")
    return str(made["uid"])


def job_body(cluster: str, **changes: Any) -> dict[str, Any]:
    return {
        "team": "nlp",
        "cluster": cluster,
        "name": "charlm",
        "script": SCRIPT,
        "environment": {"QD_EXAMPLES": str(ROOT / "examples")},
        "nodes": 2,
        "gpus_per_node": 8,
        "gpu_type": "h100",
        "time_limit_min": 30,
        **changes,
    }


def test_the_story_on_eks(running: Portal) -> None:
    operator, researcher = Api(running, "operator"), Api(running, "researcher")
    sandbox = json.loads(running.sandbox_json.read_text())
    cluster = make_cluster(operator, sandbox)

    # What would be sent, before it is: the objects, the hold, and which cluster to take.
    preview = researcher("POST", "jobs/preview", job_body(cluster))
    assert preview["problems"] == []
    assert Decimal(preview["usd_held"]) > 0

    job = researcher("POST", "jobs", job_body(cluster), key="job")
    path = f"jobs/{job['uid']}"
    running_now = researcher.wait(path, lambda j: j["phase"] == "RUNNING" and (j["step"] or 0) > 25, 120)
    first = running_now["attempts"][0]
    assert len(first["nodes"]) == 2
    assert first["scheduler_id"].startswith("nlp/")
    researcher.wait(f"{path}/checkpoints", lambda c: any(r["state"] == "COMPLETE" for r in c["results"]))

    # A node dies: its machine is gone from one moment to the next.
    lost = first["nodes"][1]
    running.manage("sandbox", "fault", "node-loss", "--node", lost, "--control-url", running.control_url)
    attempts = researcher.wait(f"{path}/attempts", lambda a: len(a["results"]) == 2, 150)["results"]
    assert (attempts[0]["phase"], attempts[0]["stop_node"]) == ("NODE_FAILED", lost), attempts[0]
    assert lost in attempts[1]["excluded_nodes"]
    assert attempts[1]["resume_step"] >= 20

    done = researcher.wait(path, lambda j: j["phase"] in ("SUCCEEDED", "FAILED", "CANCELLED"), 180)
    assert done["phase"] == "SUCCEEDED", done
    assert lost not in done["attempts"][1]["nodes"]
    points = researcher("GET", f"{path}/progress")["results"]
    assert min(p["step"] for p in points if p["attempt"] == 2) > attempts[1]["resume_step"] - 5

    # Settled: what was held was charged or given back, and the team's GPUs are free again.
    usd = {name: Decimal(value) for name, value in done["usd"].items()}
    assert usd["held"] == usd["charged"] + usd["released"]
    assert usd["charged"] > 0
    assert "resumed" in json.dumps(researcher("GET", f"{path}/logs?tail=1&limit=500")["chunks"])
    told = json.dumps(researcher("GET", f"{path}/events")["results"])
    assert lost in told
    operator.wait(f"clusters/{cluster}", lambda c: c["gpus"]["used"] == 0)
