"""The Slurm client against answers no Slurm should give: broken reads, doubts, tokens, refusals, missing verbs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess
import time
from datetime import UTC, datetime
from typing import Any

import httpx2
import jwt
import pytest

from tests.providers.slurm_answers import Server, request
from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import SlurmScheduler, decode, encode, expiry_of, mint_jwt
from worker.providers.slurm import errors as slurm_errors

# --- broken answers ------------------------------------------------------------------------------

BROKEN: list[tuple[str, httpx2.Response, type[e.ProviderError]]] = [
    ("html", httpx2.Response(200, html="<html><body>Sign in</body></html>"), e.Unavailable),
    ("html 502", httpx2.Response(502, html="<html>Bad gateway</html>"), e.Unavailable),
    ("nothing", httpx2.Response(200, content=b""), e.Unavailable),
    ("truncated", httpx2.Response(200, content=b'{"jobs": [{"job_id": 1'), e.Unavailable),
    ("a list", httpx2.Response(200, json=[1, 2]), e.Unavailable),
    ("null", httpx2.Response(200, json=None), e.Unavailable),
    ("no jobs", httpx2.Response(200, json={"errors": []}), e.Unavailable),
    ("jobs of numbers", httpx2.Response(200, json={"jobs": [1]}), e.Unavailable),
    ("job without state", httpx2.Response(200, json={"jobs": [{"job_id": 1}]}), e.Unavailable),
    (
        "job with a bomb of nodes",
        httpx2.Response(200, json={"jobs": [{"job_id": 1, "job_state": ["RUNNING"], "nodes": "a[1-999999999]"}]}),
        e.Unavailable,
    ),
    ("deep", httpx2.Response(200, content=b"[" * 200_000), e.Unavailable),
    ("invalid utf-8", httpx2.Response(200, content=b'{"a": "\xff"'), e.Unavailable),
    ("503", httpx2.Response(503, text="busy"), e.Unavailable),
    ("500 without reason", httpx2.Response(500, json={"errors": []}), e.Unavailable),
    ("429", httpx2.Response(429, text="slow down"), e.Throttled),
    ("401", httpx2.Response(401, text="Authentication failure"), e.AccessDenied),
    ("403 html", httpx2.Response(403, html="<html>no</html>"), e.AccessDenied),
    ("302", httpx2.Response(302, headers={"location": "http://elsewhere.test/"}), e.Unavailable),
    (
        "errors inside 200",
        httpx2.Response(200, json={"jobs": [], "errors": [{"error_number": 1800, "error": "Unable to contact"}]}),
        e.Unavailable,
    ),
    (
        "denied inside 200",
        httpx2.Response(200, json={"jobs": [], "errors": [{"error_number": 1007, "error": "Protocol auth"}]}),
        e.AccessDenied,
    ),
    ("errors of words", httpx2.Response(200, json={"jobs": [], "errors": ["something"]}), e.Unavailable),
]


@pytest.mark.parametrize(("answer", "kind"), [one[1:] for one in BROKEN], ids=[one[0] for one in BROKEN])
def test_broken_reads_are_typed(answer: httpx2.Response, kind: type[e.ProviderError]) -> None:
    scheduler = Server(jobs=answer, diag={"statistics": {"req_time": 1}}).scheduler()
    with pytest.raises(e.ProviderError) as caught:
        scheduler.queue()
    assert type(caught.value) is kind, caught.value
    assert caught.value.source == "slurm"
    assert caught.value.code
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "answer",
    [one[1] for one in BROKEN if one[2] is e.Unavailable],
    ids=[one[0] for one in BROKEN if one[2] is e.Unavailable],
)
def test_broken_submit_answers_leave_a_doubt_and_are_not_repeated(answer: httpx2.Response) -> None:
    server = Server(**{"job/submit": answer})
    with pytest.raises(e.Unavailable):
        server.scheduler().submit(request())
    assert server.asked == [("POST", "job/submit")]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (httpx2.ConnectError("refused"), "connect"),
        (httpx2.ReadTimeout("slow"), "timeout"),
        (httpx2.ConnectTimeout("slow"), "timeout"),
        (httpx2.RemoteProtocolError("peer closed connection"), "connection"),
        (httpx2.ReadError("reset"), "connection"),
        (httpx2.DecodingError("bad gzip"), "connection"),
    ],
)
def test_broken_connections_are_unavailable(failure: Exception, code: str) -> None:
    def fail(_: httpx2.Request) -> httpx2.Response:
        raise failure

    server = Server(nodes=fail, **{"job/submit": fail})
    scheduler = server.scheduler()
    for call in (scheduler.nodes, lambda: scheduler.submit(request())):
        with pytest.raises(e.Unavailable) as caught:
            call()
        assert caught.value.code == code
    assert server.asked.count(("POST", "job/submit")) == 1


def test_an_answer_that_drips_ends_at_the_deadline() -> None:
    class Drip(httpx2.SyncByteStream):
        def __iter__(self) -> Any:
            for _ in range(100):
                time.sleep(0.1)
                yield b" "

    scheduler = Server(nodes=lambda _: httpx2.Response(200, stream=Drip())).scheduler(timeout_s=2.0)
    began = time.monotonic()
    with pytest.raises(e.Unavailable, match="within 2 s"):
        scheduler.nodes()
    assert time.monotonic() - began < 4


# --- versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [f"v0.0.{number}" for number in range(38, 46)])
def test_the_version_both_speak_is_found_once(version: str) -> None:
    server = Server(version, nodes={"nodes": []})
    scheduler = server.scheduler()
    scheduler.nodes()
    asked = len(server.requests)
    scheduler.nodes()
    assert len(server.requests) == asked + 1
    assert server.requests[-1].url.path == f"/slurm/{version}/nodes"


def test_unknown_versions_are_said() -> None:
    with pytest.raises(e.Unsupported, match=r"v0\.0\.38 to v0\.0\.45"):
        Server("v0.0.99").scheduler().nodes()


def test_an_html_404_is_no_missing_version() -> None:
    scheduler = SlurmScheduler(
        v.SchedulerAccess("http://slurm.test", "owner", "a.b.c"),
        transport=httpx2.MockTransport(lambda _: httpx2.Response(404, html="<html>nginx</html>")),
    )
    with pytest.raises(e.Unavailable):
        scheduler.nodes()


# --- tokens --------------------------------------------------------------------------------------


def test_minted_tokens_are_what_slurm_takes() -> None:
    key = b"k" * 32
    token = mint_jwt(key, "owner", 60)
    claims = jwt.decode(token, key, algorithms=["HS256"])
    assert claims["sun"] == "owner"
    assert claims["exp"] - claims["iat"] == 60
    head, body, signature = token.split(".")
    mine = hmac.new(key, f"{head}.{body}".encode(), hashlib.sha256).digest()
    assert base64.urlsafe_b64decode(signature + "==") == mine
    assert expiry_of(token) == datetime.fromtimestamp(claims["exp"], tz=UTC)


@pytest.mark.parametrize("bad", [(b"", "owner", 60), (b"k", "", 60), (b"k", "owner", 0)])
def test_tokens_need_key_user_and_time(bad: tuple[bytes, str, int]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        mint_jwt(*bad)


@pytest.mark.parametrize("text", ["", "a", "a.b", "a.b.c", "a.e30.c", "a." + "e" * 9 + ".c", "a.bnVsbA.c"])
def test_expiry_of_nonsense_is_unknown(text: str) -> None:
    assert expiry_of(text) is None


def test_the_token_is_sent_and_never_shown() -> None:
    server = Server(nodes={"nodes": []})
    scheduler = server.scheduler(token=" secret.token.here \n")
    scheduler.nodes()
    assert server.requests[-1].headers["x-slurm-user-token"] == "secret.token.here"
    assert server.requests[-1].headers["x-slurm-user-name"] == "owner"
    denied = Server(nodes=httpx2.Response(401, text="no")).scheduler(token="secret.token.here")
    with pytest.raises(e.AccessDenied) as caught:
        denied.nodes()
    assert "secret" not in str(caught.value) + repr(caught.value)
    assert "secret" not in repr(v.SchedulerAccess("http://x", "owner", "secret.token.here"))


def test_a_token_of_two_lines_is_refused_before_it_is_sent() -> None:
    with pytest.raises(e.AccessDenied):
        Server().scheduler(token="two\nlines")


# --- v0.0.38's answer that means two things -------------------------------------------------------


def unspecified(status: int = 500) -> httpx2.Response:
    return httpx2.Response(status, json={"errors": [{"error": "Unspecified error", "errno": -1}]})


def kill_answer(code: int) -> httpx2.Response:
    return httpx2.Response(500, json={"errors": [{"error_number": code, "error": "x", "description": "y"}]})


@pytest.mark.parametrize(
    ("code", "kind"), [(5005, e.AccessDenied), (1800, e.Unavailable), (2017, e.Unavailable), (5004, e.Unavailable)]
)
def test_old_reads_without_reason_are_explained_by_a_harmless_cancel(code: int, kind: type[e.ProviderError]) -> None:
    server = Server("v0.0.38", nodes=unspecified(), **{"DELETE job/4000000000": kill_answer(code)})
    with pytest.raises(kind):
        server.scheduler().nodes()
    assert server.asked == [("GET", "nodes"), ("DELETE", "job/4000000000")]


def test_new_reads_without_reason_ask_no_more() -> None:
    server = Server("v0.0.42", nodes=unspecified())
    with pytest.raises(e.Unavailable):
        server.scheduler().nodes()
    assert server.asked == [("GET", "nodes")]


# --- submits -------------------------------------------------------------------------------------


def test_the_old_dialect() -> None:
    server = Server("v0.0.38", **{"job/submit": {"job_id": 7, "errors": []}})
    receipt = server.scheduler().submit(request(excluded_nodes=("p5-1", "p5-2"), account="nlp", qos="high"))
    assert receipt == v.SubmitReceipt("7")
    assert server.bodies[-1] == {
        "script": "#!/bin/bash\ntrue\n",
        "job": {
            "name": "n",
            "comment": "uid",
            "partition": "gpu",
            "nodes": 2,
            "tasks": 4,
            "tasks_per_node": 2,
            "cpus_per_task": 4,
            "memory_per_node": 1000,
            "time_limit": 30,
            "gres": "gpu:h100:8",
            "current_working_directory": "/work",
            "environment": {
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "SLURM_SUBMIT_DIR": "/work",
                "SLURM_NTASKS_PER_NODE": "2",
                "SLURM_CPUS_PER_TASK": "4",
                "SRUN_CPUS_PER_TASK": "4",
                "A": "1",
            },
            "account": "nlp",
            "qos": "high",
            "no_requeue": True,
            "exclude_nodes": "p5-1,p5-2",
        },
    }


def test_the_new_dialect() -> None:
    server = Server("v0.0.44", **{"job/submit": {"job_id": {"set": True, "infinite": False, "number": 7}}})
    receipt = server.scheduler().submit(request(excluded_nodes=("p5-1",), gpu_type="", stdout_path="/shared/%j"))
    assert receipt.scheduler_id == "7"
    job = server.bodies[-1]["job"]
    assert job["nodes"] == "2"
    assert job["tres_per_node"] == "gres/gpu:8"
    assert job["excluded_nodes"] == ["p5-1"]
    assert job["time_limit"] == {"set": True, "infinite": False, "number": 30}
    assert job["requeue"] is False
    assert "A=1" in job["environment"]
    assert job["standard_output"] == "/shared/%j"
    assert "gres" not in job


def test_a_job_made_with_a_complaint_is_a_job() -> None:
    complaint = {"error_code": 2068, "error": "Required node not available (down, drained or reserved)"}
    server = Server("v0.0.38", **{"job/submit": {"job_id": 9, "errors": [complaint], "job_submit_user_msg": "hello"}})
    receipt = server.scheduler().submit(request())
    assert receipt.scheduler_id == "9"
    assert receipt.warnings == ("Required node not available (down, drained or reserved)", "hello")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"script": "echo"}, "interpreter"),
        ({"script": "#!/bin/bash\n\0"}, "NUL"),
        ({"script": "#!/bin/bash\n" + "x" * (4 * 1024 * 1024)}, "4 MiB"),
        ({"working_directory": "here"}, "absolute"),
        ({"nodes": 0}, "nodes"),
        ({"tasks_per_node": 0}, "tasks_per_node"),
        ({"time_limit_min": 0}, "time_limit_min"),
        ({"gpus_per_node": -1}, "gpus_per_node"),
        ({"environment": {"A=B": "x"}}, "A=B"),
        ({"environment": {"A": "x\0"}}, "environment"),
        ({"excluded_nodes": ("a b",)}, "a b"),
    ],
)
def test_what_no_slurm_would_run_is_refused_before_it_is_sent(change: dict[str, Any], word: str) -> None:
    server = Server(**{"job/submit": {"job_id": 1}})
    with pytest.raises(e.InvalidRequest, match=word):
        server.scheduler().submit(request(**change))
    assert server.asked == []


# --- verbs that need scontrol ------------------------------------------------------------------------


def test_without_scontrol_the_command_is_said() -> None:
    old = Server("v0.0.38").scheduler()
    with pytest.raises(e.Unsupported, match=r"scontrol update nodename=p5-1 state=DRAIN 'reason=GPU 3: XID 79'"):
        old.node_drain("p5-1", "GPU 3:\nXID 79")
    with pytest.raises(e.Unsupported, match=r"scontrol update nodename=p5-1 state=RESUME"):
        old.node_resume("p5-1")
    with pytest.raises(e.Unsupported, match=r"scontrol requeue 12"):
        Server("v0.0.42").scheduler().requeue("12")


def test_a_user_without_rights_drains_by_scontrol() -> None:
    denied = httpx2.Response(500, json={"errors": [{"error_number": 2010, "error": "Invalid user id"}]})
    routes = {"POST node/p5-1": denied}
    Server(**routes).scheduler(scontrol=["/bin/true"]).node_drain("p5-1", "why")
    with pytest.raises(e.AccessDenied):
        Server(**routes).scheduler().node_drain("p5-1", "why")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("slurm_update error: Invalid node name specified", e.NotFound),
        ("slurm_update error: Access/permission denied", e.AccessDenied),
        ("slurm_update error: Unable to contact slurm controller (connect failure)", e.Unavailable),
        ("something new", e.Unknown),
    ],
)
def test_scontrols_words_are_typed(words: str, kind: type[e.ProviderError]) -> None:
    command = ["/bin/sh", "-c", f"echo '{words}' >&2; exit 1", "scontrol"]
    with pytest.raises(kind):
        Server("v0.0.38").scheduler(scontrol=command).node_drain("p5-1", "why")


def test_a_scontrol_that_hangs_or_is_missing_is_unavailable() -> None:
    with pytest.raises(e.Unavailable, match="within 2 s"):
        Server("v0.0.38").scheduler(scontrol=["/bin/sh", "-c", "exec sleep 30"], timeout_s=2.0).requeue("12")
    with pytest.raises(e.Unavailable, match="cannot run"):
        Server("v0.0.38").scheduler(scontrol=["/nonexistent/scontrol"]).requeue("12")


def test_resuming_a_node_that_is_not_drained_is_fine() -> None:
    refused = httpx2.Response(500, json={"errors": [{"error_number": 2028, "error": "Invalid node state specified"}]})
    Server(**{"POST node/p5-1": refused}).scheduler().node_resume("p5-1")


def test_a_cancel_refused_inside_200() -> None:
    def answer(code: int) -> dict[str, Any]:
        return {"status": [{"error": {"string": "no", "code": code}, "step_id": "12"}], "errors": []}

    Server(**{"DELETE job/12": answer(2021)}).scheduler().cancel("12")
    Server(**{"DELETE job/12": answer(0)}).scheduler().cancel("12")
    for code, kind in ((2017, e.NotFound), (2002, e.AccessDenied)):
        with pytest.raises(kind):
            Server(**{"DELETE job/12": answer(code)}).scheduler().cancel("12")


# --- nodes and partitions ------------------------------------------------------------------------------


def test_nodes_in_both_dialects() -> None:
    old = {"name": "p5-1", "state": "mixed", "state_flags": ["DRAIN"], "gres": "gpu:h100:8(S:0-1)", "cpus": 192}
    new = {"name": "p5-1", "state": ["DOWN", "DRAIN", "NOT_RESPONDING"], "gres": "gpu:h200:8", "cpus": 192}
    (first,) = Server("v0.0.38", nodes={"nodes": [{**old, "gres_used": "gpu:h100:3(IDX:0-2)"}]}).scheduler().nodes()
    assert (first.state, first.flags, first.gpus, first.gpus_used, first.gpu_type) == (
        "MIXED",
        ("DRAIN",),
        8,
        3,
        "h100",
    )
    (second,) = Server("v0.0.42", nodes={"nodes": [new]}).scheduler().nodes()
    assert (second.state, second.flags) == ("DOWN", ("DRAIN", "NOT_RESPONDING"))
    assert second.gpu_type == "h200"
    (odd,) = Server("v0.0.38", nodes={"nodes": [{**old, "state": "inval", "gres": ""}]}).scheduler().nodes()
    assert (odd.state, odd.gpus) == ("UNKNOWN", 0)


def test_the_default_partition_where_the_version_does_not_tell() -> None:
    def partition(name: str) -> dict[str, Any]:
        limit = {"time": {"set": False, "infinite": True, "number": 0}}
        return {"name": name, "nodes": {"configured": "a[1-2]"}, "maximums": limit, "partition": {"state": ["UP"]}}

    (only,) = Server(partitions={"partitions": [partition("gpu")]}).scheduler().partitions()
    assert only == v.Partition("gpu", ("a1", "a2"), None, True, "UP")
    two = Server(partitions={"partitions": [partition("a"), partition("b")]}).scheduler().partitions()
    assert [one.is_default for one in two] == [False, False]


# --- error table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "about", "kind"),
    [
        (1007, "queue", e.AccessDenied),
        (2002, "job", e.AccessDenied),
        (2010, "node", e.AccessDenied),
        (2017, "job", e.NotFound),
        (2018, "node", e.NotFound),
        (2018, "submit", e.InvalidRequest),
        (9003, "accounting", e.NotFound),
        (1800, "queue", e.Unavailable),
        (5004, "submit", e.Unavailable),
        (7000, "accounting", e.Unavailable),
        (2019, "submit", e.Unavailable),
        (2020, "job", e.Conflict),
        (2028, "node", e.Conflict),
        (2050, "submit", e.QuotaExceeded),
        (2000, "submit", e.InvalidRequest),
        (2014, "submit", e.InvalidRequest),
        (2051, "submit", e.InvalidRequest),
        (9001, "submit", e.InvalidRequest),
        (4242, "queue", e.Unknown),
    ],
)
def test_codes_are_typed(code: int, about: str, kind: type[e.ProviderError]) -> None:
    error = slurm_errors.typed(code, "words", about=about)
    assert type(error) is kind
    assert error.code == str(code)


def test_the_client_needs_no_shell() -> None:
    # Node names, reasons and ids are passed as words, never through a shell.
    seen: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", run)
        Server("v0.0.38").scheduler(scontrol=["scontrol"]).node_drain("p5-1", "$(reboot); 'x'")
    assert seen == [["scontrol", "update", "nodename=p5-1", "state=DRAIN", "reason=$(reboot); 'x'"]]


@pytest.mark.parametrize(
    ("pending", "task", "is_there"),
    [("3-99%10", 3, True), ("3-99%10", 100, False), ("1-5:2,8", 4, False), ("1-5:2,8", 8, True), ("", 0, False)],
)
def test_the_tasks_of_a_pending_record(pending: str, task: int, is_there: bool) -> None:
    assert decode.lists_task(pending, task) is is_there


def warned_request(*options: str, script: str = "#!/bin/bash\necho hi\n") -> v.SubmitRequest:
    return v.SubmitRequest(
        script=script,
        name="warned",
        comment="",
        partition="",
        nodes=1,
        gpus_per_node=0,
        gpu_type="",
        tasks_per_node=1,
        cpus_per_task=1,
        memory_per_node_mib=0,
        time_limit_min=10,
        working_directory="/tmp",
        environment={},
        options=options,
    )


def test_v38_lets_the_script_warn_itself() -> None:
    body = encode.submit(warned_request("--signal=B:USR1@120", "--nice=5"), "v0.0.38")
    first, second, rest = body["script"].split("\n", 2)
    assert (first, rest) == ("#!/bin/bash", "echo hi\n")
    assert second.startswith('(sleep 480; exec scancel --batch --signal=USR1 "$SLURM_JOB_ID")')
    assert second.endswith("&")
    assert body["job"]["nice"] == 5
    assert "signal" not in body["job"]


def test_later_versions_leave_the_warning_to_slurm() -> None:
    body = encode.submit(warned_request("--signal=B:USR1@120"), "v0.0.42")
    assert body["script"] == "#!/bin/bash\necho hi\n"
    assert body["job"]["kill_warning_signal"] == "USR1"
    assert body["job"]["kill_warning_delay"]["number"] == 120
