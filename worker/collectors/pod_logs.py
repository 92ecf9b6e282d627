"""Output of jobs that no runner reports, read from their pods: no line twice, none lost, to each container's end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from apps.clusters.models import Cluster
from apps.clusters.selectors import cluster_by_uid
from apps.clusters.states import ClusterPhase
from apps.core import clock
from apps.jobs.array_rules import array_of
from apps.jobs.models import Attempt, RunnerStream
from apps.jobs.pod_observations import attempts_to_listen_to, pod_read, pod_streams
from worker import kube_doors
from worker.collectors import WRITTEN
from worker.engine import DONE, Outcome, again
from worker.providers.errors import InvalidRequest, NotFound, ProviderError
from worker.providers.kubernetes.told import ContainerLog, order, parse_lines

if TYPE_CHECKING:
    from worker.providers.kubernetes.scheduler import KubernetesScheduler

#: Attempts, containers and bytes a visit; the rest the next, those not read for longest first.
ATTEMPTS, CONTAINERS, BYTES = 200, 64, 8 * 1024 * 1024
#: One read of one container, and what it may grow to where a single second holds more.
PART, MOST = 256 * 1024, 16 * 1024 * 1024
PERIOD_S, LEAVING_S, AWAY_S = 3.0, 0.5, 15.0

#: When each container was read last, by cluster, attempt and container.
_read_at: dict[str, dict[tuple[int, str], float]] = {}


def read(uid: str) -> Outcome:
    """One bounded round over a cluster's containers."""
    cluster = cluster_by_uid(uid)
    if cluster is None or cluster.delete_requested_at is not None or not (cluster.is_kubernetes and cluster.takes_jobs):
        return DONE
    if cluster.phase not in (ClusterPhase.READY, ClusterPhase.UNREACHABLE):
        return again(AWAY_S)
    attempts = attempts_to_listen_to(cluster, ATTEMPTS)
    if not attempts:
        _read_at.pop(uid, None)
        return again(PERIOD_S)
    try:
        return _round(cluster, attempts)
    except ProviderError:
        return again(AWAY_S)


def _round(cluster: Cluster, attempts: list[Attempt]) -> Outcome:
    scheduler = kube_doors.kubernetes_for(cluster)
    by_id = {attempt.scheduler_id: attempt for attempt in attempts}
    streams = pod_streams(attempts)
    before = _read_at.get(cluster.uid, {})
    waiting: list[tuple[float, ContainerLog, Attempt, RunnerStream | None]] = []
    for one in scheduler.logs_of(by_id):
        attempt = by_id[one.scheduler_id]
        stream = streams.get((attempt.pk, runner_id_of(one)))
        if stream is None or stream.exit_code is None:
            waiting.append((before.get((attempt.pk, runner_id_of(one)), 0.0), one, attempt, stream))
    read_at = {(a.pk, runner_id_of(one)): at for at, one, a, _stream in waiting}
    # Containers that are over are forgotten here.
    _read_at[cluster.uid] = read_at
    # What is about to go is read first, then what waited longest.
    waiting.sort(key=lambda row: (not (row[1].is_leaving or row[1].has_ended), row[0]))
    left, has_more = BYTES, len(waiting) > CONTAINERS
    for _at, one, attempt, stream in waiting[:CONTAINERS]:
        read_at[attempt.pk, runner_id_of(one)] = clock.now().timestamp()
        used, is_full = _container(scheduler, one, attempt, stream)
        left -= used
        has_more |= is_full
        if left <= 0:
            has_more = True
            break
    if has_more:
        return again(0)
    return again(LEAVING_S if any(row[1].is_leaving for row in waiting) else PERIOD_S)


def runner_id_of(one: ContainerLog) -> str:
    """Under which its output is kept."""
    return f"pod:{one.pod_uid}:{one.container}"[:64]


def _container(
    scheduler: KubernetesScheduler, one: ContainerLog, attempt: Attempt, stream: RunnerStream | None
) -> tuple[int, bool]:
    """Read one container on from where it was; bytes read, and whether there may be more at once."""
    before = stream.cursor if stream is not None else ""
    after, _sep, count = before.partition("#")
    taken = int(count or 0)
    size = PART
    while True:
        try:
            content = scheduler.log(one, after, size)
        except (NotFound, InvalidRequest):
            # Gone with its pod, or not begun: what was read is kept.
            return 0, False
        is_cut = len(content) >= size
        lines, last, seen = parse_lines(content, after, taken, is_whole=one.has_ended and not is_cut)
        if lines or not is_cut or size >= MOST:
            break
        # A single second holds more than was asked for, and reads begin at whole seconds.
        size = min(size * 4, MOST)
    is_over = one.has_ended and not is_cut
    if not lines and not is_over:
        return len(content), False
    rank = one.index
    task = _task(attempt, one.index)
    cursor = f"{last}#{seen}" if last else before
    stored = pod_read(
        attempt,
        runner_id_of(one),
        [(_instant(stamp), text) for stamp, text in lines],
        before=before,
        cursor=cursor,
        node=one.node,
        rank=None if task is not None else rank,
        task=task,
        exit_code=(one.exit_code or 0) if is_over else None,
    )
    WRITTEN.labels("pod_logs").inc(len(lines) if stored else 0)
    return len(content), is_cut


def _task(attempt: Attempt, index: int) -> int | None:
    if not attempt.array:
        return None
    tasks = array_of(attempt.array).tasks
    return tasks[index] if index < len(tasks) else None


def _instant(stamp: str) -> datetime:
    second, part = order(stamp)
    try:
        return datetime.fromisoformat(f"{second}.{part[:6]}").replace(tzinfo=UTC)
    except ValueError:
        return clock.now()
