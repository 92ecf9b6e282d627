"""Submitting: the objects of one attempt made one after the other, each at most once, whoever was killed in between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from worker.providers import values as v
from worker.providers.errors import AccessDenied, Conflict, InvalidRequest, NotFound, QuotaExceeded, Unsupported
from worker.providers.kubernetes import names
from worker.providers.kubernetes.calls import Caller, path_of
from worker.providers.kubernetes.ends import has_ended, is_live, is_overdue
from worker.providers.kubernetes.errors import EXISTS, SOURCE
from worker.providers.kubernetes.made_kinds import DELETED_KINDS, KEPT_KINDS, RUNNING_KINDS
from worker.providers.kubernetes.manifest import prepared, read_manifest
from worker.providers.kubernetes.render import WORKLOAD_KINDS, owned, render
from worker.providers.kubernetes.resources import Resource, Served
from worker.providers.kubernetes.works import MANIFEST, attempt_of, is_own
from worker.providers.kubernetes.yaml_text import Unreadable
from worker.providers.workload_values import WorkloadSubmit

Thing = dict[str, Any]


class Taken(Conflict):
    """The name is somebody else's object's: it stays so, however often it is asked."""


#: What cannot come to anything by asking again: what was made so far is taken back.
_FINAL = (InvalidRequest, Unsupported, QuotaExceeded, AccessDenied, NotFound, Taken)


class Submitter:
    """Makes and unmakes the objects of attempts."""

    def __init__(self, caller: Caller, served: Served) -> None:
        self._caller = caller
        self._served = served

    def submit(self, request: WorkloadSubmit) -> v.SubmitReceipt:
        """Make what is missing of an attempt's objects; asked again, it goes on where it was.

        Raises InvalidRequest, after taking back what it made, where the cluster will not have it or a name is taken by
        somebody else's object; Conflict while something of that name is just being deleted.
        """
        if request.manifest:
            return self._manifest(request)
        if request.spec is None:
            raise InvalidRequest("there is neither a workload nor a manifest to submit", source=SOURCE)
        objects = render(request.spec, request.kind)
        # A kind that the server has not is found before anything is made.
        for thing in objects:
            self.resource(thing)
        workload: Thing | None = None
        earlier: list[Thing] = []
        try:
            for thing in objects:
                if thing["kind"] in WORKLOAD_KINDS:
                    workload = self._ensure(thing, request.uid)
                elif workload is None:
                    earlier.append(self._ensure(thing, request.uid))
                else:
                    self._ensure(owned(thing, workload), request.uid)
            assert workload is not None
            for thing in earlier:
                self._own(thing, workload)
        except _FINAL as error:
            self.take_back([*([workload] if workload else []), *earlier], request.uid)
            raise _as_refusal(error) from error
        head = workload["metadata"]
        return v.SubmitReceipt(f"{head['namespace']}/{workload['kind']}/{head['name']}")

    def _manifest(self, request: WorkloadSubmit) -> v.SubmitReceipt:
        things = self._prepared(request)
        for thing in things:
            self.resource(thing)
        made: list[Thing] = []
        try:
            if not self.made(request.namespace, request.uid, (thing["kind"] for thing in things)):
                self._make_room(things, request)
                self._rehearse(things, request.uid)
            for thing in things:
                made.append(self._ensure(thing, request.uid))
        except _FINAL as error:
            self.take_back(made, request.uid)
            raise _as_refusal(error) from error
        return v.SubmitReceipt(f"{request.namespace}/{MANIFEST}/{names.object_name(request.uid)}")

    def _prepared(self, request: WorkloadSubmit) -> list[Thing]:
        manifest = read_manifest(request.manifest)
        if manifest.problem is not None:
            raise InvalidRequest(f"the manifest: {manifest.problem}", source=SOURCE)
        try:
            ready = prepared(
                manifest,
                job=request.job_uid,
                attempt=request.uid,
                team=request.team,
                owner=request.owner,
                queue=request.queue,
                scheduler=request.scheduler,
            )
        except Unreadable as error:
            raise InvalidRequest(f"the manifest: {error.problem}", source=SOURCE) from error
        return [_placed(thing, request.namespace) for thing in ready.objects]

    def _make_room(self, things: Sequence[Thing], request: WorkloadSubmit) -> None:
        """Delete what an ended attempt left under the same names. Raises Conflict while something is still ending."""
        ending = False
        for thing in things if request.replaces else ():
            resource, head = self.resource(thing), thing["metadata"]
            try:
                there = self._caller.get(resource.path(head["namespace"], head["name"]))["metadata"]
            except (NotFound, AccessDenied):
                continue
            if attempt_of(there) not in request.replaces or not is_own(there) or thing["kind"] in KEPT_KINDS:
                continue
            with suppress(NotFound):
                self._caller.delete(resource.path(head["namespace"], head["name"]), uid=str(there.get("uid") or ""))
                self._caller.get(resource.path(head["namespace"], head["name"]))
                ending = True
        if ending:
            raise Conflict("what an earlier attempt left is still being deleted", source=SOURCE, code="ending")

    def _rehearse(self, things: Sequence[Thing], uid: str) -> None:
        """Let the server judge every document before the first is made, so that a refusal leaves nothing behind."""
        runtimes = {thing["metadata"].get("name") for thing in things if thing["kind"] == "TrainingRuntime"}
        for number, thing in enumerate(things, start=1):
            reference = (thing.get("spec") or {}).get("runtimeRef") or {}
            if thing["kind"] == "TrainJob" and reference.get("name") in runtimes:
                # The server refuses it as long as its runtime, which comes with it, is not there.
                continue
            resource = self.resource(thing)
            try:
                self._caller.create(resource.path(thing["metadata"]["namespace"]), thing, dry_run=True)
            except Conflict as error:
                if error.code != EXISTS:
                    raise
                self._ours(resource, thing, uid)
            except _FINAL as error:
                raise InvalidRequest(f"document {number}: {error.message}", source=SOURCE, code=error.code) from error

    # --- one object

    def resource(self, thing: Mapping[str, Any]) -> Resource:
        """Where objects of this kind are. Raises InvalidRequest where the server has no such kind."""
        version, kind = str(thing.get("apiVersion") or ""), str(thing.get("kind") or "")
        group, _sep, _version = version.rpartition("/")
        found = self._served.by_kind(kind, group)
        if found is None or found.api_version != version:
            raise InvalidRequest(
                f"the cluster serves no {kind} of {version}; its operator has to install it", source=SOURCE, code="kind"
            )
        return found

    def _ensure(self, thing: Thing, uid: str) -> Thing:
        """Make it, or find what an earlier call made. The answer is the server's, with kind and version."""
        resource = self.resource(thing)
        try:
            made = self._caller.create(resource.path(thing["metadata"]["namespace"]), thing)
        except Conflict as error:
            if error.code != EXISTS:
                raise
            made = self._ours(resource, thing, uid)
        return {**made, "apiVersion": thing["apiVersion"], "kind": thing["kind"]}

    def _ours(self, resource: Resource, thing: Thing, uid: str) -> Thing:
        head = thing["metadata"]
        try:
            there = self._caller.get(resource.path(head["namespace"], head["name"]))
        except AccessDenied:
            if head["name"] == names.object_name(uid):
                # The name holds the attempt's uid, which nobody else knows; we may write it and not read it.
                return thing
            raise Taken(
                f"{resource.full_name} {head['name']} in namespace {head['namespace']} is there already, and whose it "
                "is the portal may not look: delete it, or give it another name",
                source=SOURCE,
                code="taken",
            ) from None
        if attempt_of(there.get("metadata") or {}) != uid:
            raise Taken(
                f"{resource.full_name} {head['name']} in namespace {head['namespace']} is there already and is "
                "not this job's: delete it, or give this one another name",
                source=SOURCE,
                code="taken",
            )
        if (there.get("metadata") or {}).get("deletionTimestamp"):
            raise Conflict(f"{resource.full_name} {head['name']} is just being deleted", source=SOURCE, code="ending")
        return there

    def _own(self, thing: Thing, workload: Thing) -> None:
        """Let what had to be there first belong to the workload, so that it goes with it."""
        if thing["metadata"].get("ownerReferences"):
            return
        references = owned(thing, workload)["metadata"]["ownerReferences"]
        with suppress(NotFound):
            self._caller.patch(path_of(self.resource(thing), thing), {"metadata": {"ownerReferences": references}})

    # --- all of an attempt

    def made(self, namespace: str, uid: str, kinds: Iterable[str]) -> list[tuple[Resource, Thing]]:
        """What is there of an attempt, of these kinds."""
        found = []
        selector = {"labelSelector": f"{names.LABEL_ATTEMPT}={names.label_value(uid)}"}
        for kind in dict.fromkeys(kinds):
            resource = self._served.by_kind(kind)
            if resource is not None:
                try:
                    items, _revision = self._caller.listed(resource.path(namespace), selector)
                except AccessDenied:
                    # Secrets, say: what belongs to a workload goes with it all the same.
                    continue
                found += [(resource, item) for item in items if attempt_of(item.get("metadata") or {}) == uid]
        # What was made for it, and what that made: not what somebody copied from it, labels and all.
        ours = {_uid(item) for _resource, item in found if _maker(item) is None and is_own(item["metadata"])}
        for _depth in range(3):
            ours |= {_uid(item) for _resource, item in found if _maker(item) in ours}
        return [(resource, item) for resource, item in found if _uid(item) in ours]

    def take_back(self, things: Sequence[Thing], uid: str) -> None:
        """Delete what was just made for an attempt that will not be; what cannot be deleted now, the sweep finds."""
        for thing in things:
            head = thing["metadata"]
            if attempt_of(head) != uid or not is_own(head):
                continue
            # The cluster's refusal is what a person has to read, whatever becomes of this.
            with suppress(Exception):
                self._caller.delete(path_of(self.resource(thing), thing), uid=str(head.get("uid") or ""))

    def delete_all(self, namespace: str, uid: str) -> int:
        """Delete everything of an attempt but what holds data; how much was there."""
        return self._delete(self.made(namespace, uid, DELETED_KINDS))

    def _delete(self, found: Sequence[tuple[Resource, Thing]]) -> int:
        """What a controller made goes when that goes; where something holds that back, its pods are ended at once."""
        held_back = {_uid(item) for _resource, item in found if item["metadata"].get("deletionTimestamp")}
        for _depth in range(3):
            held_back |= {_uid(item) for _resource, item in found if _maker(item) in held_back}
        tops = [(resource, item) for resource, item in found if _maker(item) is None]
        pods = [(r, item) for r, item in found if r.kind == "Pod" and _maker(item) in held_back]
        for resource, item in [*tops, *pods]:
            if resource.kind not in KEPT_KINDS and not item["metadata"].get("deletionTimestamp"):
                with suppress(NotFound):
                    self._caller.delete(path_of(resource, item), uid=_uid(item))
        return len(tops)

    def end_rest(self, namespace: str, uid: str, now: datetime) -> bool:
        """Delete what of an attempt's objects still runs or may run again; whether there was any.

        What has ended stays, for it says how.
        """
        found = self.made(namespace, uid, RUNNING_KINDS)
        ended = {_uid(item) for _resource, item in found if _maker(item) is None and has_ended(item)}
        below = set(ended)
        for _depth in range(3):
            below |= {_uid(item) for _resource, item in found if _maker(item) in below}
        pods = [item for resource, item in found if resource.kind == "Pod" and is_live(item)]
        left = [(resource, item) for resource, item in found if _uid(item) not in below]
        self._delete(left)
        is_new = any(not item["metadata"].get("deletionTimestamp") for _r, item in left if _maker(item) is None)
        return is_new or any(not is_overdue(pod, now) for pod in pods)

    def uids(self) -> set[tuple[str, str]]:
        """Namespace and attempt of everything that names one, of every kind that may be looked at."""
        found: set[tuple[str, str]] = set()
        for kind in DELETED_KINDS:
            resource = self._served.by_kind(kind)
            if resource is None:
                continue
            try:
                items, _revision = self._caller.listed(resource.path(), {"labelSelector": names.LABEL_ATTEMPT})
            except AccessDenied:
                continue
            heads = [item["metadata"] for item in items if is_own(item["metadata"])]
            found |= {(str(head["namespace"]), attempt_of(head)) for head in heads}
        return found


def _uid(item: Thing) -> str:
    return str(item["metadata"].get("uid") or "")


def _maker(item: Thing) -> str | None:
    """The uid of the controller that made it, None where a person or the portal did."""
    rows = item["metadata"].get("ownerReferences") or ()
    return next((str(row.get("uid")) for row in rows if row.get("controller")), None)


def _placed(thing: Thing, namespace: str) -> Thing:
    head = thing["metadata"]
    notes = {**(head.get("annotations") or {}), names.OBJECT: str(head.get("name") or "")}
    return {**thing, "metadata": {**head, "namespace": namespace, "annotations": notes}}


def _as_refusal(error: Exception) -> Exception:
    """A namespace that is not there, or a name that is another's, is for a person to put right."""
    if isinstance(error, NotFound | Taken):
        return InvalidRequest(error.message, source=SOURCE, code=error.code)
    return error
