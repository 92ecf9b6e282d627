"""slurmrestd's paths for v0.0.38 and v0.0.42, answering as 22.05 and 24.11 do, faults included."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

from sandbox.slurm import hetjobs, requests, shapes
from sandbox.slurm.changes import Change, read_change
from sandbox.slurm.controller import Controller
from sandbox.slurm.model import Job, Refused
from sandbox.slurm.tokens import BadToken, user_of

OLD = "v0.0.38"
NEW = "v0.0.42"
#: A script is at most 4 MiB by default; with its environment no honest body is longer than this.
MAX_BODY_BYTES = 16 * 1024 * 1024
_STATUS = {
    200: "OK",
    304: "NOT MODIFIED",
    400: "BAD REQUEST",
    401: "UNAUTHORIZED",
    404: "NOT FOUND",
    413: "PAYLOAD TOO LARGE",
    422: "UNPROCESSABLE CONTENT",
    429: "TOO MANY REQUESTS",
    500: "INTERNAL ERROR",
    502: "BAD GATEWAY",
    503: "SERVICE UNAVAILABLE",
    511: "Network Authentication Required",
}
_PATH = re.compile(r"/(slurm|slurmdb)/(v0\.0\.\d+)/(.+?)/?")
_JSON = "application/json"
Start = Callable[[str, list[tuple[str, str]]], Any]


@dataclass
class Reply:
    """One answer before faults touch it."""

    status: int
    body: bytes
    kind: str = _JSON


@dataclass
class Call:
    """One request, authenticated: ``user`` is empty when the token was refused."""

    method: str
    db: bool
    version: str
    path: str
    query: Mapping[str, str]
    body: Any
    user: str

    @property
    def old(self) -> bool:
        """Whether it is for v0.0.38."""
        return self.version == OLD

    @property
    def operation(self) -> str:
        """What the call does, in one word: what a fault's ``operation`` is compared with."""
        head = self.path.split("/")[0]
        if self.db:
            return "accounting"
        if self.path == "job/submit":
            return "submit"
        if self.method == "DELETE":
            return "cancel"
        return head


def _text(status: int, text: str) -> Reply:
    return Reply(status, text.encode(), "text/plain")


class Api:
    """The WSGI application. ``versions`` are those it serves; the others are 404, as on an older slurmrestd."""

    def __init__(self, controller: Controller, key: bytes, versions: Iterable[str]) -> None:
        self._controller = controller
        self._key = key
        self._versions = frozenset(versions)

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        """Answer one request, with the faults in force."""
        call = self._read(environ)
        if isinstance(call, Reply):
            return self._write(call, start)
        world = self._controller.world
        slow = world.fault_use("slow-api", service="slurm", operation=call.operation)
        if slow is not None:
            time.sleep(float(str(slow.parameters.get("delay") or 5.0)))
        if world.fault_use("throttling", service="slurm", operation=call.operation) is not None:
            return self._write(_text(429, "Too many requests"), start)
        broken = world.fault_use("server-error", service="slurm", operation=call.operation)
        shape = "" if broken is None else str(broken.parameters.get("shape") or "error")
        if shape and shape != "lost-reply":
            return self._broken(shape, call, start)
        reply = self._answer(call)
        if shape == "lost-reply":
            # What was asked for has been done; only nobody hears of it.
            connection: socket.socket | None = environ.get("werkzeug.socket")
            if connection is not None:
                connection.shutdown(socket.SHUT_RDWR)
            return [b""]
        return self._write(reply, start)

    def _write(self, reply: Reply, start: Start, *, length: int | None = None) -> Iterable[bytes]:
        headers = [("Content-Type", reply.kind), ("Content-Length", str(length or len(reply.body)))]
        if reply.status == 304:
            headers = []
        start(f"{reply.status} {_STATUS.get(reply.status, 'ERROR')}", headers)
        return [reply.body]

    def _broken(self, shape: str, call: Call, start: Start) -> Iterable[bytes]:
        page = b"<!DOCTYPE html><html><head><title>502</title></head><body><h1>Bad Gateway</h1></body></html>"
        if shape == "html":
            return self._write(Reply(500, page, "text/html"), start)
        if shape == "empty":
            return self._write(Reply(200, b""), start)
        if shape == "truncated":
            return self._write(Reply(200, b'{\n  "meta": {\n    "plugin": {\n      "type": "open'), start, length=4096)
        if shape == "errors-in-200":
            entry = shapes.entry(
                "Unable to do it", 1800, "Unable to contact slurm controller (connect failure)", "fault"
            )
            return self._write(self._json(call, {}, errors=[entry]), start)
        return self._write(_text(503, "Service unavailable"), start)

    # --- reading -----------------------------------------------------------------------------------

    def _read(self, environ: dict[str, Any]) -> Call | Reply:
        path = unquote(environ.get("PATH_INFO", ""))
        token = environ.get("HTTP_X_SLURM_USER_TOKEN", "")
        if not token:
            return _text(401, "Authentication failure")
        try:
            user = user_of(token, self._key)
        except BadToken:
            user = ""
        told = environ.get("HTTP_X_SLURM_USER_NAME", "")
        if told and told != user:
            user = ""
        match = _PATH.fullmatch(path)
        if path != "/scontrol" and (match is None or match.group(2) not in self._versions):
            return _text(404, "Unable find requested URL. Please view /openapi/v3 for API reference.")
        try:
            length = int(environ.get("CONTENT_LENGTH") or 0)
        except ValueError:
            return _text(400, "Unable to parse query.")
        if length > MAX_BODY_BYTES:
            return _text(413, "Request is too large")
        content = environ["wsgi.input"].read(length) if length else b""
        try:
            body = json.loads(content) if content else None
        except ValueError:
            return _text(400, "Unable to parse query.")
        asked = parse_qs(environ.get("QUERY_STRING", ""))
        query = {key: values[-1] for key, values in asked.items() if key != "step"}
        if "step" in asked:
            # The later versions want the parameter once a job, v0.0.38 a list in one.
            query["step"] = ",".join(asked["step"])
        method = environ.get("REQUEST_METHOD", "GET")
        if match is None:
            return Call(method, False, "", "scontrol", query, body, user)
        return Call(method, match.group(1) == "slurmdb", match.group(2), match.group(3), query, body, user)

    # --- answering ---------------------------------------------------------------------------------

    def _json(self, call: Call, body: Mapping[str, Any], *, status: int = 200, **more: Any) -> Reply:
        errors = more.pop("errors", [])
        whole: dict[str, Any] = {**body, "meta": shapes.OLD_META if call.old else shapes.NEW_META, "errors": errors}
        if not call.old:
            whole["warnings"] = more.pop("warnings", [])
        return Reply(status, json.dumps(whole).encode())

    def _answer(self, call: Call) -> Reply:
        if call.path == "scontrol":
            return self._scontrol(call)
        if not call.user:
            return self._denied(call)
        with self._controller.lock:
            if call.db:
                return self._accounting(call)
            return self._slurm(call)

    def _denied(self, call: Call) -> Reply:
        if call.old:
            return self._denied_old(call)
        if call.db:
            text = "Failed to open slurmdbd connection, authentication error"
            entry = shapes.entry(text, 7000, "Unable to connect to database", "openapi_get_db_conn")
            return self._json(call, {}, status=502, errors=[entry])
        if call.path == "ping":
            return self._json(call, {"pings": [{"hostname": "sandbox", "pinged": "DOWN", "responding": False}]})
        entry = shapes.entry("Unable to query", 1007, "Protocol authentication error", "slurm")
        return self._json(call, {}, status=511, errors=[entry])

    def _denied_old(self, call: Call) -> Reply:
        """22.05's controller hangs up, and slurmrestd makes of that whatever the call makes of no answer."""
        if call.db:
            entry = {"error_number": 1007, "error": "Protocol authentication error", "source": "slurmdb_jobs_get"}
            return self._json(call, {"jobs": []}, errors=[entry])
        if call.path == "job/submit":
            entry = {"error_code": 5005, "error": "Zero Bytes were transmitted or received"}
        elif call.method == "DELETE":
            text = "Zero Bytes were transmitted or received"
            entry = dict(shapes.entry(f"unable to kill JobId with signal 9: {text}", 5005, text, "slurm_kill_job"))
        elif call.operation in ("nodes", "node", "partitions"):
            entry = {"error": "Unspecified error", "errno": -1}
        else:
            entry = dict(shapes.entry("Failed while looking", -1, "Unspecified error", "slurm_load_jobs"))
        return self._json(call, {}, status=500, errors=[entry])

    def _slurm(self, call: Call) -> Reply:
        parts = call.path.split("/")
        if call.method == "GET":
            simple = {"ping": self._ping, "diag": self._diag, "partitions": self._partitions, "nodes": self._nodes}
            if call.path in simple:
                return simple[call.path](call)
            if call.path == "jobs":
                return self._jobs(call)
            if call.path == "shares" and not call.old:
                told = self._controller.associations.shares(self._controller.history(), time.time())
                return self._json(call, told)
            if call.path == "jobs/state" and not call.old:
                states = [
                    {"job_id": key, "state": shapes.new_states(job)}
                    for job in self._controller.queue()
                    for key in shapes.state_keys(job)
                ]
                return self._json(call, {"jobs": states})
            if parts[0] == "node" and len(parts) == 2:
                return self._node(call, parts[1])
            if parts[0] == "job" and len(parts) == 2:
                return self._job(call, parts[1])
        elif call.method == "POST":
            if call.path == "job/submit":
                return self._submit(call)
            if parts[0] == "node" and len(parts) == 2 and not call.old:
                return self._node_update(call, parts[1])
            if parts[0] == "job" and len(parts) == 2:
                return self._job_update(call, parts[1])
        elif call.method == "DELETE" and parts[0] == "job" and len(parts) == 2:
            return self._cancel(call, parts[1])
        return _text(404, "Unable find requested URL. Please view /openapi/v3 for API reference.")

    def _ping(self, call: Call) -> Reply:
        ping: dict[str, Any] = {"hostname": "sandbox", "mode": "primary"}
        ping |= {"ping": "UP", "status": 0} if call.old else {"pinged": "UP", "responding": True, "primary": True}
        return self._json(call, {"pings": [ping]})

    def _diag(self, call: Call) -> Reply:
        now = int(time.time())
        return self._json(call, {"statistics": {"req_time": now if call.old else shapes.number(now)}})

    def _partitions(self, call: Call) -> Reply:
        found = self._controller.partitions()
        limit = self._controller.settings.max_time_min
        if call.old:
            listed = [
                shapes.old_partition(name, nodes, limit, default=not index)
                for index, (name, nodes) in enumerate(found.items())
            ]
            return self._json(call, {"partitions": listed})
        return self._json(
            call,
            {
                "partitions": [shapes.new_partition(name, nodes, limit) for name, nodes in found.items()],
                "last_update": shapes.number(self._controller.changed_at),
            },
        )

    def _node_shape(self, call: Call, name: str) -> dict[str, Any]:
        node = self._controller.world.nodes[name]
        shape = shapes.old_node if call.old else shapes.new_node
        return shape(node, self._controller.marks(name), self._controller.jobs_on(name))

    def _nodes(self, call: Call) -> Reply:
        return self._json(call, {"nodes": [self._node_shape(call, node.name) for node in self._controller.nodes()]})

    def _node(self, call: Call, name: str) -> Reply:
        if name in self._controller.world.nodes:
            return self._json(call, {"nodes": [self._node_shape(call, name)]})
        if call.old:
            entry: Mapping[str, Any] = {"error": "Invalid node name specified", "errno": 2018}
            return self._json(call, {"nodes": []}, status=500, errors=[entry])
        return self._json(
            call, {}, errors=[shapes.entry(f"Failure to query node {name}", 0, "No error", "_dump_nodes")]
        )

    def _job_shape(self, call: Call, job: Job) -> dict[str, Any]:
        first = self._controller.world.nodes.get(job.nodes[0]) if job.nodes else None
        gpu_type = first.gpu_type if first is not None else job.gpu_type
        return (shapes.old_job if call.old else shapes.new_job)(job, gpu_type)

    def _jobs(self, call: Call) -> Reply:
        changed_at = int(self._controller.changed_at)
        asked = call.query.get("update_time", "0")
        if not call.old:
            # From v0.0.40 on an instant may be written like this, and by two versions must be.
            asked = asked.removeprefix("uts")
        if asked.isdigit() and int(asked) - 1 >= changed_at:
            if call.old:
                return Reply(304, b"")
            text = f"No job changes since update_time[{asked}]"
            warning = {"description": text, "source": "op_handler_jobs"}
            return self._json(call, {"jobs": [], "last_update": shapes.number(0)}, warnings=[warning])
        jobs = [self._job_shape(call, job) for job in self._controller.queue()]
        if call.old:
            return self._json(call, {"jobs": jobs})
        warnings = [] if jobs else [{"description": "Zero jobs to dump", "source": ""}]
        return self._json(call, {"jobs": jobs, "last_update": shapes.number(changed_at)}, warnings=warnings)

    def _job(self, call: Call, text: str) -> Reply:
        if text.isdigit():
            jobs = [job for job in self._controller.queue() if int(text) in (job.job_id, job.array_id, job.het_id)]
            if jobs:
                return self._json(call, {"jobs": [self._job_shape(call, job) for job in jobs]})
        if call.old:
            entry = shapes.entry(f"Unable to find JobId={text}", 2017, "Invalid job id specified", "slurm_load_job")
            return self._json(call, {"jobs": []}, status=500, errors=[entry])
        entry = shapes.entry(f"Unable to query JobId={text}", 2017, "Invalid job id specified", "_handle_job_get")
        return self._json(call, {"jobs": []}, status=404, errors=[entry])

    def _submit(self, call: Call) -> Reply:
        read = requests.read_old if call.old else requests.read_new
        try:
            bodies, has_parts = hetjobs.bodies(call.body)
            read_all = [read(one, call.user, self._controller.settings.default_time_min) for one in bodies]
            wanted = read_all[0]
            if has_parts:
                job, complaint = self._controller.submit_parts([one.job for one in read_all])
            else:
                job, complaint = self._controller.submit(wanted.job)
        except requests.Unreadable as error:
            return self._json(call, {}, status=error.status, errors=error.errors)
        except Refused as error:
            if call.old:
                return self._json(call, {}, status=500, errors=[{"error_code": error.code, "error": error.text}])
            entry = shapes.entry("Batch job submission failed", error.code, error.text, "slurm_submit_batch_job()")
            return self._json(call, {}, status=500, errors=[entry])
        made = {"job_id": job.job_id, "step_id": "BATCH" if call.old else "batch", "job_submit_user_msg": ""}
        if call.old:
            errors = [] if complaint is None else [{"error_code": complaint.code, "error": complaint.text}]
            return self._json(call, made, errors=errors)
        warnings = [warning for one in read_all for warning in one.warnings]
        # 24.11 says nothing of a job beyond a limit that may wait.
        if complaint is not None and complaint.code != 2015:
            source = "slurm_submit_batch_job()"
            text = f"Job submission resulted in non-zero return code: {complaint.text}"
            warnings += [{"description": text, "source": source}, {"description": complaint.text, "source": source}]
        return self._json(call, made, warnings=warnings)

    def _cancel(self, call: Call, text: str) -> Reply:
        head, _mark, tail = text.partition("_")
        job_id, task = int(head) if head.isdigit() else 0, int(tail) if tail.isdigit() else None
        refused: Refused | None = None
        try:
            name = call.query.get("signal", "")
            if name and name.removeprefix("SIG") not in ("KILL", "TERM"):
                self._controller.send_signal(job_id, call.user, name)
            else:
                self._controller.cancel(job_id, call.user, task)
        except Refused as error:
            refused = error
        if call.old:
            # 22.05 says nothing of a job that has ended already.
            if refused is None or refused.code == 2021:
                return self._json(call, {})
            said = f"unable to kill JobId={text} with signal 9: {refused.text}"
            entry = shapes.entry(said, refused.code, refused.text, "slurm_kill_job")
            return self._json(call, {}, status=500, errors=[entry])
        if refused is None:
            return self._json(call, {"status": []})
        told = {"string": refused.text, "code": refused.code, "message": refused.text}
        known = refused.code != 2017
        one = {"error": told, "step_id": text, "job_id": shapes.number(job_id if known else None)}
        return self._json(call, {"status": [one]})

    def _job_update(self, call: Call, text: str) -> Reply:
        try:
            change = read_change(call.body)
        except (TypeError, ValueError):
            return _text(400, "Unable to parse query.")
        try:
            self._controller.update(int(text) if text.isdigit() else 0, call.user, change)
        except Refused as error:
            said = "job update from [localhost] failed" if call.old else "Job update requested failed"
            entry = shapes.entry(said, error.code, error.text, "slurm_update_job2()")
            return self._json(call, {}, status=500, errors=[entry])
        if call.old and any(str(job.array_id) == text for job in self._controller.queue()):
            # 22.05 calls every update of an array failed, whatever became of it.
            entry = {"description": "job array update from [localhost] failed", "error_number": -1}
            return self._json(call, {}, status=500, errors=[entry])
        return self._json(call, {} if call.old else {"results": None})

    def _node_update(self, call: Call, name: str) -> Reply:
        body = call.body if isinstance(call.body, Mapping) else {}
        states = body.get("state")
        state = states[0] if isinstance(states, list) and states else states
        try:
            self._controller.node_update(name, str(state), str(body.get("reason") or ""), call.user)
        except Refused as error:
            entry = shapes.entry(f"Failure to update node {name}", error.code, error.text, "_update_node")
            return self._json(call, {}, status=500, errors=[entry])
        return self._json(call, {})

    # --- accounting ----------------------------------------------------------------------------------

    def _associations(self, call: Call) -> Reply:
        """Limits of accounts, from v0.0.40 on."""
        try:
            if call.method == "POST":
                self._controller.associations.write(call.body, call.user)
                return self._json(call, {})
        except Refused as error:
            entry = shapes.entry(
                "slurmdb_associations_modify() failed", error.code, error.text, "_foreach_update_assoc"
            )
            return self._json(call, {}, status=422, errors=[entry])
        wanted = call.query.get("account", "").split(",")
        return self._json(call, {"associations": self._controller.associations.shown(shapes.CLUSTER, wanted)})

    def _accounting(self, call: Call) -> Reply:
        if call.path == "associations" and not call.old:
            return self._associations(call)
        if call.method != "GET":
            return _text(404, "Unable find requested URL. Please view /openapi/v3 for API reference.")
        if call.path == "clusters":
            return self._json(call, {"clusters": [{"name": shapes.CLUSTER}]})
        shape = shapes.old_accounting_job if call.old else shapes.new_accounting_job
        head, _, text = call.path.partition("/")
        jobs = self._controller.history()
        if head == "job":
            jobs = [job for job in jobs if text.isdigit() and job.job_id == int(text)]
        elif head == "jobs":
            jobs = self._filtered(jobs, call.query)
        else:
            return _text(404, "Unable find requested URL. Please view /openapi/v3 for API reference.")
        if not jobs and call.old:
            entry = shapes.entry("Nothing found", 9003, "Nothing found with query", "slurmdb_jobs_get")
            return self._json(call, {"jobs": []}, errors=[entry])
        return self._json(call, {"jobs": [shape(job) for job in jobs]})

    def _filtered(self, jobs: list[Job], query: Mapping[str, str]) -> list[Job]:
        since = query.get("start_time", "uts0").removeprefix("uts")
        if since.isdigit():
            jobs = [job for job in jobs if not job.ended or job.ended_at >= int(since)]
        if query.get("step"):
            wanted = set(query["step"].split(","))
            jobs = [
                job for job in jobs if wanted & {str(n or job.job_id) for n in (job.job_id, job.array_id, job.het_id)}
            ]
        if query.get("users"):
            jobs = [job for job in jobs if job.user in query["users"].split(",")]
        if query.get("job_name"):
            jobs = [job for job in jobs if job.name in query["job_name"].split(",")]
        return jobs

    # --- the sandbox's scontrol ------------------------------------------------------------------------

    def _scontrol(self, call: Call) -> Reply:
        """What tools/scontrol.py asks for; no path of slurmrestd."""
        body = call.body if isinstance(call.body, Mapping) else {}
        try:
            if not call.user:
                raise Refused(1007)
            job = int(body["job"]) if str(body.get("job")).isdigit() else 0
            if body.get("verb") == "requeue":
                self._controller.requeue(job, call.user)
            elif body.get("verb") in ("hold", "release"):
                self._controller.update(job, call.user, Change(hold=body["verb"] == "hold"))
            elif body.get("verb") == "update":
                self._controller.update(job, call.user, read_change(body))
            else:
                self._controller.node_update(
                    str(body.get("node")), str(body.get("state")).upper(), str(body.get("reason") or ""), call.user
                )
        except Refused as refused:
            about = f"{refused.text} for job {body.get('job')}"
            said = about if "job" in body else f"slurm_update error: {refused.text}"
            return Reply(200, json.dumps({"error": said}).encode())
        return Reply(200, b"{}")
