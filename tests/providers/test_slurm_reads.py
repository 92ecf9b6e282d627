"""Jobs and queues as Slurm's releases write them, and what reading them costs."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from tests.providers.slurm_answers import Server, old_job, request
from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import bulk

# --- jobs as releases write them -------------------------------------------------------------------


def one_job(record: dict[str, Any], version: str = "v0.0.38") -> v.SchedulerJob:
    return Server(version, **{"job/12": {"jobs": [record]}}).scheduler().job("12")


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({}, 16),
        ({"tres_alloc_str": "cpu=8,node=2,gres/gpu:h100=16"}, 16),
        ({"tres_alloc_str": "cpu=8,gres/gpu=16,gres/gpu:h100=16"}, 16),
        ({"tres_alloc_str": "cpu=8,node=2", "tres_per_node": "gres:gpu:h100:8"}, 16),
        ({"tres_alloc_str": "cpu=8,node=2", "tres_per_node": "gres/gpu:h100:8"}, 16),
        ({"tres_alloc_str": "cpu=8,node=2", "tres_per_node": "gres/gpu=4"}, 8),
        ({"tres_alloc_str": "cpu=8,node=2", "tres_per_node": "gres:gpu"}, 2),
        ({"tres_alloc_str": "", "gres_detail": ["gpu:h100:3(IDX:0-2)", "gpu:h100:5(IDX:0-4)"]}, 8),
        ({"tres_alloc_str": "", "tres_per_node": "", "tres_per_job": "gres:gpu:6"}, 6),
        ({"tres_alloc_str": "", "tres_per_node": ""}, 0),
        ({"tres_alloc_str": "cpu=1,gres/gpumem=80G,node=1", "tres_per_node": "gres:shard:2"}, 0),
    ],
)
def test_gpus_are_found_wherever_slurm_put_them(changes: dict[str, Any], gpus: int) -> None:
    assert one_job(old_job(**changes)).gpus == gpus


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ("RUNNING", "RUNNING"),
        (["RUNNING"], "RUNNING"),
        ("COMPLETING", "COMPLETING"),
        (["CANCELLED", "COMPLETING"], "COMPLETING"),
        (["RUNNING", "CONFIGURING"], "RUNNING"),
        ("CONFIGURING", "RUNNING"),
        (["PENDING", "REQUEUED"], "PENDING"),
        ("REQUEUE_HOLD", "PENDING"),
        (["OUT_OF_MEMORY"], "OUT_OF_MEMORY"),
        (["NODE_FAIL"], "NODE_FAIL"),
    ],
)
def test_states_become_one_word(told: Any, state: str) -> None:
    assert one_job(old_job(job_state=told)).state == state


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (0, (0, None)),
        (768, (3, None)),
        (9, (None, 9)),
        (15, (None, 15)),
        ({"status": ["ERROR"], "return_code": {"set": True, "number": 3}, "signal": {"id": {"set": False}}}, (3, None)),
        (
            {"status": ["SIGNALED"], "return_code": {"set": False}, "signal": {"id": {"set": True, "number": 9}}},
            (None, 9),
        ),
    ],
)
def test_exit_codes_and_signals(told: Any, expected: tuple[int | None, int | None]) -> None:
    job = one_job(old_job(job_state="FAILED", exit_code=told))
    assert (job.exit_code, job.signal) == expected


def test_a_job_that_never_started_has_no_exit_code() -> None:
    job = one_job(old_job(job_state="FAILED", state_reason="BadConstraints", nodes="", exit_code=1))
    assert (job.exit_code, job.signal, job.started_at) == (None, None, None)
    assert job.reason == "BadConstraints"


def test_times_of_a_waiting_and_of_a_running_job() -> None:
    waiting = one_job(old_job(job_state="PENDING", nodes=""))
    assert waiting.expected_start_at == datetime.fromtimestamp(1_795_998_931, tz=UTC)
    assert (waiting.started_at, waiting.ended_at) == (None, None)
    running = one_job(old_job())
    assert running.expected_start_at is None
    assert running.ended_at is None
    unknown = one_job(old_job(job_state="PENDING", nodes="", start_time=0, time_limit=None))
    assert (unknown.expected_start_at, unknown.time_limit_min) == (None, None)
    endless = one_job(old_job(time_limit={"set": False, "infinite": True, "number": 0}), "v0.0.42")
    assert endless.time_limit_min is None


ACCOUNTED = {
    "job_id": 12,
    "name": "x3",
    "user": "owner",
    "account": "default",
    "partition": "gpu",
    "comment": {"administrator": None, "job": "uid", "system": None},
    "allocation_nodes": 1,
    "nodes": "p5-1",
    "state": {"current": "FAILED", "reason": "None"},
    "exit_code": {"status": "SUCCESS", "return_code": 0},
    "time": {"end": 1_795_998_931, "start": 1_795_998_930, "submission": 1_795_998_929, "limit": 60},
    "tres": {"allocated": [{"type": "cpu", "count": 2}, {"type": "gres", "name": "gpu", "count": 8}], "requested": []},
}


def forgotten(version: str) -> httpx2.Response:
    entry = {"description": "Unable to find JobId=12", "error_number": 2017, "error": "Invalid job id specified"}
    return httpx2.Response(404 if version == "v0.0.42" else 500, json={"jobs": [], "errors": [entry]})


def test_accounting_knows_what_the_queue_forgot() -> None:
    routes = {"GET job/12": forgotten("v0.0.38"), "GET db/job/12": {"jobs": [ACCOUNTED]}}
    job = Server("v0.0.38", **routes).scheduler().job("12")
    # 22.05's accounting says SUCCESS and 0 for every exit code: that is no exit code of a failed job.
    assert (job.state, job.exit_code, job.comment, job.gpus) == ("FAILED", None, "uid", 8)
    done = {**ACCOUNTED, "state": {"current": "COMPLETED"}}
    job = Server("v0.0.38", **{**routes, "GET db/job/12": {"jobs": [done]}}).scheduler().job("12")
    assert (job.state, job.exit_code) == ("COMPLETED", 0)


@pytest.mark.parametrize("version", ["v0.0.38", "v0.0.42"])
def test_without_accounting_the_queue_has_the_last_word(version: str) -> None:
    with pytest.raises(e.NotFound, match="JobId=12"):
        Server(version, **{"GET job/12": forgotten(version)}).scheduler().job("12")
    listing = {"jobs": [old_job()]}
    routes = {"jobs": listing, "diag": {"statistics": {}}}
    found = Server(version, **routes).scheduler().jobs_by_comment("uid")
    assert [job.scheduler_id for job in found] == ["12"]


def test_accounting_that_is_away_is_no_not_found() -> None:
    away = httpx2.Response(502, json={"errors": [{"error_number": 7000, "error": "Unable to connect to database"}]})
    scheduler = Server(**{"GET job/12": forgotten("v0.0.42"), "GET db/job/12": away}).scheduler()
    with pytest.raises(e.Unavailable):
        scheduler.job("12")


def test_accounting_that_is_not_configured_is_seen_in_the_answer() -> None:
    away = httpx2.Response(502, json={"errors": [{"error_number": 7000, "error": "Unable to connect to database"}]})
    meta = {"plugin": {"accounting_storage": ""}, "slurm": {"release": "24.11.5"}}
    routes = {
        "GET job/12": forgotten("v0.0.42"),
        "GET db/job/12": away,
        "ping": {"pings": [], "meta": meta, "errors": []},
    }
    with pytest.raises(e.NotFound):
        Server(**routes).scheduler().job("12")


@pytest.mark.parametrize(("asked", "looked"), [({}, "owner"), ({"user_name": "u7"}, "u7")])
def test_accounting_is_searched_for_the_user_who_is_meant(asked: dict[str, str], looked: str) -> None:
    routes = {"GET db/jobs": {"jobs": [ACCOUNTED]}}
    server = Server(**routes, jobs={"jobs": []}, diag={"statistics": {}})
    (only,) = server.scheduler().jobs_by_comment("uid", **asked)
    assert only.scheduler_id == "12"
    (sent,) = [one for one in server.requests if "/slurmdb/" in one.url.path and one.url.path.endswith("/jobs")]
    assert sent.url.params["users"] == looked


def test_the_newest_record_of_a_requeued_job_counts() -> None:
    later = {**ACCOUNTED, "state": {"current": "COMPLETED"}, "time": {**ACCOUNTED["time"], "submission": 1_795_999_999}}
    listing = {"jobs": [later, ACCOUNTED]}
    routes = {"GET job/12": forgotten("v0.0.42"), "GET db/job/12": listing, "GET db/jobs": listing}
    server = Server(**routes, jobs={"jobs": []}, diag={"statistics": {}})
    assert server.scheduler().job("12").state == "COMPLETED"
    (only,) = server.scheduler().jobs_by_comment("uid")
    assert only.state == "COMPLETED"


# --- a clock that is off -------------------------------------------------------------------------------


def test_instants_are_told_by_our_clock_and_asked_by_slurms() -> None:
    now = int(time.time())
    server = Server(
        "v0.0.42",
        diag={"statistics": {"req_time": {"set": True, "number": now + 900}}},
        jobs={"jobs": [old_job(start_time=now + 840, submit_time=now + 800)]},
    )
    server.routes["GET db/jobs"] = {"jobs": []}
    scheduler = server.scheduler()
    (job,) = scheduler.queue().jobs or ()
    assert job.started_at is not None
    assert job.submitted_at is not None
    assert abs(job.started_at.timestamp() - (now - 60)) <= 1
    assert abs(job.submitted_at.timestamp() - (now - 100)) <= 1
    assert scheduler.jobs_by_comment("uid", datetime.fromtimestamp(now - 200, tz=UTC)) == (job,)
    asked = server.requests[-1].url.params["start_time"]
    assert abs(int(asked.removeprefix("uts")) - (now + 900 - 260)) <= 1


@pytest.mark.parametrize("ahead_s", [3600, -900, 2])
@pytest.mark.parametrize(
    ("version", "option", "after_s"),
    [
        ("v0.0.42", "--begin=now+1hour", 3600),
        ("v0.0.42", "--deadline=now+5hours", 5 * 3600),
        ("v0.0.42", "--begin=2040-01-01T00:00:00Z", None),
        ("v0.0.38", "--begin=now+1hour", 3600),
    ],
)
def test_the_instants_of_a_submit_are_said_by_slurms_clock(
    version: str, option: str, after_s: int | None, ahead_s: int
) -> None:
    now = int(time.time())
    wanted = now + after_s if after_s is not None else int(datetime(2040, 1, 1, tzinfo=UTC).timestamp())
    wanted += ahead_s if ahead_s != 2 else 0
    told = {"statistics": {"req_time": now + ahead_s}}
    part = v.SubmitPart("", "gpu", 1, 8, "h100", 1, 4, 1000, 30, options=(option,))
    for given in (request(options=(option,)), request(parts=(part,))):
        server = Server(version, diag=told)
        server.routes["job/submit"] = {"job_id": 7}
        server.scheduler().submit(given)
        sent = server.bodies[-1]
        job = sent["jobs"][1] if given.parts else sent["job"]
        found = job.get("begin_time") or job["deadline"]
        found = found["number"] if isinstance(found, dict) else int(str(found).removeprefix("uts"))
        assert abs(found - wanted) <= 2


def test_a_submit_without_instants_does_not_ask_for_the_time() -> None:
    server = Server("v0.0.42", diag={"statistics": {"req_time": int(time.time()) + 3600}})
    server.routes["job/submit"] = {"job_id": 7}
    server.scheduler().submit(request(options=("--qos=long",)))
    assert ("GET", "diag") not in server.asked


@pytest.mark.parametrize("told", [{}, {"statistics": {"req_time": 3}}, {"errors": [{"error": "x"}]}])
def test_a_clock_that_is_not_told_or_hardly_off_changes_nothing(told: dict[str, Any]) -> None:
    began = int(time.time())
    if "statistics" in told:
        told = {"statistics": {"req_time": began + 3}}
    server = Server("v0.0.42", diag=told, jobs={"jobs": [old_job(start_time=began)]})
    if "errors" in told:
        server.routes["diag"] = httpx2.Response(401, json=told)
    (job,) = server.scheduler().queue().jobs or ()
    assert job.started_at == datetime.fromtimestamp(began, tz=UTC)


# --- the bulk read of a big queue -----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first read of a big queue goes on for a bounded time; how slow this machine is just now is not the matter."""
    monkeypatch.setattr(bulk, "CATCH_UP_S", 60.0)


class BigQueue(Server):
    """A queue of many jobs whose every read is counted."""

    def __init__(self, count: int, ahead_s: int = 0) -> None:
        now = int(time.time()) + ahead_s
        super().__init__("v0.0.42", diag={"statistics": {"req_time": {"set": True, "number": now}}})
        self.jobs = {
            str(number): old_job(job_id=number, job_state=["PENDING"], nodes="") for number in range(1, count + 1)
        }
        self.routes["GET jobs"] = lambda _: httpx2.Response(200, json={"jobs": list(self.jobs.values())})
        self.routes["GET jobs/state"] = lambda _: httpx2.Response(
            200, json={"jobs": [{"job_id": key, "state": job["job_state"]} for key, job in self.jobs.items()]}
        )

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        for key, job in self.jobs.items():
            self.routes[f"GET job/{key}"] = {"jobs": [job]}
        return super().__call__(request)

    def count(self, what: str) -> int:
        return sum(1 for _, path in self.asked if path.startswith(what))


def test_a_big_queue_is_never_read_whole() -> None:
    server = BigQueue(600)
    scheduler = server.scheduler()
    first = scheduler.queue()
    assert len(first.jobs or ()) == 600
    assert first.left_over == 0
    quiet = scheduler.queue(first.as_of)
    assert quiet.jobs is None
    server.jobs["17"]["job_state"] = ["RUNNING"]
    server.jobs["17"]["nodes"] = "p5-1"
    del server.jobs["600"]
    changed = scheduler.queue(quiet.as_of)
    assert changed.jobs is not None
    states = {job.scheduler_id: job.state for job in changed.jobs}
    assert states["17"] == "RUNNING"
    assert "600" not in states
    assert ("GET", "jobs") not in server.asked


def test_a_queue_too_big_for_one_read_comes_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "CATCH_UP_S", 0.0)
    server = BigQueue(420)
    scheduler = server.scheduler()
    read = scheduler.queue(None, ["417"])
    assert len(read.jobs or ()) == 50
    assert "417" in {job.scheduler_id for job in read.jobs or ()}, "what is watched comes first"
    assert read.left_over == 370
    seen = [50]
    while read.left_over:
        read = scheduler.queue(read.as_of)
        seen.append(len(read.jobs or ()))
    assert seen[-1] == 420
    assert ("GET", "jobs") not in server.asked


def test_a_small_queue_is_read_whole_at_first() -> None:
    server = BigQueue(30)
    assert len(server.scheduler().queue().jobs or ()) == 30
    assert server.count("job/") == 0


@pytest.mark.parametrize("ahead_s", [0, -900, 900])
def test_after_a_doubt_only_new_jobs_of_a_big_queue_are_looked_at(ahead_s: int) -> None:
    server = BigQueue(600, ahead_s)
    since = datetime.now(tz=UTC)
    for number in (601, 605):
        server.jobs[str(number)] = old_job(
            job_id=number,
            comment="uid-x",
            job_state=["PENDING"],
            nodes="",
            submit_time=int(since.timestamp()) + 5 + ahead_s,
        )
    scheduler = server.scheduler()
    assert [job.scheduler_id for job in scheduler.jobs_by_comment("uid-x", since)] == ["601", "605"]
    assert server.count("job/") <= 2 + bulk.OLDER_IN_A_ROW + 1
    assert ("GET", "jobs") not in server.asked


def test_details_of_a_big_queue_come_within_the_bound() -> None:
    server = BigQueue(600)
    scheduler = server.scheduler()
    since = scheduler.queue().as_of
    for number in range(1, 251):
        server.jobs[str(number)]["job_state"] = ["RUNNING"]
    running = 0
    for _ in range(7):
        server.asked.clear()
        read = scheduler.queue(since)
        since = read.as_of
        assert server.count("job/") <= bulk.DETAILS_A_READ
        if read.jobs is not None:
            running = sum(1 for job in read.jobs if job.state == "RUNNING")
    assert running == 250


@pytest.mark.parametrize(("watch", "reads"), [(["350"], 1), ([], 40)])
def test_a_pending_jobs_new_reason_is_noticed_without_a_change_of_state(
    monkeypatch: pytest.MonkeyPatch, watch: list[str], reads: int
) -> None:
    monkeypatch.setattr(bulk, "REFRESH_AFTER_S", 0.0)
    monkeypatch.setattr(bulk, "REFRESH_WATCHED_S", 0.0)
    server = BigQueue(350)
    scheduler = server.scheduler()
    since = scheduler.queue().as_of
    server.jobs["350"]["state_reason"] = "Priority"
    reasons: set[str] = set()
    for _ in range(reads):
        server.asked.clear()
        read = scheduler.queue(since, watch)
        since = read.as_of
        assert server.count("job/") == bulk.REFRESHED_A_READ
        reasons |= {job.reason for job in read.jobs or () if job.scheduler_id == "350"}
    assert "Priority" in reasons


def test_a_quiet_big_queue_costs_the_list_of_states_alone() -> None:
    server = BigQueue(600)
    scheduler = server.scheduler()
    since = scheduler.queue().as_of
    server.asked.clear()
    read = scheduler.queue(since)
    assert read.jobs is None
    assert (read.calls, server.count("jobs/state"), server.count("job/")) == (1, 1, 0)


def test_states_of_arrays_and_heterogeneous_jobs_are_not_taken_for_other_jobs() -> None:
    server = BigQueue(600)
    array = {"array_job_id": 601, "array_task_string": "0-20%3", "job_state": ["PENDING"], "nodes": ""}
    server.jobs["601"] = old_job(job_id=601, **array)
    server.jobs["602"] = old_job(job_id=602, het_job_id=602, het_job_offset=0, job_state=["PENDING"], nodes="")
    states = {str(number): str(number) for number in range(1, 601)}

    def listing(_: httpx2.Request) -> httpx2.Response:
        told = [{"job_id": shown, "state": server.jobs[key]["job_state"]} for shown, key in states.items()]
        return httpx2.Response(200, json={"jobs": told})

    server.routes["GET jobs/state"] = listing
    states |= {f"601_{task}": "601" for task in range(21)} | {"602+0": "602"}
    scheduler = server.scheduler()
    since = scheduler.queue().as_of
    server.asked.clear()
    read = scheduler.queue(since)
    assert (read.jobs, server.count("job/")) == (None, 0)
    # Tasks 0 and 1 begin: one record more each; what still waits is known from the list.
    for task, number in ((0, 603), (1, 604)):
        del states[f"601_{task}"]
        states[f"{number}_{task}"] = str(number)
        server.jobs[str(number)] = old_job(
            job_id=number, array_job_id=601, array_task_id=task, array_task_string="", job_state=["RUNNING"]
        )
    server.asked.clear()
    read = scheduler.queue(read.as_of)
    jobs = {job.scheduler_id: job for job in read.jobs or ()}
    assert jobs["601"].array_pending == "2-20%3"
    assert [(jobs[key].array_id, jobs[key].array_task) for key in ("603", "604")] == [("601", 0), ("601", 1)]
    assert (jobs["602"].het_id, jobs["602"].het_offset) == ("602", 0)
    assert {path for _, path in server.asked} == {"jobs/state", "job/603", "job/604"}


def test_a_reader_takes_over_what_another_process_read() -> None:
    server = BigQueue(600)
    first = server.scheduler().queue()
    server.jobs["5"]["job_state"] = ["RUNNING"]
    server.asked.clear()
    other = server.scheduler()
    other.remember(first.jobs or (), first.as_of)
    read = other.queue(first.as_of)
    assert {job.scheduler_id: job.state for job in read.jobs or ()}["5"] == "RUNNING"
    assert ("GET", "jobs") not in server.asked


def test_jobs_are_asked_of_accounting_in_one_call() -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.query.decode() if isinstance(request.url.query, bytes) else str(request.url.query))
        return httpx2.Response(200, json={"jobs": [ACCOUNTED]})

    for version, wanted in (("v0.0.38", "step=12%2C13"), ("v0.0.42", "step=12&step=13")):
        found = Server(version, **{"GET db/jobs": answer}).scheduler().accounted(["12", "13"])
        assert [job.scheduler_id for job in found] == ["12"]
        assert wanted in asked[-1]


def test_after_a_doubt_every_new_job_is_looked_at() -> None:
    server = BigQueue(400)
    scheduler = server.scheduler()
    scheduler.queue()
    for number in range(1001, 1201):
        server.jobs[str(number)] = old_job(job_id=number, comment=f"uid-{number}", job_state=["PENDING"], nodes="")
    assert [job.scheduler_id for job in scheduler.jobs_by_comment("uid-1200")] == ["1200"]


def test_a_caller_that_missed_a_read_is_given_everything() -> None:
    server = BigQueue(20)
    scheduler = server.scheduler()
    first = scheduler.queue()
    server.jobs["3"]["job_state"] = ["RUNNING"]
    second = scheduler.queue(first.as_of)
    assert second.jobs is not None
    # The caller died before it could save: it asks again from where it was.
    again = scheduler.queue(first.as_of)
    assert again.jobs is not None
    assert scheduler.queue(second.as_of).jobs is None
