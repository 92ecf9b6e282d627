"""Subresources and reviews: scale, binding, eviction, log, tokens, and who may do what."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sandbox.kubernetes.access import Access, Attempt, User
from sandbox.kubernetes.logs import LogQuery, Logs
from sandbox.kubernetes.patches import json_patch, merge_patch
from sandbox.kubernetes.registry import Kind
from sandbox.kubernetes.selectors import requirements_of
from sandbox.kubernetes.status import (
    ApiError,
    Object,
    bad_request,
    conflict,
    method_not_allowed,
    not_found,
    success,
    too_many_requests,
)
from sandbox.kubernetes.target import Request, Target
from sandbox.kubernetes.writes import How, Removal, Writer, stamp


def _at(thing: Object, path: str) -> Any:
    found: Any = thing
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


class Subresources:
    """What hangs below an object."""

    def __init__(self, writer: Writer, access: Access, logs: Logs) -> None:
        self.writer = writer
        self.access = access
        self.logs = logs

    # --- scale

    def scale(self, target: Target, request: Request, how: How) -> Object:
        """Read or set the number of replicas. Raises ApiError."""
        kind = target.kind
        with self.writer.store.lock:
            thing = self.writer.read(kind, target.namespace, target.name)
            if request.method == "GET":
                return self._scale_of(kind, thing)
            body = request.document()
            if request.method == "PATCH":
                change = json_patch if request.content_type.endswith("json-patch+json") else merge_patch
                body = change(self._scale_of(kind, thing), body)
            wanted = _at(body if isinstance(body, dict) else {}, "spec.replicas") or 0
            if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 0:
                raise bad_request(f"spec.replicas: {wanted!r} is no count")
            new = copy.deepcopy(thing)
            *parents, last = kind.scale[0].split(".")
            part = new
            for name in parents:
                part = part.setdefault(name, {})
            part[last] = wanted
            revision = _at(body, "metadata.resourceVersion")
            if revision and revision != thing["metadata"]["resourceVersion"]:
                raise conflict(kind.plural, kind.group, target.name)
            return self._scale_of(kind, self.writer.change(kind, thing, new, how))

    @staticmethod
    def _scale_of(kind: Kind, thing: Object) -> Object:
        metadata = thing["metadata"]
        names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        told: Object = {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {key: metadata[key] for key in names if key in metadata},
            "spec": {"replicas": _at(thing, kind.scale[0]) or 0},
            "status": {"replicas": _at(thing, kind.scale[1]) or 0},
        }
        selector = _at(thing, kind.scale[2]) if kind.scale[2] else None
        if isinstance(selector, dict):
            selector = ",".join(f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items())
        if selector:
            told["status"]["selector"] = selector
        return told

    # --- pods

    def bind(self, namespace: str, name: str, body: Object, how: How) -> Object:
        """Put a pod on a node. Raises ApiError (409 where it is on one)."""
        node = _at(body, "target.name")
        if not node:
            raise bad_request("target.name: Required value")
        pods = self._pods()
        with self.writer.store.lock:
            old = self.writer.read(pods, namespace, name)
            if old["spec"].get("nodeName"):
                raise conflict("pods", "", name, f"pod {name} is already assigned to node {old['spec']['nodeName']!r}")
            new = copy.deepcopy(old)
            new["spec"]["nodeName"] = node
            status = new.setdefault("status", {})
            kept = [one for one in status.get("conditions") or () if one["type"] != "PodScheduled"]
            now = stamp(self.writer.clock())
            status["conditions"] = [*kept, {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}]
            if not how.dry_run:
                self.writer.store.put(self.writer.key(pods, namespace, name), new)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def evict(self, namespace: str, name: str, body: Object, how: How) -> Object:
        """Delete a pod unless a disruption budget forbids it now. Raises ApiError (429)."""
        pods = self._pods()
        with self.writer.store.lock:
            pod = self.writer.read(pods, namespace, name)
            labels = pod["metadata"].get("labels") or {}
            for budget in self.writer.store.scan("poddisruptionbudgets.policy", namespace):
                selector = requirements_of((budget.get("spec") or {}).get("selector") or {})
                held = bool(selector) and all(one.holds(labels) for one in selector)
                if held and not (budget.get("status") or {}).get("disruptionsAllowed", 0):
                    error = too_many_requests(10)
                    error.message = "Cannot evict pod as it would violate the pod's disruption budget."
                    named = budget["metadata"]["name"]
                    error.details["causes"] = [
                        {"reason": "DisruptionBudget", "message": f"The disruption budget {named}"}
                    ]
                    raise error
            options = body.get("deleteOptions") or {}
            if not how.dry_run:
                self._mark_evicted(pods, pod)
            removal = Removal(grace_s=options.get("gracePeriodSeconds"))
            self.writer.delete(pods, namespace, name, removal, dry_run=how.dry_run)
        return success("pods", "", name, pod["metadata"]["uid"])

    def _mark_evicted(self, pods: Kind, pod: Object) -> None:
        """What the API server writes down before it deletes one that was asked to leave."""
        status = dict(pod.get("status") or {})
        if status.get("phase") in ("Succeeded", "Failed"):
            return
        kept = [one for one in status.get("conditions") or () if one["type"] != "DisruptionTarget"]
        row = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastTransitionTime": stamp(self.writer.clock()),
        }
        key = self.writer.key(pods, pod["metadata"]["namespace"], pod["metadata"]["name"])
        self.writer.store.put(key, {**copy.deepcopy(pod), "status": {**status, "conditions": [*kept, row]}})

    def log(self, target: Target, request: Request) -> Iterator[bytes]:
        """A container's log. Raises ApiError (400 where it has not begun)."""
        pod = self.writer.read(target.kind, target.namespace, target.name)
        containers = [one["name"] for one in pod["spec"].get("containers") or ()]
        every = containers + [one["name"] for one in pod["spec"].get("initContainers") or ()]
        wanted = request.query.get("container") or (containers[0] if len(containers) == 1 else "")
        if not wanted:
            raise bad_request(
                f"a container name must be specified for pod {target.name}, choose one of: [{' '.join(every)}]"
            )
        if wanted not in every:
            raise bad_request(f"container {wanted} is not valid for pod {target.name}")
        uid = pod["metadata"]["uid"]
        run = self._run(pod, wanted)
        if request.flag("previous"):
            if run == 0:
                raise bad_request(f'previous terminated container "{wanted}" in pod "{target.name}" not found')
            run -= 1
        path = self.logs.path(uid, wanted, run)
        if not path.exists() and pod.get("status", {}).get("phase") in (None, "Pending"):
            raise bad_request(f'container "{wanted}" in pod "{target.name}" is waiting to start: ContainerCreating')
        return self.logs.read(path, self._log_query(request), lambda: self._over(target, uid, wanted))

    def _log_query(self, request: Request) -> LogQuery:
        since = request.number("sinceSeconds")
        begin = None if since is None else self.writer.clock() - since
        if moment := request.query.get("sinceTime"):
            try:
                begin = datetime.fromisoformat(moment).timestamp()
            except ValueError:
                raise bad_request(f"sinceTime: {moment!r} is no instant") from None
        tail, limit = request.number("tailLines"), request.number("limitBytes")
        for name, number in (("tailLines", tail), ("limitBytes", limit), ("sinceSeconds", since)):
            if number is not None and number < 0:
                raise ApiError(422, "Invalid", f"PodLogOptions is invalid: {name}: must be greater than or equal to 0")
        return LogQuery(
            follow=request.flag("follow"),
            tail_lines=tail,
            since=begin,
            timestamps=request.flag("timestamps"),
            limit_bytes=limit,
        )

    @staticmethod
    def _run(pod: Object, container: str) -> int:
        status = pod.get("status") or {}
        for one in [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]:
            if one["name"] == container:
                return int(one.get("restartCount", 0))
        return 0

    def _over(self, target: Target, uid: str, container: str) -> bool:
        try:
            pod = self.writer.read(target.kind, target.namespace, target.name)
        except ApiError:
            return True
        status = pod.get("status") or {}
        if pod["metadata"]["uid"] != uid or status.get("phase") in ("Succeeded", "Failed"):
            return True
        return any(
            one["name"] == container and "terminated" in (one.get("state") or {})
            for one in status.get("containerStatuses") or ()
        )

    def _pods(self) -> Kind:
        found = self.writer.registry.by_resource("pods")
        if found is None:
            raise method_not_allowed()
        return found

    # --- reviews and tokens

    def review(self, kind: Kind, body: Object, user: User) -> Object:
        """Answer a review of rights or of a token. Raises ApiError (400)."""
        spec = body.get("spec") or {}
        told = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}, "spec": spec}
        if kind.plural == "selfsubjectreviews":
            return {**told, "status": {"userInfo": user.view()}}
        if kind.plural == "tokenreviews":
            try:
                found = self.access.user_of(f"Bearer {spec.get('token', '')}")
            except ApiError as error:
                return {**told, "status": {"authenticated": False, "error": error.message}}
            return {**told, "status": {"authenticated": True, "user": found.view()}}
        if kind.plural == "subjectaccessreviews":
            user = User(str(spec.get("user", "")), tuple(spec.get("groups") or ()))
        wanted, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
        if (wanted is None) == (path is None):
            raise bad_request("spec: exactly one of resourceAttributes or nonResourceAttributes must be set")
        if isinstance(wanted, dict):
            resource, sub = str(wanted.get("resource", "")), str(wanted.get("subresource", ""))
            attempt = Attempt(
                verb=str(wanted.get("verb", "")),
                group=str(wanted.get("group", "")),
                resource=f"{resource}/{sub}" if sub else resource,
                namespace=str(wanted.get("namespace", "")),
                name=str(wanted.get("name", "")),
            )
        else:
            told_path = path or {}
            attempt = Attempt(verb=str(told_path.get("verb", "")), path=str(told_path.get("path", "")))
        allowed = self.access.allows(user, attempt)
        return {**told, "status": {"allowed": allowed, "reason": "" if allowed else "no rule allows it"}}

    def token(self, target: Target, body: Object) -> Object:
        """A token for a service account. Raises ApiError (404)."""
        account = self.writer.read(target.kind, target.namespace, target.name)
        if account["metadata"].get("deletionTimestamp"):
            raise not_found("serviceaccounts", "", target.name)
        spec = body.get("spec") or {}
        lifetime_s = int(spec.get("expirationSeconds") or 3600)
        until = stamp(self.writer.clock() + lifetime_s)
        told = self.access.token_for(target.namespace, target.name, lifetime_s)
        return {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {"name": target.name, "namespace": target.namespace},
            "spec": {"expirationSeconds": lifetime_s, "audiences": spec.get("audiences") or ["sandbox"]},
            "status": {"token": told, "expirationTimestamp": until},
        }
