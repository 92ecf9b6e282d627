"""Output goes to the object store and comes back whole; a worker that dies at any point loses and doubles nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from asgiref.sync import async_to_sync
from django.test import Client
from django.urls import reverse

from apps.core import clock
from apps.intents.models import Intent
from apps.jobs import log_services
from apps.jobs.ingest import events_take
from apps.jobs.log_models import LogSegment
from apps.jobs.log_selectors import LogWindow, first_error, log_page, log_search
from apps.jobs.models import Attempt, Job, LogChunk
from tests.chaos import WHEN, Crashing, Plan, visit
from worker import doors
from worker.providers.errors import Unavailable
from worker.providers.object_store import FolderStore

pytestmark = [pytest.mark.django_db, pytest.mark.chaos]

KIND = "log.roll"
LINES = 40


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plan:
    plan = Plan()
    store = FolderStore(tmp_path)
    monkeypatch.setattr(doors, "object_store", lambda: Crashing(store, plan, ["put", "get"]))
    return plan


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few lines."""
    monkeypatch.setattr(log_services, "SEGMENT_BYTES", 4000)


def say(attempt: Attempt, lines: list[str], runner: str = "r1", first: int = 1, **told: Any) -> None:
    events, offset = [], (first - 1) * 1000
    for index, line in enumerate(lines):
        size = len(line.encode())
        data = {"stream": "stdout", "offset": offset, "size": size, "text": line}
        events.append({"seq": first + index, "kind": "log", "at": clock.iso(clock.now()), "data": data})
        offset += size
    events_take(attempt, {"id": runner, "role": "batch", "node": "p5-1", **told}, events)


def lines_of(job: Job) -> list[str]:
    """All of the output as a reader gets it, page by page, with what is away fetched on the way."""
    found: list[str] = []
    after = 0
    while True:
        page = log_page(job, after_id=after, limit=7)
        assert not page.away
        if not page.chunks:
            return found
        found += [c.text for c in page.chunks]
        after = page.next_id


def ended(job: Job, attempt: Attempt, hours: float = 2) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(phase="FAILED", ended_at=clock.now() - timedelta(hours=hours))
    Job.objects.filter(pk=job.pk).update(phase="FAILED", ended_at=clock.now())
    job.refresh_from_db()
    attempt.refresh_from_db()


def state() -> list[Any]:
    rows = LogSegment.objects.order_by("id").values_list("id", "stored_at", "restored_at", "problem")
    return [*rows, LogChunk.objects.count()]


def drive(work: Any, plan: Plan, rounds: int = 60) -> None:
    """Visits until three of them change nothing."""
    quiet = 0
    for _ in range(rounds):
        before = state()
        visit(work, KIND, plan)
        quiet = quiet + 1 if state() == before else 0
        if quiet == 3:
            return
    raise AssertionError("it never settles")


@pytest.fixture
def attempt(job: Job) -> Attempt:
    attempt = job.attempts.get()
    Attempt.objects.filter(pk=attempt.pk).update(phase="RUNNING", started_at=clock.now())
    attempt.refresh_from_db()
    return attempt


@pytest.fixture
def told(attempt: Attempt) -> list[str]:
    lines = [f"step {n} loss=2.{n} " + "x" * 450 + "\n" for n in range(LINES)]
    lines[17] = "Traceback (most recent call last): NaN in layer 17\n"
    say(attempt, lines)
    return lines


def all_away(job: Job) -> None:
    assert not LogChunk.objects.filter(attempt__job=job).exists()
    assert all(s.is_away for s in LogSegment.objects.filter(attempt__job=job))


def fetch_all(job: Job, work: Any, plan: Plan) -> None:
    log_services.segments_want(LogSegment.objects.filter(attempt__job=job).select_related("attempt"))
    drive(work, plan)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", ["put", "get"])
def test_a_worker_that_dies_loses_nothing(
    job: Job, attempt: Attempt, told: list[str], plan: Plan, work: Any, small: None, call: str, when: str
) -> None:
    before = dict(LogChunk.objects.values_list("id", "text"))
    ended(job, attempt)
    log_services.intent_ask(KIND, attempt.uid)
    if call == "put":
        plan.call, plan.when = call, when
    drive(work, plan)
    all_away(job)
    assert LogSegment.objects.count() > 3
    plan.call, plan.when = call, when
    fetch_all(job, work, plan)
    assert plan.done
    assert dict(LogChunk.objects.values_list("id", "text")) == before
    assert lines_of(job) == told


def test_a_running_job_keeps_its_newest_output_here(
    job: Job, attempt: Attempt, told: list[str], plan: Plan, work: Any, small: None, settings: Any
) -> None:
    settings.CONFIG.log_keep_mib = 1
    with time_machine.travel(clock.now() + timedelta(minutes=2)):
        log_services.intent_ask(KIND, attempt.uid)
        drive(work, plan)
        assert not LogSegment.objects.exists()
        big = ["y" * 200_000 + "\n" for _ in range(8)]
        say(attempt, big, first=1000)
    with time_machine.travel(clock.now() + timedelta(minutes=5)):
        log_services.intent_ask(KIND, attempt.uid)
        drive(work, plan)
        kept = sum(LogChunk.objects.values_list("size", flat=True))
        assert 900_000 < kept <= 1_250_000
        assert lines_after_fetch(job, work, plan) == [*told, *big]


def lines_after_fetch(job: Job, work: Any, plan: Plan) -> list[str]:
    fetch_all(job, work, plan)
    return lines_of(job)


def test_a_page_never_jumps_over_what_is_away(
    job: Job, attempt: Attempt, told: list[str], plan: Plan, work: Any, small: None
) -> None:
    ended(job, attempt)
    log_services.intent_ask(KIND, attempt.uid)
    drive(work, plan)
    middle = list(LogSegment.objects.all())[2]
    log_services.segments_want([middle])
    drive(work, plan)
    page = log_page(job, after_id=0)
    assert (page.chunks, len(page.away)) == ([], 1)
    page = log_page(job, after_id=middle.first_id - 1, limit=500)
    assert page.chunks[0].pk == middle.first_id
    assert page.chunks[-1].pk == middle.last_id
    assert page.has_earlier
    assert log_page(job, after_id=middle.last_id).away[0].first_id > middle.last_id
    assert log_page(job, tail=True).away[0] == list(LogSegment.objects.all())[-1]
    assert log_page(job, before_id=middle.last_id + 1).chunks[-1].pk == middle.last_id


def test_restored_output_goes_back_when_nobody_looks(
    job: Job, attempt: Attempt, told: list[str], plan: Plan, work: Any, small: None
) -> None:
    ended(job, attempt)
    log_services.intent_ask(KIND, attempt.uid)
    drive(work, plan)
    fetch_all(job, work, plan)
    assert LogChunk.objects.count() == LINES
    with time_machine.travel(clock.now() + timedelta(hours=2)):
        Intent.objects.update(due_at=clock.now())
        visit(work, KIND, plan)
        all_away(job)
        assert lines_after_fetch(job, work, plan) == told


def test_what_comes_late_is_stored_too(
    job: Job, attempt: Attempt, told: list[str], plan: Plan, work: Any, small: None
) -> None:
    ended(job, attempt)
    log_services.intent_ask(KIND, attempt.uid)
    drive(work, plan)
    say(attempt, ["the last words\n"], first=5000)
    assert Intent.objects.filter(kind=KIND).exists()
    drive(work, plan)
    all_away(job)
    assert lines_after_fetch(job, work, plan) == [*told, "the last words\n"]


def test_a_spoilt_object_is_told_and_nothing_is_made_up(
    job: Job,
    attempt: Attempt,
    told: list[str],
    plan: Plan,
    work: Any,
    small: None,
    tmp_path: Path,
    member_client: Client,
) -> None:
    ended(job, attempt)
    log_services.intent_ask(KIND, attempt.uid)
    drive(work, plan)
    segments = list(LogSegment.objects.all())
    (tmp_path / segments[-1].key).write_bytes(b"\x1f\x8b garbage")
    (tmp_path / segments[-2].key).unlink()
    fetch_all(job, work, plan)
    problems = {s.key: s.problem for s in LogSegment.objects.exclude(problem="")}
    assert "checksum" in problems[segments[-1].key]
    assert "there is no" in problems[segments[-2].key]
    answer = member_client.get(reverse("job-logs-data", args=[job.uid])).json()
    assert "checksum" in answer["away"]
    assert answer["is_fetching"] is False


def test_a_store_that_is_away_is_asked_again(
    job: Job, attempt: Attempt, told: list[str], plan: Plan, work: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Away:
        def put(self, key: str, body: bytes) -> None:
            raise Unavailable("no answer", source="s3")

    ended(job, attempt)
    real = doors.object_store
    monkeypatch.setattr(doors, "object_store", Away)
    log_services.intent_ask(KIND, attempt.uid)
    visit(work, KIND, plan)
    assert LogChunk.objects.count() == LINES
    monkeypatch.setattr(doors, "object_store", real)
    drive(work, plan)
    all_away(job)


def test_search_and_first_error(
    job: Job, attempt: Attempt, told: list[str], plan: Plan, work: Any, small: None, member_client: Client
) -> None:
    bad = LogChunk.objects.get(text__contains="Traceback")
    assert first_error(job) == bad.pk
    found = log_search(job, "nan IN layer")
    assert [h.chunk_id for h in found.hits] == [bad.pk]
    assert found.next_after is None
    assert [h.chunk_id for h in log_search(job, "", window=LogWindow(level=2)).hits] == [bad.pk]
    ended(job, attempt)
    log_services.intent_ask(KIND, attempt.uid)
    drive(work, plan)
    away = log_search(job, "layer")
    assert (away.hits, len(away.away)) == ([], LogSegment.objects.count())
    segment = LogSegment.objects.get(first_id__lte=bad.pk, last_id__gte=bad.pk)
    assert first_error(job) == segment.first_id
    answer = member_client.get(reverse("job-logs-search", args=[job.uid]), {"q": "layer", "fetch": "1"}).json()
    assert answer["has_away"]
    drive(work, plan)
    answer = member_client.get(reverse("job-logs-search", args=[job.uid]), {"q": "layer"}).json()
    assert [h["id"] for h in answer["hits"]] == [bad.pk]
    assert member_client.get(reverse("job-logs-error", args=[job.uid])).json() == {"id": bad.pk}
    assert member_client.get(reverse("job-logs-search", args=[job.uid]), {"q": "x"}).status_code == 400


def test_the_download_waits_for_what_is_away(
    job: Job, attempt: Attempt, told: list[str], plan: Plan, work: Any, small: None, member_client: Client
) -> None:
    ended(job, attempt)
    log_services.intent_ask(KIND, attempt.uid)
    drive(work, plan)
    address = reverse("job-logs-text", args=[job.uid])
    assert member_client.get(address).status_code == 302
    drive(work, plan)
    response = member_client.get(address)

    async def read() -> bytes:
        return b"".join([part async for part in response.streaming_content])

    assert async_to_sync(read)().decode() == "".join(told)


def test_the_api_pages_searches_and_says_when_to_come_again(
    job: Job, attempt: Attempt, told: list[str], plan: Plan, work: Any, small: None, member_client: Client
) -> None:
    base = f"/api/v1/jobs/{job.uid}/logs"
    page = member_client.get(base, {"limit": 5}).json()
    assert [c["text"] for c in page["chunks"]] == told[:5]
    assert member_client.get(f"{base}/first-error").json()["chunk_id"] == first_error(job)
    assert member_client.get(f"{base}/search", {"q": "traceback"}).json()["hits"][0]["level"] == 2
    assert member_client.get(base, {"level": "loud"}).status_code == 400
    ended(job, attempt)
    log_services.intent_ask(KIND, attempt.uid)
    drive(work, plan)
    answer = member_client.get(base)
    assert answer["Retry-After"] == "2"
    assert answer.json()["is_fetching"]


def test_many_runners_post_less_often(attempt: Attempt) -> None:
    say(attempt, ["a\n"])
    receipt = events_take(attempt, {"id": "r1"}, [])
    assert receipt.next_post_s == 1.0
    for rank in range(1, 100):
        say(attempt, ["a\n"], runner=f"r{rank}", rank=rank, role="rank")
    assert events_take(attempt, {"id": "r1"}, []).next_post_s == pytest.approx(99 / 20)
    assert attempt.streams.filter(role="rank").count() == attempt.streams.exclude(rank=None).count() == 98


@pytest.fixture
def member_client(client: Client, member: Any) -> Client:
    client.force_login(member)
    return client


def test_many_small_streams_are_rolled_together(
    job: Job, attempt: Attempt, plan: Plan, work: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred ranks of which none has written a segment's worth fill the database all the same."""
    monkeypatch.setattr(log_services, "SEGMENT_BYTES", 2 * 1024 * 1024)
    settings.CONFIG.log_keep_mib = 1
    for rank in range(1, 6):
        say(attempt, ["z" * 200_000 + "\n"] * 6, runner=f"rank-{rank}", rank=rank, role="rank")
    assert Intent.objects.filter(kind=KIND).exists()
    with time_machine.travel(clock.now() + timedelta(minutes=5)):
        drive(work, plan)
        assert sum(LogChunk.objects.values_list("size", flat=True)) <= 3.1 * 2**20
        assert LogSegment.objects.count() >= 1
