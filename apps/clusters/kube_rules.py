"""Pure rules of how a cluster's Kubernetes is set up: names, references, mounts, what manifests may do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _

from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.kube_states import Allowance, KubeAuth, KubeScheduler, WorkloadKind
from apps.clusters.states import KINDS_MANAGED
from apps.connections.services import check_reference
from apps.core.errors import FieldProblem, InvalidInput

#: A name by RFC 1123.
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
#: An image as container runtimes take it: registry, path, tag, digest; no blank and no line break.
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,499}")
_LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PATH = re.compile(r"/[^\x00-\x1f\x7f:]*")
MAX_MOUNTS = 20


def refuse(problems: Sequence[FieldProblem]) -> None:
    """Raises InvalidInput with all of them, where there are any."""
    if problems:
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=tuple(problems))


def settings_problems(row: KubernetesSettings, kind: str, *, has_account: bool) -> list[FieldProblem]:
    """What is wrong with settings that are not saved yet, each at its field."""
    problems = _of_access(row, kind, has_account=has_account)
    for name, value, known in (
        ("scheduler", row.scheduler, KubeScheduler.values),
        ("default_kind", row.default_kind, ["", *(k for k in WorkloadKind.values if k != WorkloadKind.MANIFEST)]),
    ):
        if value not in known:
            text = _("one of %(known)s") % {"known": ", ".join(filter(None, known))}
            problems.append(FieldProblem(f"/{name}", "unknown", text))
    if row.namespace_prefix and not re.fullmatch(r"[a-z0-9][-a-z0-9]{0,29}", row.namespace_prefix):
        problems.append(FieldProblem("/namespace_prefix", "invalid", _("lower-case letters, digits and dashes")))
    if row.namespace_prefix.startswith("kube-"):
        text = _("namespaces of Kubernetes itself are no team's")
        problems.append(FieldProblem("/namespace_prefix", "kept", text))
    for name in ("cohort", "service_account", "pod_priority_class"):
        if (value := getattr(row, name)) and not NAME.fullmatch(value):
            problems.append(FieldProblem(f"/{name}", "invalid", _("lower-case letters, digits and dashes")))
    for name in ("pull_secrets", "priority_classes"):
        bad = next((v for v in getattr(row, name) if not isinstance(v, str) or not NAME.fullmatch(v)), None)
        if bad is not None:
            text = _("%(name)s is no name that Kubernetes takes") % {"name": repr(bad)[:80]}
            problems.append(FieldProblem(f"/{name}", "invalid", text))
    if row.default_image and not IMAGE.fullmatch(row.default_image):
        problems.append(
            FieldProblem("/default_image", "invalid", _("a name of an image, such as registry/team/train:1"))
        )
    if row.topology_level and not _LABEL.fullmatch(row.topology_level):
        problems.append(FieldProblem("/topology_level", "invalid", _("a node label")))
    return [*problems, *_of_mounts(row.mounts), *_of_policy(row)]


def _of_access(row: KubernetesSettings, kind: str, *, has_account: bool) -> list[FieldProblem]:
    if row.auth not in KubeAuth.values:
        return [FieldProblem("/auth", "unknown", _("one of %(known)s") % {"known": ", ".join(KubeAuth.values)})]
    if row.auth == KubeAuth.EKS and kind not in KINDS_MANAGED:
        text = _("only clusters that AWS keeps take its identity: name a kubeconfig")
        return [FieldProblem("/auth", "not-here", text)]
    if row.auth == KubeAuth.KUBECONFIG:
        if not row.kubeconfig_ref:
            text = _("name the secret that holds the kubeconfig")
            return [FieldProblem("/kubeconfig_ref", "required", text)]
        return check_reference("/kubeconfig_ref", row.kubeconfig_ref, account=has_account)
    if row.kubeconfig_ref:
        return [FieldProblem("/kubeconfig_ref", "not-here", _("only where a kubeconfig is used; leave it empty"))]
    return []


def _of_mounts(rows: Any) -> list[FieldProblem]:
    if not isinstance(rows, list) or len(rows) > MAX_MOUNTS:
        text = _("at most %(most)s lines of claim and path") % {"most": MAX_MOUNTS}
        return [FieldProblem("/mounts", "invalid", text)]
    problems, paths = [], set()
    for number, row in enumerate(rows):
        known = isinstance(row, dict) and set(row) <= {"claim", "path", "sub_path", "read_only"}
        if not known or not NAME.fullmatch(str(row.get("claim", ""))):
            text = _("line %(n)s: the name of a PersistentVolumeClaim, then a path") % {"n": number + 1}
            problems.append(FieldProblem(f"/mounts/{number}", "invalid", text))
            continue
        path, sub = str(row.get("path", "")), str(row.get("sub_path", ""))
        if not _PATH.fullmatch(path) or path == "/" or ".." in path.split("/"):
            text = _("line %(n)s: %(path)s is no absolute path in the container") % {"n": number + 1, "path": path[:80]}
            problems.append(FieldProblem(f"/mounts/{number}", "invalid", text))
        if path in paths:
            text = _("line %(n)s: %(path)s is mounted twice") % {"n": number + 1, "path": path[:80]}
            problems.append(FieldProblem(f"/mounts/{number}", "twice", text))
        if sub.startswith("/") or ".." in sub.split("/"):
            text = _("line %(n)s: the folder in the claim is written without / in front and without ..")
            problems.append(FieldProblem(f"/mounts/{number}", "invalid", text % {"n": number + 1}))
        paths.add(path)
    return problems


def _of_policy(row: KubernetesSettings) -> list[FieldProblem]:
    problems = []
    if unknown := [a for a in row.allowances if a not in Allowance.values]:
        text = _("%(name)s is none of %(known)s")
        facts = {"name": repr(unknown[0])[:80], "known": ", ".join(Allowance.values)}
        problems.append(FieldProblem("/allowances", "unknown", text % facts))
    for path in row.host_paths:
        if not isinstance(path, str) or not _PATH.fullmatch(path) or ".." in path.split("/"):
            text = _("%(path)s is no absolute path") % {"path": repr(path)[:80]}
            problems.append(FieldProblem("/host_paths", "invalid", text))
    return problems


def read_mounts(text: str) -> list[dict[str, Any]]:
    """Mounts from lines of ``claim path [folder] [ro]``; what cannot be read is left for settings_problems to name."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        row: dict[str, Any] = {"claim": words[0], "path": words[1] if len(words) > 1 else ""}
        rest = words[2:]
        if rest and rest[-1] == "ro":
            row["read_only"] = True
            rest = rest[:-1]
        if rest:
            row["sub_path"] = " ".join(rest)
        found.append(row)
    return found


def mounts_text(rows: Sequence[dict[str, Any]]) -> str:
    """The reverse of read_mounts."""
    lines = []
    for row in rows:
        words = [
            str(row["claim"]),
            str(row["path"]),
            str(row.get("sub_path") or ""),
            "ro" if row.get("read_only") else "",
        ]
        lines.append(" ".join(word for word in words if word))
    return "\n".join(lines)
