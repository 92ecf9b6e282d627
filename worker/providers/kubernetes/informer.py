"""What a cluster holds, kept up to date in memory: each kind listed once, then watched by a thread of its own."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from worker.providers import errors as e
from worker.providers.kubernetes.calls import Caller, Watch
from worker.providers.kubernetes.errors import SOURCE, HistoryGone, SlowDown
from worker.providers.kubernetes.resources import Resource, Served
from worker.providers.kubernetes.slim import slim

log = structlog.get_logger(__name__)
#: The kinds that are kept, with their group, where the server serves them.
KEPT: tuple[tuple[str, str], ...] = (
    ("", "Pod"),
    ("", "Node"),
    ("", "Event"),
    ("batch", "Job"),
    ("jobset.x-k8s.io", "JobSet"),
    ("kubeflow.org", "PyTorchJob"),
    ("trainer.kubeflow.org", "TrainJob"),
    ("kueue.x-k8s.io", "Workload"),
    ("kueue.x-k8s.io", "ClusterQueue"),
    ("kueue.x-k8s.io", "LocalQueue"),
)
#: Without these nothing can be said of jobs, and of nodes; what else may not be read is only missing.
NEEDED = frozenset({"Pod", "Node", "Job"})
#: Nobody read for so long: the threads end, the next reader starts them again.
IDLE_S = 600.0
#: The server ends a watch after about so long, so that they do not all begin anew at once.
WATCH_S = (240, 300)
#: Waits between two tries that failed, doubling.
BACKOFF_S = (0.5, 30.0)
#: A kind that we may not read, or that is gone, is asked for again after so long.
REFUSED_S = 300.0
#: Two lists of one kind lie at least so far apart, however often the server forgets.
RELIST_S = 1.0
#: How long a kind may fail before what is known of it counts as old.
STALE_S = 15.0
#: The first list of everything has so much time in a visit.
SYNC_S = 25.0
#: Deleted objects are remembered, the newest so many of a kind: how a job ended is asked after it is gone.
GONE_KEPT = 2000
EVENTS_KEPT = 5000

Key = tuple[str, str]


def key_of(thing: Mapping[str, Any]) -> Key:
    """Namespace and name."""
    head = thing["metadata"]
    return str(head.get("namespace") or ""), str(head.get("name") or "")


@dataclass
class Kind:
    """One kind as it is known: objects by key, each with the number of the change that brought it."""

    resource: Resource
    objects: dict[Key, dict[str, Any]] = field(default_factory=dict)
    seen: dict[Key, int] = field(default_factory=dict)
    gone: OrderedDict[str, dict[str, Any]] = field(default_factory=OrderedDict)
    is_synced: bool = False
    #: Why it cannot be read now, since when (monotonic); both empty while it can.
    problem: e.ProviderError | None = None
    failing_since: float = 0.0
    listed_at: float = float("-inf")
    version: int = 0


@dataclass(frozen=True)
class Known:
    """All that is known now. ``version`` moves whenever anything changed; ``problems`` are sentences by kind.

    ``seen`` are the numbers of the changes that brought each object, ``gone`` deleted objects by their uid, and
    ``versions`` the last change of each kind.
    """

    version: int
    kinds: Mapping[str, Mapping[Key, dict[str, Any]]]
    seen: Mapping[str, Mapping[Key, int]]
    gone: Mapping[str, Mapping[str, dict[str, Any]]]
    problems: Mapping[str, str]
    versions: Mapping[str, int]

    def of(self, kind: str) -> Mapping[Key, dict[str, Any]]:
        """The objects of a kind by namespace and name."""
        return self.kinds.get(kind, {})


class Informer:
    """The kept state of one cluster in one process. Readers call ``look``; it starts what is not running."""

    def __init__(self, caller: Caller, *, clock: Callable[[], float] = time.monotonic, idle_s: float = IDLE_S) -> None:
        self._caller = caller
        self._clock = clock
        self._idle_s = idle_s
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._kinds: dict[str, Kind] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._watches: dict[str, Watch] = {}
        self._version = 0
        self._served: Served | None = None
        self._looked_at = clock()
        self._stop = threading.Event()
        self._again = threading.Event()
        self._pid = os.getpid()

    # --- readers

    def look(self, needed: Iterable[str] = NEEDED, *, sync_s: float = SYNC_S) -> Known:
        """What is known; waits for the first list. Asks nothing of the server once the threads run.

        Raises what keeps one of the ``needed`` kinds from being read.
        """
        self._start()
        wanted = set(needed)
        end = self._clock() + sync_s
        with self._changed:
            while True:
                left = end - self._clock()
                # A kind that cannot be read any more is said at once; one that just failed gets its few tries.
                for name in wanted:
                    self._raise_if_stale(name)
                if all(kind.is_synced or kind.problem for kind in self._kinds.values()):
                    return self._known()
                if left <= 0:
                    waiting = sorted(name for name, kind in self._kinds.items() if not kind.is_synced)
                    if not wanted & set(waiting):
                        return self._known()
                    raise e.Unavailable(
                        f"the first list of {', '.join(waiting)} is not through yet", source=SOURCE, code="listing"
                    )
                self._changed.wait(min(left, 0.5))

    def served(self) -> Served:
        """What the server serves, as it was found when this began; asked where nobody did."""
        self._start()
        with self._lock:
            assert self._served is not None
            return self._served

    def discover(self) -> Served:
        """Ask the server again what it serves, and keep kinds that are new."""
        served = self._caller.served()
        self._start(served)
        return served

    def try_again(self) -> None:
        """Threads that wait after a failure go on at once: the token is another one now."""
        self._again.set()

    @property
    def version(self) -> int:
        """Moves whenever anything changed."""
        with self._lock:
            return self._version

    def wait_for(self, done: Callable[[Known], bool], timeout_s: float) -> bool:
        """Whether ``done`` came to hold in time: for what was just written to be seen."""
        end = self._clock() + timeout_s
        with self._changed:
            while not done(self._known()):
                left = end - self._clock()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True

    def stop(self) -> None:
        """End all threads and forget everything; ``look`` begins anew."""
        self._stop.set()
        with self._lock:
            threads, watches = list(self._threads.values()), list(self._watches.values())
        for watch in watches:
            watch.stop()
        with self._changed:
            self._changed.notify_all()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5)
        with self._lock:
            self._forget()

    def running(self) -> int:
        """Threads that are alive."""
        with self._lock:
            return sum(thread.is_alive() for thread in self._threads.values())

    # --- inside

    def _forget(self) -> None:
        self._kinds, self._threads, self._watches = {}, {}, {}
        self._served = None
        self._stop = threading.Event()
        # Whoever compares with an earlier state must not find it again.
        self._version += 1

    def _start(self, served: Served | None = None) -> None:
        if self._pid != os.getpid():
            # Threads do not come along into a forked process, and a lock may have been held at that moment.
            self._lock = threading.RLock()
            self._changed = threading.Condition(self._lock)
            self._pid = os.getpid()
            self._forget()
        self._looked_at = self._clock()
        with self._lock:
            is_whole = not self._stop.is_set() and all(thread.is_alive() for thread in self._threads.values())
        if not is_whole:
            # It ended because nobody read; what it knew is old.
            self.stop()
        with self._lock:
            if self._kinds and served is None:
                return
        # Asked outside of the lock: the server may be slow.
        found = served or self._caller.served()
        with self._lock:
            self._served = found
            for group, name in KEPT:
                resource = found.by_kind(name, group)
                if resource is None or (name in self._kinds and self._threads[name].is_alive()):
                    continue
                if resource.verbs and not {"list", "watch"} <= resource.verbs:
                    continue
                self._kinds[name] = kind = Kind(resource)
                self._threads[name] = thread = threading.Thread(
                    target=self._run, args=(kind, self._stop), name=f"watch-{resource.plural}", daemon=True
                )
                thread.start()

    def _raise_if_stale(self, name: str) -> None:
        kind = self._kinds.get(name)
        if kind is None or kind.problem is None:
            return
        is_old = self._clock() - kind.failing_since > STALE_S
        is_refused = isinstance(kind.problem, e.AccessDenied) and kind.problem.code != "Unauthorized"
        if not kind.is_synced or is_old or is_refused:
            raise kind.problem

    def _known(self) -> Known:
        return Known(
            version=self._version,
            kinds={name: dict(kind.objects) for name, kind in self._kinds.items()},
            seen={name: dict(kind.seen) for name, kind in self._kinds.items()},
            gone={name: dict(kind.gone) for name, kind in self._kinds.items()},
            problems={name: str(kind.problem) for name, kind in self._kinds.items() if kind.problem},
            versions={name: kind.version for name, kind in self._kinds.items()},
        )

    def _is_over(self, stop: threading.Event) -> bool:
        return stop.is_set() or self._clock() - self._looked_at > self._idle_s

    def _pause(self, kind: Kind, seconds: float, stop: threading.Event) -> None:
        """Wait, unless someone has a reason to think that it works now."""
        end = self._clock() + seconds
        if isinstance(kind.problem, e.AccessDenied):
            self._again.clear()
            while not stop.is_set() and not self._again.is_set() and self._clock() < end:
                stop.wait(0.2)
            return
        stop.wait(seconds)

    def _run(self, kind: Kind, stop: threading.Event) -> None:
        """List, watch, and again, until nobody reads any more."""
        wait_s, revision = BACKOFF_S[0], ""
        while not self._is_over(stop):
            try:
                if not revision:
                    stop.wait(max(0.0, kind.listed_at + RELIST_S - self._clock()))
                    if self._is_over(stop):
                        break
                    revision = self._list(kind)
                revision = self._watch(kind, revision, stop)
                wait_s = BACKOFF_S[0]
            except HistoryGone:
                revision = ""
                continue
            except e.NotFound as error:
                # The kind is not served any more, or in another version.
                self._failed(kind, error)
                self._gone_kind(kind)
                revision = ""
                stop.wait(REFUSED_S)
            except e.AccessDenied as error:
                self._failed(kind, error)
                # A token that just ran out comes back renewed; a right that we never had takes longer.
                self._pause(kind, wait_s if kind.is_synced or error.code == "Unauthorized" else REFUSED_S, stop)
                wait_s = min(wait_s * 2, BACKOFF_S[1])
            except Exception as error:
                told = error if isinstance(error, e.ProviderError) else e.Unavailable(f"{error}", source=SOURCE)
                if not isinstance(error, e.ProviderError):
                    log.exception("watch broke", kind=kind.resource.full_name)
                self._failed(kind, told)
                asked_s = error.retry_after_s if isinstance(error, SlowDown) else 0.0
                stop.wait(max(asked_s, wait_s * random.uniform(0.7, 1.3)))  # noqa: S311
                wait_s = min(wait_s * 2, BACKOFF_S[1])
        self._end(kind, stop)

    def _end(self, kind: Kind, stop: threading.Event) -> None:
        """What is kept of it is old from now on."""
        if not stop.is_set():
            # Nobody reads any more: the others end, too, so that the next reader begins with all.
            stop.set()
            with self._lock:
                watches = list(self._watches.values())
            for watch in watches:
                watch.stop()

    def _failed(self, kind: Kind, error: e.ProviderError) -> None:
        with self._changed:
            if kind.problem is None:
                kind.failing_since = self._clock()
            kind.problem = error
            self._changed.notify_all()

    def _works(self, kind: Kind) -> None:
        with self._changed:
            if kind.problem is not None:
                kind.problem, kind.failing_since = None, 0.0
                self._changed.notify_all()

    def _gone_kind(self, kind: Kind) -> None:
        with self._changed:
            if kind.objects:
                self._count(kind)
            kind.objects, kind.seen = {}, {}
            self._changed.notify_all()

    # --- the server's side

    def _list(self, kind: Kind) -> str:
        kind.listed_at = self._clock()
        items, revision = self._caller.listed(kind.resource.path())
        there = {key_of(item): slim(item) for item in items}
        with self._changed:
            for key in [key for key in kind.objects if key not in there]:
                self._drop(kind, key)
            for key, thing in there.items():
                self._put(kind, key, thing)
            kind.is_synced = True
            kind.problem, kind.failing_since = None, 0.0
            self._changed.notify_all()
        return revision

    def _watch(self, kind: Kind, revision: str, stop: threading.Event) -> str:
        """Take what a watch tells; the revision to go on from. Raises HistoryGone, or what ended it badly."""
        asked: dict[str, str | int] = {"resourceVersion": revision, "timeoutSeconds": random.randint(*WATCH_S)}  # noqa: S311
        name = kind.resource.kind
        began = self._clock()
        with self._caller.watch(kind.resource.path(), asked) as watch:
            with self._lock:
                self._watches[name] = watch
            self._works(kind)
            try:
                # Whoever ends all watches may have done so before this one was among them.
                for line in watch if not stop.is_set() else ():
                    revision = self._take(kind, line) or revision
                    if self._is_over(stop):
                        break
            except e.Unavailable as error:
                # Cut off: nothing is lost, the next goes on from where this one was.
                if stop.is_set() or error.code != "cut":
                    raise
                log.debug("watch cut", kind=kind.resource.full_name, error=str(error))
            finally:
                with self._lock:
                    self._watches.pop(name, None)
        # A server that ends every watch at once is not asked again at once.
        stop.wait(max(0.0, 0.25 - (self._clock() - began)))
        return revision

    def _take(self, kind: Kind, line: Mapping[str, Any]) -> str:
        thing = line["object"]
        head = thing.get("metadata") or {}
        revision = str(head.get("resourceVersion") or "")
        if line["type"] == "BOOKMARK":
            return revision
        key = key_of(thing)
        with self._changed:
            if line["type"] == "DELETED":
                if key in kind.objects:
                    kind.objects[key] = slim(thing)
                    self._drop(kind, key)
            elif line["type"] in ("ADDED", "MODIFIED"):
                self._put(kind, key, slim(thing))
            self._changed.notify_all()
        return revision

    def _count(self, kind: Kind) -> None:
        self._version += 1
        kind.version = self._version

    def _put(self, kind: Kind, key: Key, thing: dict[str, Any]) -> None:
        old = kind.objects.get(key)
        if old is not None and old["metadata"].get("resourceVersion") == thing["metadata"].get("resourceVersion"):
            return
        if old is not None and old["metadata"].get("uid") != thing["metadata"].get("uid"):
            self._drop(kind, key)
        self._count(kind)
        kind.objects[key] = thing
        kind.seen[key] = self._version
        if kind.resource.kind == "Event" and len(kind.objects) > EVENTS_KEPT:
            oldest = min(kind.seen, key=lambda one: kind.seen[one])
            del kind.objects[oldest], kind.seen[oldest]

    def _drop(self, kind: Kind, key: Key) -> None:
        thing = kind.objects.pop(key)
        kind.seen.pop(key, None)
        self._count(kind)
        if kind.resource.kind == "Event":
            return
        kind.gone[str(thing["metadata"].get("uid") or "")] = thing
        while len(kind.gone) > GONE_KEPT:
            kind.gone.popitem(last=False)
