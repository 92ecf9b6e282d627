"""The main story through the API on a real Slurm 22.05: submit, checkpoint, XID 79, drain, resume, settle."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.labs import why_no_real_slurm
from tests.portal_stack import Portal, portal
from tests.stack import ROOT

pytestmark = [
    pytest.mark.real_slurm,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(why_no_real_slurm()), reason=why_no_real_slurm() or "there"),
]


class Api:
    """One token's view of a portal."""

    def __init__(self, running: Portal, user: str) -> None:
        self.url = running.url
        self.bearer = running.manage("token", user).splitlines()[-1]
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __call__(self, method: str, path: str, body: Any = None, key: str = "", match: int | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/api/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.bearer}",
                "Content-Type": "application/json",
                **({"Idempotency-Key": key} if key else {}),
                **({"If-Match": f'"{match}"'} if match is not None else {}),
            },
        )
        try:
            with self.opener.open(request, timeout=20) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from error

    def wait(self, path: str, fits: Callable[[Any], bool], seconds: float = 90) -> Any:
        """Poll until the answer fits."""
        deadline = time.monotonic() + seconds
        seen: Any = None
        while time.monotonic() < deadline:
            seen = self("GET", path)
            if fits(seen):
                return seen
            time.sleep(0.5)
        raise AssertionError(f"{path} after {seconds} s: {json.dumps(seen)[:3000]}")


@pytest.fixture
def running() -> Iterator[tuple[Portal, Path]]:
    """A portal beside a real Slurm, in a folder that the job's user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="quarterdeck-lab-"))
    folder.chmod(0o755)
    shutil.copytree(ROOT / "examples", folder / "examples")
    try:
        with portal(folder / "var", slurm="real", within_s=150) as found:
            yield found, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def submit_body(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "team": "nlp",
        "cluster": "lab",
        "name": "charlm",
        "template": "charlm",
        "template_parameters": {"steps": 90, "save_every": 10, "step_seconds": 0.3, "ranks_per_node": 2},
        "environment": {"QD_EXAMPLES": str(folder / "examples"), "CHARLM_HOST": "127.0.0.1"},
        "nodes": 2,
        "gpus_per_node": 8,
        "gpu_type": "h100",
        "tasks_per_node": 2,
        "time_limit_min": 30,
        **changes,
    }


def connect(operator: Api, running: Portal) -> dict[str, Any]:
    lab = json.loads((running.var / "slurm" / "lab.json").read_text())
    sandbox = json.loads(running.sandbox_json.read_text())
    cluster = operator(
        "POST",
        "clusters",
        {
            "name": "lab",
            "api_url": lab["slurmrestd_url"],
            "user_name": lab["user"],
            "token_ref": "file:lab-slurm",
            "partition": lab["partition"],
            "exporter_url": sandbox["dcgm"]["url_template"],
            "working_root": str(running.var / "slurm" / "work"),
        },
    )
    return dict(operator.wait(f"clusters/{cluster['uid']}", lambda c: c["gpus"]["nodes"] == 4))


def test_the_story_on_real_slurm(running: tuple[Portal, Path]) -> None:
    stack, folder = running
    operator, researcher = Api(stack, "operator"), Api(stack, "researcher")
    cluster = connect(operator, stack)
    assert cluster["observed_api_version"] == "v0.0.38"
    assert cluster["observed_version"].startswith("22.05")
    assert cluster["gpus"]["total"] == 32

    job = researcher("POST", "jobs", submit_body(folder), key="k1")
    path = f"jobs/{job['uid']}"
    researcher.wait(path, lambda j: j["phase"] == "RUNNING" and (j["step"] or 0) > 25)
    researcher.wait(f"{path}/checkpoints", lambda c: any(r["state"] == "COMPLETE" for r in c["results"]))
    first = researcher.wait(path, lambda j: len(j["attempts"][0]["runners"]) == 2)["attempts"][0]
    assert {(r["role"], r["node"]) for r in first["runners"]} == set(
        zip(("batch", "node"), first["nodes"], strict=True)
    )
    before = researcher("GET", f"{path}/progress")["results"]
    node = researcher("GET", path)["attempts"][0]["nodes"][1]
    stack.manage("sandbox", "fault", "xid", "--node", node, "--code", "79", "--control-url", stack.control_url)

    finding = operator.wait(f"findings?q={node}&source=xid", lambda f: len(f["results"]) == 1)["results"][0]
    assert finding["title"] == "XID 79 GPU_HAS_FALLEN_OFF_THE_BUS"
    drained = operator.wait(f"nodes?q={node}", lambda n: n["results"][0]["phase"] in ("DRAINING", "DRAINED"))
    assert "XID 79" in drained["results"][0]["drain_reason"]
    attempts = researcher.wait(f"{path}/attempts", lambda a: len(a["results"]) == 2)["results"]
    assert (attempts[0]["phase"], attempts[0]["stop_node"]) == ("NODE_FAILED", node)
    assert attempts[1]["excluded_nodes"] == [node]
    assert attempts[1]["resume_step"] >= 20
    assert attempts[1]["resume_from"].endswith(f"/checkpoints/step-{attempts[1]['resume_step']}")

    done = researcher.wait(path, lambda j: j["phase"] in ("SUCCEEDED", "FAILED"), 120)
    assert done["phase"] == "SUCCEEDED", done
    assert node not in done["attempts"][1]["nodes"]
    points = researcher("GET", f"{path}/progress")["results"]
    second = [p for p in points if p["attempt"] == 2]
    # The runner reports at most two steps a second.
    assert attempts[1]["resume_step"] < second[0]["step"] <= attempts[1]["resume_step"] + 6
    assert second[-1]["step"] == 90
    # The curve goes on: the first loss after the resume is nearer to the last before than to the start.
    start, last, resumed = before[0]["loss"], before[-1]["loss"], second[0]["loss"]
    assert abs(resumed - last) < abs(start - last)

    usd = {name: Decimal(value) for name, value in done["usd"].items()}
    assert usd["held"] == usd["charged"] + usd["released"]
    assert usd["charged"] > 0
    assert "resumed" in json.dumps(researcher("GET", f"{path}/logs?tail=1&limit=500")["chunks"])


def test_cancel_failure_and_refusal_on_real_slurm(running: tuple[Portal, Path]) -> None:
    stack, folder = running
    operator, researcher = Api(stack, "operator"), Api(stack, "researcher")
    connect(operator, stack)
    script = "#!/bin/bash\n#SBATCH --nodes=1\necho started; sleep 300\n"
    body = submit_body(folder, script=script, template_parameters={}, nodes=1)
    body.pop("template")
    long = researcher("POST", "jobs", body, key="long")
    researcher.wait(f"jobs/{long['uid']}", lambda j: j["phase"] == "RUNNING")
    researcher("POST", f"jobs/{long['uid']}/cancel", {})
    gone = researcher.wait(f"jobs/{long['uid']}", lambda j: j["phase"] == "CANCELLED")
    assert gone["sentence"].startswith("Cancelled")

    bad = researcher("POST", "jobs", {**body, "name": "bad", "script": "#!/bin/bash\necho no; exit 7\n"}, key="bad")
    failed = researcher.wait(f"jobs/{bad['uid']}", lambda j: j["phase"] == "FAILED")
    assert failed["exit_code"] == 7
    assert "exit code 7" in failed["sentence"]
    assert len(failed["attempts"]) == 1

    big = researcher("POST", "jobs", {**body, "name": "big", "nodes": 4}, key="big")
    other = researcher("POST", "jobs", {**body, "name": "other", "nodes": 4}, key="other")
    waiting = researcher.wait(
        f"jobs/{other['uid']}", lambda j: j["attempts"][0]["observed_reason"] in ("Resources", "Priority")
    )
    assert waiting["sentence"].startswith("Waiting: number")
    for uid in (big["uid"], other["uid"]):
        researcher("POST", f"jobs/{uid}/cancel", {})
        researcher.wait(f"jobs/{uid}", lambda j: j["phase"] == "CANCELLED")


def test_arrays_actions_and_chains_on_real_slurm(running: tuple[Portal, Path]) -> None:
    stack, folder = running
    operator, researcher = Api(stack, "operator"), Api(stack, "researcher")
    connect(operator, stack)
    script = '#!/bin/bash\necho "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_JOB_ID"\nsleep 3\nexit ${CODE:-0}\n'
    body = {**submit_body(folder), "name": "sweep", "script": script, "nodes": 1, "array": "0-5%2", "environment": {}}
    del body["template"], body["template_parameters"]
    filler = {**body, "name": "filler", "array": "", "nodes": 4, "script": "#!/bin/bash\nsleep 20\n"}
    full = researcher("POST", "jobs", filler, key="a3")
    researcher.wait(f"jobs/{full['uid']}", lambda j: j["phase"] == "RUNNING")
    sweep = researcher("POST", "jobs", body, key="a1")
    assert (sweep["tasks"], sweep["gpus"]) == (6, 16)
    path = f"jobs/{sweep['uid']}"

    # What waits is held, given less time, released; each wish shows what became of it.
    waiting = researcher("POST", "jobs", {**filler, "name": "waiting", "nodes": 1}, key="a4")
    wpath = f"jobs/{waiting['uid']}"
    researcher.wait(wpath, lambda j: j["attempts"][0]["observed_state"] == "PENDING")
    researcher("POST", f"{wpath}/actions", {"kind": "HOLD"}, key="h1")
    researcher.wait(wpath, lambda j: j["attempts"][0]["observed_reason"] == "JobHeldUser")
    assert researcher("GET", wpath)["sentence"].startswith("Held")
    held = Decimal(researcher("GET", wpath)["usd"]["held"])
    researcher("POST", f"{wpath}/actions", {"kind": "TIME_LIMIT", "time_limit_min": 15}, key="h2")
    done = researcher.wait(f"{wpath}/actions", lambda a: a["results"][0]["phase"] not in ("ASKED", "SENT"))
    assert [a["phase"] for a in done["results"]] == ["DONE", "DONE"]
    shorter = researcher("GET", wpath)
    assert shorter["time_limit_min"] == 15
    assert abs(Decimal(shorter["usd"]["released"]) - held / 2) < Decimal("0.01")
    researcher("POST", f"{wpath}/actions", {"kind": "RELEASE"}, key="h3")

    researcher.wait(f"jobs/{full['uid']}", lambda j: j["phase"] == "SUCCEEDED")
    after = researcher("POST", "jobs", {**body, "name": "after", "array": "", "dependency": "afterok:sweep"}, key="a2")
    tasks = researcher.wait(f"{path}/tasks", lambda t: all(r["state"] == "COMPLETED" for r in t["results"]), 150)
    assert [t["number"] for t in tasks["results"]] == list(range(6))
    assert all(t["nodes"] and t["exit_code"] == 0 for t in tasks["results"])
    ended = researcher.wait(path, lambda j: j["phase"] == "SUCCEEDED")
    assert Decimal(0) < Decimal(ended["usd"]["charged"]) < Decimal(ended["usd"]["held"])
    assert ended["attempts"][0]["scheduler_id"]
    text = "".join(c["text"] for c in researcher("GET", f"{path}/logs")["chunks"])
    assert all(f"task {number} of" in text for number in range(6))
    researcher.wait(f"jobs/{after['uid']}", lambda j: j["phase"] in ("QUEUED", "RUNNING", "SUCCEEDED"))
    researcher.wait(f"jobs/{after['uid']}", lambda j: j["phase"] == "SUCCEEDED", 120)
    researcher.wait(wpath, lambda j: j["phase"] == "SUCCEEDED", 120)
