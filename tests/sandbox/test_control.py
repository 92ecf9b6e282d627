"""The control server and the command line, against a stack in this process with a Slurm that only remembers."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.aws import AwsOptions, AwsServer
from sandbox.cli import main
from sandbox.control.server import ControlServer
from sandbox.control.stack import Stack
from sandbox.serving import PortUnavailable, listen
from sandbox.world import World


class RememberingSlurm:
    """Stands where the fake Slurm would and writes down what it is told."""

    def __init__(self) -> None:
        self.killed: list[str] = []
        self.checkpoint: str | None = None
        self.running = False

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def jobs_snapshot(self) -> list[dict[str, Any]]:
        return [
            {"job_id": 7, "name": "<b>bold</b>", "state": "RUNNING", "reason": "None", "nodes": ["ip-10-0-0-4"]},
            {"job_id": 8, "name": "next", "state": "PENDING", "reason": "Resources", "nodes": []},
        ]

    def tear_newest_checkpoint(self, job_id: int | None = None) -> str | None:
        return self.checkpoint

    def kill_tasks(self, node: str) -> int:
        self.killed.append(node)
        return 1


@pytest.fixture
def slurm() -> RememberingSlurm:
    return RememberingSlurm()


@pytest.fixture
def stack(tmp_path: Path, slurm: RememberingSlurm) -> Iterator[Stack]:
    world = World()
    aws = AwsServer(world, "127.0.0.1", 0, tmp_path, AwsOptions())
    stack = Stack(world, aws, slurm, None)
    stack.start()
    yield stack
    stack.stop()


@pytest.fixture
def control(stack: Stack) -> Iterator[ControlServer]:
    control = ControlServer(stack, "127.0.0.1", 0)
    control.start()
    yield control
    control.stop()


@pytest.fixture
def node(stack: Stack) -> str:
    stack.world.node_join(
        name="ip-10-0-0-4",
        instance_id="i-1",
        instance_type="p5.48xlarge",
        cluster="alpha",
        partition="gpu",
        gpu_type="h100",
        gpu_count=8,
        cpus=192,
        memory_mib=2_097_152,
    )
    return "ip-10-0-0-4"


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def ask(
    control: ControlServer, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, dict[str, str]]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect)
    sent = dict(headers or {})
    if isinstance(body, dict) and "Content-Type" not in sent:
        sent["Content-Type"] = "application/json"
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(control.url + path, data=data, method=method, headers=sent)
    try:
        with opener.open(request, timeout=10) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode(), dict(exc.headers)


def form(**values: str) -> bytes:
    return urllib.parse.urlencode(values).encode()


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class TestApi:
    def test_state_and_census(self, control: ControlServer, node: str) -> None:
        status, text, _ = ask(control, "GET", "/api/state")
        assert status == 200
        state = json.loads(text)
        assert [n["name"] for n in state["nodes"]] == [node]
        assert len(state["nodes"][0]["gpus"]) == 8
        assert [job["job_id"] for job in state["jobs"]] == [8, 7]
        census = json.loads(ask(control, "GET", "/api/census")[1])
        assert (census["instances"], census["network_interfaces"]) == (0, 0)
        assert census["subnet_id"] == "subnet-0a0000000000000a1"

    def test_xid(self, control: ControlServer, stack: Stack, node: str, slurm: RememberingSlurm) -> None:
        status, text, _ = ask(control, "POST", "/api/faults", {"kind": "xid", "node": node, "code": 79, "gpu": 3})
        assert status == 201
        assert json.loads(text)["sentence"] == f"XID 79 on GPU 3 of {node}."
        assert not stack.world.nodes[node].gpus[3].on_bus
        assert slurm.killed == []
        ask(control, "POST", "/api/faults", {"kind": "xid", "node": node, "code": 94, "kill": True})
        assert slurm.killed == [node]

    def test_lasting_fault_and_its_end(self, control: ControlServer, stack: Stack) -> None:
        body = {
            "kind": "server-error",
            "service": "aws",
            "shape": "lost-reply",
            "times": 2,
            "operation": "RunInstances",
        }
        status, text, _ = ask(control, "POST", "/api/faults", body)
        assert status == 201
        uid = json.loads(text)["uid"]
        (fault,) = json.loads(ask(control, "GET", "/api/faults")[1])["faults"]
        assert (fault["uid"], fault["times_left"], fault["seconds_left"]) == (uid, 2, None)
        assert stack.world.fault_use("server-error", service="slurm") is None
        assert stack.world.fault_use("server-error", service="aws", operation="RunInstances") is not None
        assert ask(control, "DELETE", f"/api/faults/{uid}")[0] == 200
        assert ask(control, "DELETE", f"/api/faults/{uid}")[0] == 404
        assert json.loads(ask(control, "GET", "/api/faults")[1])["faults"] == []

    def test_a_fault_ends_by_time(self, control: ControlServer, stack: Stack) -> None:
        ask(control, "POST", "/api/faults", {"kind": "throttling", "service": "slurm", "seconds": 0.01})
        (fault,) = stack.world.faults.values()
        assert fault.until is not None
        fault.until -= 1
        assert json.loads(ask(control, "GET", "/api/faults")[1])["faults"] == []

    @pytest.mark.parametrize(
        ("body", "status", "words"),
        [
            ({"kind": "earthquake"}, 400, "earthquake"),
            ({}, 400, "kind"),
            ({"kind": "xid", "node": "ip-10-0-0-4"}, 400, "code"),
            ({"kind": "xid", "node": "ip-10-0-0-4", "code": "x"}, 400, "whole number"),
            ({"kind": "xid", "node": "ip-10-0-0-4", "code": 79, "gpu": 8}, 404, "no GPU 8"),
            ({"kind": "xid", "node": "ip-10-9-9-9", "code": 79}, 404, "nodes: ip-10-0-0-4"),
            ({"kind": "xid", "code": 79}, 400, "node"),
            ({"kind": "node-loss", "node": "../etc"}, 400, "not a name"),
            ({"kind": "node-loss", "node": "ip-10-0-0-4", "delay": 3}, 400, "delay"),
            ({"kind": "slow-api", "service": "gcp"}, 400, "gcp"),
            ({"kind": "slow-api", "service": "aws", "delay": 0}, 400, "delay"),
            ({"kind": "slow-api", "service": "aws", "delay": "nan"}, 400, "delay"),
            ({"kind": "server-error", "service": "aws", "shape": "round"}, 400, "round"),
            ({"kind": "no-capacity", "times": 0}, 400, "times"),
            ({"kind": "torn-checkpoint"}, 404, "checkpoint"),
        ],
    )
    def test_bad_faults(
        self, control: ControlServer, stack: Stack, node: str, body: dict[str, Any], status: int, words: str
    ) -> None:
        got, text, _ = ask(control, "POST", "/api/faults", body)
        assert got == status
        assert words in json.loads(text)["error"]
        assert stack.world.faults == {}

    @pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff"])
    def test_bad_bodies(self, control: ControlServer, body: bytes) -> None:
        status, text, _ = ask(control, "POST", "/api/faults", body, {"Content-Type": "application/json"})
        assert status == 400
        assert "JSON" in json.loads(text)["error"]

    def test_long_body(self, control: ControlServer) -> None:
        status, _, _ = ask(control, "POST", "/api/faults", b"x" * 70_000, {"Content-Type": "application/json"})
        assert status == 413

    def test_unknown_path(self, control: ControlServer) -> None:
        assert ask(control, "GET", "/api/nothing")[0] == 404
        assert ask(control, "GET", "/etc/passwd")[0] == 404


class TestStrangers:
    def test_other_host_names_are_refused(self, control: ControlServer) -> None:
        for host in ("evil.example", f"evil.example:{control.port}", "127.0.0.1", "127.0.0.1:1"):
            assert ask(control, "GET", "/api/state", headers={"Host": host})[0] == 421, host
        assert ask(control, "GET", "/api/state", headers={"Host": f"localhost:{control.port}"})[0] == 200

    def test_further_names_can_be_allowed(self, stack: Stack) -> None:
        control = ControlServer(stack, "127.0.0.1", 0, ["sandbox"])
        control.start()
        try:
            assert ask(control, "GET", "/api/census", headers={"Host": f"sandbox:{control.port}"})[0] == 200
            assert ask(control, "GET", "/api/census", headers={"Host": f"other:{control.port}"})[0] == 421
        finally:
            control.stop()

    @pytest.mark.parametrize(
        "headers",
        [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
    )
    @pytest.mark.parametrize(
        ("method", "path"), [("POST", "/api/faults"), ("POST", "/faults"), ("DELETE", "/api/faults/all")]
    )
    def test_other_sites_are_refused(
        self, control: ControlServer, stack: Stack, headers: dict[str, str], method: str, path: str
    ) -> None:
        body = form(kind="throttling", service="aws") if method == "POST" else None
        assert ask(control, method, path, body, {**FORM, **headers})[0] == 403
        assert stack.world.faults == {}

    def test_a_plain_form_cannot_use_the_api(self, control: ControlServer, stack: Stack) -> None:
        body = form(kind="throttling", service="aws")
        assert ask(control, "POST", "/api/faults", body, FORM)[0] == 415
        assert stack.world.faults == {}


class TestPage:
    def test_shows_everything_and_escapes(self, control: ControlServer, stack: Stack, node: str) -> None:
        stack.world.xid(node, 79, 2)
        stack.world.fault_add("no-capacity", left=3, instance_type="p5.48xlarge")
        status, text, headers = ask(control, "GET", "/")
        assert status == 200
        assert node in text
        assert text.count('class="gpu ') == 8
        assert text.count("gpu-bad") == 1
        assert "off the bus" in text
        assert "3 more times" in text
        assert "&lt;b&gt;bold&lt;/b&gt;" in text
        assert "<b>bold" not in text
        assert "script-src 'self'" in headers["Content-Security-Policy"]

    def test_has_nothing_inline_and_nothing_from_elsewhere(self, control: ControlServer, node: str) -> None:
        text = ask(control, "GET", "/")[1]
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?! src=)", text)
        assert "http://" not in text
        assert "https://" not in text
        for path, kind in (("/style.css", "text/css"), ("/live.js", "text/javascript")):
            status, body, headers = ask(control, "GET", path)
            assert status == 200
            assert headers["Content-Type"].startswith(kind)
            assert "http" not in body

    def test_forms_post_and_redirect(self, control: ControlServer, stack: Stack) -> None:
        body = form(kind="slow-api", service="aws", operation="", delay="2", times="", seconds="60")
        status, _, headers = ask(control, "POST", "/faults", body, {**FORM, "Origin": control.url})
        assert (status, headers["Location"]) == (303, "/")
        (fault,) = stack.world.faults.values()
        assert fault.parameters["delay"] == 2.0
        assert "answers 2 s late" in ask(control, "GET", "/fragment")[1]
        assert ask(control, "POST", f"/faults/{fault.uid}/clear", b"", FORM)[0] == 303
        assert stack.world.faults == {}

    def test_a_bad_form_shows_the_reason(self, control: ControlServer) -> None:
        status, text, _ = ask(control, "POST", "/faults", form(kind="xid", node="<i>", code="79"), FORM)
        assert status == 400
        assert 'role="alert"' in text
        assert "<i>" not in text


class TestCommandLine:
    @pytest.fixture(autouse=True)
    def _address(self, control: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("QD_SANDBOX_CONTROL_URL", control.url)

    def test_all_faults(
        self, stack: Stack, node: str, slurm: RememberingSlurm, capsys: pytest.CaptureFixture[str]
    ) -> None:
        slurm.checkpoint = "/shared/step-20"
        commands = [
            ["fault", "xid", "--node", node, "--code", "79", "--gpu", "1", "--kill"],
            ["fault", "no-capacity", "--times", "2", "--type", "p5.48xlarge"],
            ["fault", "slow-api", "--service", "slurm", "--delay", "5", "--seconds", "60"],
            ["fault", "throttling", "--service", "aws"],
            ["fault", "server-error", "--service", "aws", "--shape", "lost-reply"],
            ["fault", "torn-checkpoint"],
            ["fault", "node-loss", "--node", node],
        ]
        for command in commands:
            assert main(command) == 0, command
        said = capsys.readouterr().out
        assert f"XID 79 on GPU 1 of {node}, its tasks killed." in said
        assert "Tore /shared/step-20." in said
        assert not stack.world.nodes[node].up
        assert {fault.kind for fault in stack.world.faults.values()} == {
            "no-capacity",
            "slow-api",
            "throttling",
            "server-error",
        }
        assert main(["faults"]) == 0
        listed = capsys.readouterr().out
        assert "instance_type=p5.48xlarge, 2 times left" in listed
        assert main(["clear", "all"]) == 0
        assert "Cleared 4 faults." in capsys.readouterr().out
        assert main(["faults"]) == 0
        assert "No fault is in force." in capsys.readouterr().out

    def test_census(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["census", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["launch_templates"] == 0
        assert main(["census"]) == 0
        assert re.search(r"^launch templates +0$", capsys.readouterr().out, re.MULTILINE)

    def test_refusals_are_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["fault", "xid", "--node", "nobody", "--code", "79"]) == 1
        assert capsys.readouterr().err == "sandbox: node 'nobody' has not joined; nodes: none yet\n"
        assert main(["clear", "nothing"]) == 1
        assert capsys.readouterr().err.count("\n") == 1

    def test_nobody_answers(self, capsys: pytest.CaptureFixture[str]) -> None:
        free = listen("nobody", "127.0.0.1", 0)
        port = free.getsockname()[1]
        free.close()
        assert main(["census", "--control-url", f"http://127.0.0.1:{port}"]) == 1
        assert f"no sandbox answers at http://127.0.0.1:{port}" in capsys.readouterr().err
        assert main(["census", "--control-url", "file:///etc/passwd"]) == 1
        assert "not an address" in capsys.readouterr().err

    def test_another_server_answers(self, stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["census", "--control-url", stack.aws.url]) == 1
        assert "is it the sandbox?" in capsys.readouterr().err


def test_a_stack_that_cannot_start_stops_what_started(tmp_path: Path, slurm: RememberingSlurm) -> None:
    class Broken:
        def start(self) -> None:
            raise OSError("no")

        def stop(self) -> None:
            raise AssertionError("never started")

    world = World()
    stack = Stack(world, AwsServer(world, "127.0.0.1", 0, tmp_path), slurm, Broken())
    with pytest.raises(OSError, match="no"):
        stack.start()
    assert not slurm.running


def test_a_busy_port_is_named() -> None:
    with listen("first", "127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortUnavailable, match=rf"port {port} on 127\.0\.0\.1 \(second\) is already in use"):
            listen("second", "127.0.0.1", port)
