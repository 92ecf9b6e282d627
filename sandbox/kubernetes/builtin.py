"""What the server itself does to objects of built-in kinds: defaults, names, and rules beyond a schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from sandbox.kubernetes.quantities import is_quantity, quantity, written
from sandbox.kubernetes.registry import Kind
from sandbox.kubernetes.selectors import requirements_of
from sandbox.kubernetes.status import Cause, Object

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY: Final = re.compile(
    r"(?:(?=[^/]{1,253}/)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_ENV: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_LABEL_NAMED: Final = ("services", "namespaces")
_PATH_NAMED: Final = "rbac.authorization.k8s.io"
_MOST_ANNOTATIONS: Final = 256 * 1024


def check_metadata(kind: Kind, thing: Object) -> list[Cause]:
    """What is wrong with an object's name, labels, annotations, finalizers and owners."""
    metadata, found = thing["metadata"], []
    name = metadata.get("name", "")
    if kind.group == _PATH_NAMED:
        right = bool(name) and name not in (".", "..") and not set(name) & set("/%")
    else:
        right = (_LABEL if kind.resource in _LABEL_NAMED else _SUBDOMAIN).fullmatch(name) is not None
    if not right:
        rule = "RFC 1123 label" if kind.resource in _LABEL_NAMED else "RFC 1123 subdomain"
        found.append(
            Cause(
                "metadata.name",
                "FieldValueInvalid",
                f"\"{name}\": a lowercase {rule} must consist of lower case alphanumeric characters, '-' or '.', "
                "and must start and end with an alphanumeric character",
            )
        )
    found += list(_check_labels(metadata.get("labels"), "metadata.labels"))
    annotations = metadata.get("annotations") or {}
    for key, value in annotations.items():
        if not _KEY.fullmatch(key.lower()):
            found.append(Cause("metadata.annotations", "FieldValueInvalid", f'"{key}": not a qualified name'))
        if not isinstance(value, str):
            found.append(Cause(f"metadata.annotations[{key}]", "FieldValueTypeInvalid", "must be a string"))
    if sum(len(key) + len(str(value)) for key, value in annotations.items()) > _MOST_ANNOTATIONS:
        found.append(
            Cause("metadata.annotations", "FieldValueTooLong", f"may not be more than {_MOST_ANNOTATIONS} bytes")
        )
    for at, owner in enumerate(metadata.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                found.append(Cause(f"metadata.ownerReferences[{at}].{field}", "FieldValueRequired"))
    if sum(bool(owner.get("controller")) for owner in metadata.get("ownerReferences") or ()) > 1:
        found.append(
            Cause("metadata.ownerReferences", "FieldValueInvalid", "only one reference can have controller set")
        )
    return found


def _check_labels(labels: Any, path: str) -> Iterator[Cause]:
    for key, value in (labels or {}).items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            yield Cause(path, "FieldValueInvalid", f'"{key}": name part must consist of alphanumeric characters')
        if not isinstance(value, str):
            yield Cause(f"{path}[{key}]", "FieldValueTypeInvalid", "must be a string")
        elif not _VALUE.fullmatch(value):
            yield Cause(
                path,
                "FieldValueInvalid",
                f'"{value}": a valid label must be an empty string or consist of alphanumeric characters, '
                "'-', '_' or '.', and at most 63 of them",
            )


# --- defaults


def _default_pod_spec(spec: Object, restart: str) -> None:
    spec.setdefault("restartPolicy", restart)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        if isinstance(container, dict):
            container.setdefault("terminationMessagePath", "/dev/termination-log")
            container.setdefault("terminationMessagePolicy", "File")
            tagged = str(container.get("image", "")).rpartition("/")[2]
            container.setdefault(
                "imagePullPolicy", "Always" if ":" not in tagged or tagged.endswith(":latest") else "IfNotPresent"
            )
            container.setdefault("resources", {})
            _default_requests(container["resources"])


def _default_requests(resources: Any) -> None:
    if isinstance(resources, dict) and isinstance(resources.get("limits"), dict) and resources["limits"]:
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}


def _default_pod(thing: Object) -> None:
    spec = thing.get("spec")
    if isinstance(spec, dict):
        _default_pod_spec(spec, "Always")
        spec.setdefault("serviceAccountName", "default")
        spec.setdefault("enableServiceLinks", True)
        tolerations = spec.setdefault("tolerations", [])
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
            if not any(isinstance(one, dict) and one.get("key") in (key, None) for one in tolerations):
                tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    thing.setdefault("status", {}).setdefault("phase", "Pending")


def _default_job(thing: Object) -> None:
    spec, uid, name = thing.get("spec"), thing["metadata"]["uid"], thing["metadata"]["name"]
    if not isinstance(spec, dict):
        return
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6 if "backoffLimitPerIndex" not in spec else 2**31 - 1)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    spec.setdefault("manualSelector", False)
    if not spec["manualSelector"] and isinstance(spec.get("template"), dict):
        marks = {
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-name": name,
            "controller-uid": uid,
            "job-name": name,
        }
        labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
        labels.update(marks)
        spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})
    if not spec["manualSelector"]:
        del spec["manualSelector"]
    inner = (spec.get("template") or {}).get("spec")
    if isinstance(inner, dict):
        # No default that a job may have: the check below says so.
        _default_pod_spec(inner, str(inner.get("restartPolicy", "Always")))


def _default_deployment(thing: Object) -> None:
    spec = thing.get("spec")
    if isinstance(spec, dict):
        spec.setdefault("replicas", 1)
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("progressDeadlineSeconds", 600)
        inner = (spec.get("template") or {}).get("spec")
        if isinstance(inner, dict):
            _default_pod_spec(inner, "Always")


def _default_namespace(thing: Object) -> None:
    thing.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    thing.setdefault("status", {}).setdefault("phase", "Active")
    labels = thing["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = thing["metadata"]["name"]


def _default_service(thing: Object) -> None:
    spec = thing.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    # The same name gets the same address again, which is enough where nothing routes.
    number = sum(map(ord, thing["metadata"]["uid"]))
    spec.setdefault("clusterIP", f"10.100.{number // 250 % 250}.{number % 250 + 1}")


def _default_secret(thing: Object) -> None:
    import base64

    thing.setdefault("type", "Opaque")
    plain = thing.pop("stringData", None)
    if isinstance(plain, dict):
        data = thing.setdefault("data", {})
        data.update({key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()})


def _default_crd(thing: Object) -> None:
    spec = thing.get("spec") or {}
    names = spec.get("names") or {}
    if "kind" in names:
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")
    spec.setdefault("conversion", {"strategy": "None"})


_DEFAULTS: Final[dict[str, Callable[[Object], None]]] = {
    "pods": _default_pod,
    "jobs.batch": _default_job,
    "deployments.apps": _default_deployment,
    "namespaces": _default_namespace,
    "services": _default_service,
    "secrets": _default_secret,
    "customresourcedefinitions.apiextensions.k8s.io": _default_crd,
}


_AMOUNTS: Final = ("requests", "limits", "capacity", "allocatable", "hard", "overhead")


def fill(kind: Kind, thing: Object) -> None:
    """Lay the defaults of a built-in kind into a new or changed object, in place."""
    change = _DEFAULTS.get(kind.resource)
    if change is not None and not kind.custom:
        change(thing)
    if not kind.custom:
        _write_quantities(thing)


def _write_quantities(part: Any) -> None:
    """Amounts of resources become strings, as the server keeps them whoever wrote a number."""
    for value in part if isinstance(part, list) else part.values() if isinstance(part, dict) else ():
        _write_quantities(value)
    for name in _AMOUNTS if isinstance(part, dict) else ():
        amounts = part.get(name)
        if not isinstance(amounts, dict):
            continue
        for resource, value in amounts.items():
            if isinstance(value, int) and is_quantity(value):
                amounts[resource] = written(quantity(value))


# --- rules


def _check_containers(spec: Object, path: str) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield Cause(f"{path}.containers", "FieldValueRequired")
    seen: set[str] = set()
    volumes = {one.get("name") for one in spec.get("volumes") or ()}
    for field in ("containers", "initContainers"):
        for at, container in enumerate(spec.get(field) or ()):
            here = f"{path}.{field}[{at}]"
            name, image = container.get("name", ""), container.get("image", "")
            if not name:
                yield Cause(f"{here}.name", "FieldValueRequired")
            elif not _LABEL.fullmatch(name):
                yield Cause(f"{here}.name", "FieldValueInvalid", f'"{name}": a lowercase RFC 1123 label is needed')
            elif name in seen:
                yield Cause(f"{here}.name", "FieldValueDuplicate", f'"{name}"')
            seen.add(name)
            if not image:
                yield Cause(f"{here}.image", "FieldValueRequired")
            elif image != image.strip():
                yield Cause(
                    f"{here}.image", "FieldValueInvalid", f'"{image}": must not have leading or trailing whitespace'
                )
            for number, one in enumerate(container.get("env") or ()):
                if not _ENV.fullmatch(str(one.get("name", ""))):
                    yield Cause(f"{here}.env[{number}].name", "FieldValueInvalid", f'"{one.get("name")}"')
            for number, one in enumerate(container.get("volumeMounts") or ()):
                if one.get("name") not in volumes:
                    yield Cause(f"{here}.volumeMounts[{number}].name", "FieldValueNotFound", f'"{one.get("name")}"')
            yield from _check_resources(container.get("resources") or {}, f"{here}.resources")


def _check_resources(resources: Object, path: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for field, told in (("limits", limits), ("requests", requests)):
        for name, value in told.items():
            if not is_quantity(value):
                yield Cause(f"{path}.{field}[{name}]", "FieldValueInvalid", f'"{value}": must be a quantity')
    for name in requests:
        extended = "/" in name or name.startswith("hugepages-")
        if extended and name not in limits:
            yield Cause(
                f"{path}.limits", "FieldValueRequired", f"Limit must be set for non overcommitable resources: {name}"
            )
        elif extended and str(limits[name]) != str(requests[name]):
            yield Cause(f"{path}.requests", "FieldValueInvalid", f'"{requests[name]}": must be equal to {name} limit')


def _check_pod(new: Object, old: Object | None) -> Iterator[Cause]:
    yield from _check_containers(new["spec"], "spec")
    if old is not None:
        free = ("containers", "initContainers", "tolerations", "activeDeadlineSeconds", "schedulingGates", "nodeName")
        before = {key: value for key, value in old["spec"].items() if key not in free}
        after = {key: value for key, value in new["spec"].items() if key not in free}
        if before != after or len(old["spec"]["containers"]) != len(new["spec"]["containers"]):
            yield Cause(
                "spec",
                "FieldValueForbidden",
                "pod updates may not change fields other than `spec.containers[*].image`, "
                "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to "
                "existing tolerations), `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
                "previously negative)",
            )


def _check_job(new: Object, old: Object | None) -> Iterator[Cause]:
    spec = new["spec"]
    inner = spec["template"].get("spec") or {}
    yield from _check_containers(inner, "spec.template.spec")
    if inner.get("restartPolicy") not in ("Never", "OnFailure"):
        yield Cause(
            "spec.template.spec.restartPolicy",
            "FieldValueNotSupported",
            f'"{inner.get("restartPolicy")}": supported values: "OnFailure", "Never"',
        )
    for field in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"):
        if isinstance(spec.get(field), int) and spec[field] < 0:
            yield Cause(f"spec.{field}", "FieldValueInvalid", f"{spec[field]}: must be greater than or equal to 0")
    if spec.get("completionMode") == "Indexed" and "completions" not in spec:
        yield Cause("spec.completions", "FieldValueRequired", "when completion mode is Indexed")
    if old is None:
        return
    before = old["spec"]
    started = before.get("startTime") or (old.get("status") or {}).get("startTime")
    frozen = ["selector", "completionMode"]
    elastic = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get("parallelism")
    if not elastic:
        frozen.append("completions")
    if not (before.get("suspend") and not started):
        frozen.append("template")
    for field in frozen:
        if before.get(field) != spec.get(field):
            yield Cause(f"spec.{field}", "FieldValueInvalid", "field is immutable")


def _check_deployment(new: Object, old: Object | None) -> Iterator[Cause]:
    spec = new["spec"]
    template = spec.get("template") or {}
    yield from _check_containers(template.get("spec") or {}, "spec.template.spec")
    labels = (template.get("metadata") or {}).get("labels") or {}
    selector = requirements_of(spec.get("selector") or {})
    if not selector or not all(one.holds(labels) for one in selector):
        yield Cause("spec.template.metadata.labels", "FieldValueInvalid", "`selector` does not match template `labels`")
    if old is not None and old["spec"].get("selector") != spec.get("selector"):
        yield Cause("spec.selector", "FieldValueInvalid", "field is immutable")


def _check_priority(new: Object, old: Object | None) -> Iterator[Cause]:
    if not isinstance(new.get("value"), int):
        yield Cause("value", "FieldValueRequired")
    elif old is not None and old.get("value") != new["value"]:
        yield Cause("value", "FieldValueForbidden", "may not be changed in an update.")


def _check_frozen(new: Object, old: Object | None) -> Iterator[Cause]:
    if old is not None and old.get("immutable") and old.get("data") != new.get("data"):
        yield Cause("data", "FieldValueForbidden", "field is immutable when `immutable` is set")


def _check_crd(new: Object, old: Object | None) -> Iterator[Cause]:
    spec = new.get("spec") or {}
    names = spec.get("names") or {}
    if new["metadata"]["name"] != f"{names.get('plural')}.{spec.get('group')}":
        yield Cause("metadata.name", "FieldValueInvalid", 'must be spec.names.plural+"."+spec.group')
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        yield Cause("spec.scope", "FieldValueRequired")
    if not names.get("kind"):
        yield Cause("spec.names.kind", "FieldValueRequired")
    versions = spec.get("versions") or ()
    if sum(bool(one.get("storage")) for one in versions) != 1:
        yield Cause("spec.versions", "FieldValueInvalid", "must have exactly one version marked as storage version")


_CHECKS: Final[dict[str, Callable[[Object, Object | None], Iterator[Cause]]]] = {
    "pods": _check_pod,
    "jobs.batch": _check_job,
    "deployments.apps": _check_deployment,
    "priorityclasses.scheduling.k8s.io": _check_priority,
    "configmaps": _check_frozen,
    "secrets": _check_frozen,
    "customresourcedefinitions.apiextensions.k8s.io": _check_crd,
}


def check_rules(kind: Kind, new: Object, old: Object | None) -> list[Cause]:
    """What breaks a rule of a built-in kind."""
    rule = _CHECKS.get(kind.resource)
    return [] if rule is None or kind.custom else list(rule(new, old))
