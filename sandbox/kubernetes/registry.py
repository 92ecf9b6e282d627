"""Which kinds the pretend server serves: the built-in ones and what CRDs in its store add."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandbox.kubernetes.crds import schema_of
from sandbox.kubernetes.patches import merge_key
from sandbox.kubernetes.schema import Schema
from sandbox.kubernetes.status import Object
from sandbox.kubernetes.store import Store

CRDS: Final = "customresourcedefinitions.apiextensions.k8s.io"
_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True)
class Kind:
    """One kind in one version. ``custom`` ones come from a CRD, whose ``schema`` decides what they may hold."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    subresources: frozenset[str] = frozenset()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    schema: Schema | None = None
    custom: bool = False
    #: Served versions, the preferred first.
    versions: tuple[str, ...] = ()
    #: Where ``scale`` reads and writes: paths of desired replicas, of counted ones and of the selector.
    scale: tuple[str, str, str] = ("spec.replicas", "status.replicas", "")
    #: Only asked, never kept: reviews of rights.
    review: bool = False

    @property
    def resource(self) -> str:
        """``plural.group``, the same for every version."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """As objects write it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def verbs(self) -> tuple[str, ...]:
        """What can be asked of it."""
        return ("create",) if self.review else _VERBS

    def list_keys(self, path: Any) -> tuple[str, ...] | None:
        """How a list at a path of field names merges in server-side apply."""
        path = tuple(path)
        if path[:2] == ("metadata", "finalizers"):
            return ()
        if path[:2] == ("metadata", "ownerReferences"):
            return ("uid",)
        if self.custom and self.schema is not None:
            return _schema_keys(self.schema, path)
        if path[-1] == "ports":
            return ("containerPort" if "containers" in path else "port", "protocol")
        key = merge_key(path)
        return None if key is None else (key,) if key else ()


def _schema_keys(schema: Schema, path: tuple[str, ...]) -> tuple[str, ...] | None:
    at: Any = schema
    for name in path:
        while isinstance(at, Mapping) and "items" in at:
            at = at["items"]
        if not isinstance(at, Mapping):
            return None
        at = (at.get("properties") or {}).get(name) or at.get("additionalProperties")
    if not isinstance(at, Mapping):
        return None
    if at.get("x-kubernetes-list-type") == "map":
        return tuple(at.get("x-kubernetes-list-map-keys") or ())
    return () if at.get("x-kubernetes-list-type") == "set" else None


def _builtin(line: str) -> Kind:
    """``group/version plural Kind N|C subresources shortnames``, with ``-`` for none."""
    where, plural, kind, scope, subresources, short = line.split()
    group, _, version = where.rpartition("/")
    return Kind(
        group=group,
        version=version,
        plural=plural,
        kind=kind,
        namespaced=scope == "N",
        subresources=frozenset(subresources.split(",")) - {"-"},
        short_names=tuple(word for word in short.split(",") if word != "-"),
        versions=(version,),
        review=plural.endswith("reviews"),
        scale=("spec.replicas", "status.replicas", "spec.selector"),
    )


_TABLE: Final = """
v1 bindings Binding N - -
v1 configmaps ConfigMap N - cm
v1 endpoints Endpoints N - ep
v1 events Event N - ev
v1 limitranges LimitRange N - limits
v1 namespaces Namespace C status,finalize ns
v1 nodes Node C status no
v1 persistentvolumeclaims PersistentVolumeClaim N status pvc
v1 persistentvolumes PersistentVolume C status pv
v1 pods Pod N status,log,binding,eviction po
v1 resourcequotas ResourceQuota N status quota
v1 secrets Secret N - -
v1 serviceaccounts ServiceAccount N token sa
v1 services Service N status svc
apiextensions.k8s.io/v1 customresourcedefinitions CustomResourceDefinition C status crd,crds
apps/v1 daemonsets DaemonSet N status ds
apps/v1 deployments Deployment N status,scale deploy
apps/v1 replicasets ReplicaSet N status,scale rs
apps/v1 statefulsets StatefulSet N status,scale sts
authentication.k8s.io/v1 selfsubjectreviews SelfSubjectReview C - -
authentication.k8s.io/v1 tokenreviews TokenReview C - -
authorization.k8s.io/v1 selfsubjectaccessreviews SelfSubjectAccessReview C - -
authorization.k8s.io/v1 subjectaccessreviews SubjectAccessReview C - -
batch/v1 cronjobs CronJob N status cj
batch/v1 jobs Job N status -
coordination.k8s.io/v1 leases Lease N - -
networking.k8s.io/v1 networkpolicies NetworkPolicy N - netpol
policy/v1 poddisruptionbudgets PodDisruptionBudget N status pdb
rbac.authorization.k8s.io/v1 clusterrolebindings ClusterRoleBinding C - -
rbac.authorization.k8s.io/v1 clusterroles ClusterRole C - -
rbac.authorization.k8s.io/v1 rolebindings RoleBinding N - -
rbac.authorization.k8s.io/v1 roles Role N - -
scheduling.k8s.io/v1 priorityclasses PriorityClass C - pc
storage.k8s.io/v1 storageclasses StorageClass C - sc
"""

_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "object", "additionalProperties": _TEXT}
_OWNER: Final = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("apiVersion", "kind", "name", "uid"), _TEXT),
        **{key: {"type": "boolean"} for key in ("controller", "blockOwnerDeletion")},
    },
}

#: Shapes of what every object carries.
METADATA: Final[Schema] = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("name", "generateName", "namespace", "uid", "resourceVersion"), _TEXT),
        "labels": _TEXTS,
        "annotations": _TEXTS,
        "finalizers": {"type": "array", "items": _TEXT},
        "ownerReferences": {"type": "array", "items": _OWNER},
        "managedFields": {"type": "array", "items": {"type": "object"}},
    },
}

_FREE: Final[Schema] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


_VERSION: Final = {
    "type": "object",
    "required": ["name", "served", "storage"],
    "properties": {
        "name": _TEXT,
        "served": {"type": "boolean"},
        "storage": {"type": "boolean"},
        "schema": _FREE,
        "subresources": _FREE,
        "additionalPrinterColumns": {"type": "array", "items": _FREE},
        "deprecated": {"type": "boolean"},
        "deprecationWarning": _TEXT,
        "selectableFields": {"type": "array", "items": _FREE},
    },
}
_NAMES: Final = {
    "type": "object",
    "required": ["kind", "plural"],
    "properties": {
        **dict.fromkeys(("kind", "plural", "singular", "listKind"), _TEXT),
        **{key: {"type": "array", "items": _TEXT} for key in ("shortNames", "categories")},
    },
}
_CRD: Final[Schema] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["group", "names", "scope", "versions"],
            "properties": {
                "group": _TEXT,
                "scope": {"type": "string", "enum": ["Namespaced", "Cluster"]},
                "names": _NAMES,
                "versions": {"type": "array", "items": _VERSION},
                "conversion": _FREE,
                "preserveUnknownFields": {"type": "boolean"},
            },
        },
        "status": _FREE,
    },
}


@functools.cache
def builtins() -> tuple[Kind, ...]:
    """The kinds that need no CRD."""
    return tuple(_builtin(line) for line in _TABLE.strip().splitlines())


@functools.cache
def builtin_schema(resource: str) -> Schema | None:
    """What a built-in kind may hold, for those that carry pods; None where nothing is checked by a schema."""
    if resource == CRDS:
        return _CRD
    if resource not in ("pods", "jobs.batch", "deployments.apps"):
        return None
    jobs = schema_of("jobset.x-k8s.io_jobsets", "v1alpha2")["properties"]["spec"]["properties"]["replicatedJobs"]
    job = jobs["items"]["properties"]["template"]["properties"]["spec"]
    pod = job["properties"]["template"]
    spec: Schema = job
    if resource == "pods":
        spec = pod["properties"]["spec"]
    elif resource == "deployments.apps":
        number = {"type": "integer", "format": "int32"}
        spec = {
            "type": "object",
            "required": ["selector", "template"],
            "properties": {
                "replicas": number,
                "selector": _FREE,
                "template": pod,
                "strategy": _FREE,
                "minReadySeconds": number,
                "revisionHistoryLimit": number,
                "progressDeadlineSeconds": number,
                "paused": {"type": "boolean"},
            },
        }
    return {"type": "object", "required": ["spec"], "properties": {"spec": spec, "status": _FREE}}


def kinds_of(crd: Object) -> tuple[Kind, ...]:
    """The kinds that a CRD defines, one a served version, the storage version first."""
    spec = crd["spec"]
    names = spec["names"]
    served = sorted((one for one in spec["versions"] if one.get("served")), key=lambda one: not one.get("storage"))
    found = []
    for one in served:
        told = one.get("subresources") or {}
        scale = told.get("scale") or {}
        found.append(
            Kind(
                group=spec["group"],
                version=one["name"],
                plural=names["plural"],
                kind=names["kind"],
                namespaced=spec["scope"] == "Namespaced",
                subresources=frozenset(told),
                short_names=tuple(names.get("shortNames") or ()),
                categories=tuple(names.get("categories") or ()),
                schema=(one.get("schema") or {}).get("openAPIV3Schema") or _FREE,
                custom=True,
                versions=tuple(each["name"] for each in served),
                scale=tuple(  # type: ignore[arg-type]
                    str(scale.get(key, "")).removeprefix(".")
                    for key in ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
                ),
            )
        )
    return tuple(found)


class Registry:
    """Kinds by their path, kept in step with the CRDs of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[str, tuple[Kind, ...]]] = {}

    def all(self) -> list[Kind]:
        """Every kind in every served version, the preferred version of each group first."""
        found = list(builtins())
        crds = self._store.scan(CRDS)
        for crd in crds:
            name, revision = crd["metadata"]["name"], crd["metadata"]["resourceVersion"]
            known = self._known.get(name)
            if known is None or known[0] != revision:
                known = self._known[name] = (revision, kinds_of(crd))
            if not crd["metadata"].get("deletionTimestamp"):
                found += known[1]
        return found

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind at a path, or None."""
        for kind in self.all():
            if (kind.plural, kind.version, kind.group) == (plural, version, group):
                return kind
        return None

    def by_resource(self, resource: str) -> Kind | None:
        """The preferred version of ``plural.group``."""
        return next((kind for kind in self.all() if kind.resource == resource), None)

    def by_kind(self, api_version: str, kind: str) -> Kind | None:
        """The kind that an object says it is."""
        return next((one for one in self.all() if (one.api_version, one.kind) == (api_version, kind)), None)
