"""What a cluster tells beside the state of jobs: its events in words, and the pods whose output is to be read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from worker.providers.kubernetes.decode import index_of
from worker.providers.kubernetes.ends import Scene
from worker.providers.kubernetes.informer import Known
from worker.providers.kubernetes.pod_sets import as_list, as_map, at
from worker.providers.kubernetes.reasons import event_reason
from worker.providers.kubernetes.works import Roots, Thing, Work
from worker.providers.values import Text

_WORDS = 200


@dataclass(frozen=True, slots=True)
class Told:
    """An event about a workload. ``key`` is the cluster's own id of it with its count."""

    scheduler_id: str
    key: str
    code: str
    text: Text
    is_bad: bool
    at: datetime


@dataclass(frozen=True, slots=True)
class ContainerLog:
    """A container whose output can be read. ``exit_code`` is None while it runs; ``has_ended``: nothing more comes."""

    scheduler_id: str
    namespace: str
    pod: str
    pod_uid: str
    container: str
    index: int
    node: str
    has_ended: bool
    exit_code: int | None
    is_leaving: bool = False


def tellings(known: Known, works: Mapping[str, Work], scene: Scene, since: int) -> list[Told]:
    """The events that came after the change ``since`` and say something of a workload, the oldest first."""
    roots = Roots(known, gone=True)
    by_pod: dict[tuple[str, str], Thing] = {}
    for pod in (*known.gone.get("Pod", {}).values(), *known.of("Pod").values()):
        by_pod[str(pod["metadata"].get("namespace")), str(pod["metadata"]["name"])] = pod
    ids = _ids_by_root(works)
    on_nodes: dict[str, set[str]] = {}
    for work in works.values():
        for pod in work.pods:
            on_nodes.setdefault(str(at(pod, "spec", "nodeName") or ""), set()).add(work.id)
    found: list[Told] = []
    for key, event in known.of("Event").items():
        if known.seen["Event"].get(key, 0) <= since:
            continue
        about = as_map(event.get("involvedObject"))
        reason = event_reason(event, scene.who)
        when = _when(event, scene)
        if reason is None or when is None:
            continue
        kind, namespace, name = (str(about.get(part) or "") for part in ("kind", "namespace", "name"))
        meant: Collection[str] = ()
        if kind == "Node":
            meant = on_nodes.get(name, ())
        elif kind == "Pod" and (pod_ := _same(by_pod.get((namespace, name)), about)) is not None:
            meant = _one(ids, roots, pod_)
        elif kind == "Workload" and (queued := _same(known.of("Workload").get((namespace, name)), about)) is not None:
            meant = _one(ids, roots, queued)
        elif (thing := roots.by_uid(str(about.get("uid") or ""))) is not None:
            meant = _one(ids, roots, thing)
        count = as_map(event.get("series")).get("count") or event.get("count") or 1
        mark = f"{event['metadata'].get('uid') or '/'.join(key)}:{count}"[:_WORDS]
        is_bad = event.get("type") == "Warning" or reason.is_final
        found += [Told(work_id, mark, reason.code[:60], reason.text, is_bad, when) for work_id in sorted(meant)]
    return sorted(found, key=lambda told: told.at)


def _same(thing: Thing | None, about: Mapping[str, object]) -> Thing | None:
    """What an event is about, unless that was an earlier one of the same name."""
    is_other = thing is not None and about.get("uid") and about["uid"] != thing["metadata"].get("uid")
    return None if is_other else thing


def _when(event: Thing, scene: Scene) -> datetime | None:
    series = as_map(event.get("series"))
    for told in (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        at(event, "metadata", "creationTimestamp"),
    ):
        if (found := scene.at(told)) is not None:
            return found
    return None


def _ids_by_root(works: Mapping[str, Work]) -> dict[tuple[str, str, str], tuple[str, str]]:
    """The id under which a root goes, its own or that of the manifest that it came with, and the root's uid."""
    found: dict[tuple[str, str, str], tuple[str, str]] = {}
    for work in works.values():
        for part in work.parts or [work]:
            found[part.namespace, part.kind, part.name] = work.id, str(at(part.root, "metadata", "uid") or "")
    return found


def _one(ids: Mapping[tuple[str, str, str], tuple[str, str]], roots: Roots, thing: Thing) -> Collection[str]:
    place = roots.of(thing)
    if place is None or (known := ids.get(place[:3])) is None:
        return ()
    work_id, uid = known
    # A manifest may bring a name that an earlier job had: what was said of that one is not about this one.
    is_other = uid and place[3] is not None and uid != place[3]["metadata"].get("uid")
    return () if is_other else (work_id,)


def logs_of(works: Mapping[str, Work], scheduler_ids: Collection[str]) -> list[ContainerLog]:
    """The containers of these workloads that have begun, in the order of their ranks."""
    found: list[ContainerLog] = []
    for scheduler_id in scheduler_ids:
        work = works.get(scheduler_id)
        for pod in sorted(work.pods, key=index_of) if work is not None else ():
            found += _containers(scheduler_id, pod)
    return found


def _containers(scheduler_id: str, pod: Thing) -> list[ContainerLog]:
    head = as_map(pod["metadata"])
    found = []
    for row in as_list(at(pod, "status", "containerStatuses")):
        state = as_map(as_map(row).get("state"))
        ended = as_map(state.get("terminated"))
        if not ended and not as_map(state.get("running")):
            continue
        code = ended.get("exitCode")
        found.append(
            ContainerLog(
                scheduler_id=scheduler_id,
                namespace=str(head.get("namespace") or ""),
                pod=str(head.get("name") or ""),
                pod_uid=str(head.get("uid") or ""),
                container=str(as_map(row).get("name") or ""),
                index=index_of(pod),
                node=str(at(pod, "spec", "nodeName") or ""),
                has_ended=bool(ended),
                exit_code=code if isinstance(code, int) else None,
                is_leaving=bool(head.get("deletionTimestamp")),
            )
        )
    return found


def parse_lines(content: bytes, after: str, taken: int, *, is_whole: bool) -> tuple[list[tuple[str, bytes]], str, int]:
    """New lines of a log with timestamps, and how far it has been read: the last timestamp, and how many lines of it.

    ``after`` and ``taken`` are what the read before gave. Unless ``is_whole`` what follows the last line break waits.
    """
    if not is_whole:
        content = content[: content.rfind(b"\n") + 1]
    found: list[tuple[str, bytes]] = []
    # A log is in the order in which it was written; clocks of nodes may step back, so the marker is looked for.
    rows = [line.partition(b" ") for line in content.split(b"\n") if line]
    stamps = [stamp.decode("ascii", "replace") for stamp, _sep, _text in rows]
    start = 0
    if after:
        same = [number for number, stamp in enumerate(stamps) if stamp == after]
        if same:
            start = same[min(taken, len(same)) - 1] + 1 if taken else same[0]
        else:
            start = next((number for number, stamp in enumerate(stamps) if order(stamp) > order(after)), len(rows))
    last, count = after, taken
    for number in range(start, len(rows)):
        stamp = stamps[number]
        count = count + 1 if stamp == last else 1
        last = stamp
        found.append((stamp, rows[number][2] + b"\n"))
    return found, last, count


def order(stamp: str) -> tuple[str, str]:
    """A timestamp with any number of digits behind the second, as something to compare."""
    second, _dot, rest = stamp.rstrip("Z").partition(".")
    return second, rest.ljust(9, "0")
