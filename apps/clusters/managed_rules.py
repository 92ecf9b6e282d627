"""What each kind of cluster that AWS keeps asks of its spec: pure decisions on values, every refusal with a way out.

Node groups have rules of their own in ``group_rules``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from apps.clusters import pcluster_rules
from apps.clusters.states import KINDS_HYPERPOD, KINDS_MADE, KINDS_MANAGED, ClusterKind
from apps.core.errors import FieldProblem

#: Size of a PCS cluster: (nodes, jobs) that it manages.
PCS_SIZES: dict[str, tuple[int, int]] = {"SMALL": (32, 256), "MEDIUM": (512, 8192), "LARGE": (2048, 16384)}
PCS_VERSIONS = ("25.05", "24.11", "24.05")
EKS_VERSIONS = ("1.34", "1.33", "1.32")
#: Add-ons that a GPU cluster needs, and those that are worth having.
EKS_ADDONS = (
    "vpc-cni",
    "kube-proxy",
    "coredns",
    "eks-pod-identity-agent",
    "eks-node-monitoring-agent",
    "aws-fsx-csi-driver",
    "aws-ebs-csi-driver",
)
EKS_ADDONS_DEFAULT = EKS_ADDONS[:5]
IDLE_S_MOST = 86_400

#: What a kind wants to know, by the names of its settings.
SETTINGS: dict[str, tuple[str, ...]] = {
    ClusterKind.PCS: ("version", "size", "subnet_ids", "security_group_ids", "idle_s"),
    ClusterKind.EKS: ("version", "role_arn", "subnet_ids", "security_group_ids", "admin_arns", "addons"),
    ClusterKind.HYPERPOD_SLURM: ("subnet_ids", "security_group_ids", "recovers"),
    ClusterKind.HYPERPOD_EKS: ("subnet_ids", "security_group_ids", "recovers", "eks_cluster_arn"),
    ClusterKind.PARALLELCLUSTER: ("config", "pcluster_api_url"),
}

_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,58}$")
#: The name in AWS of a cluster that is adopted, by kind.
_NAMES_AT_AWS: dict[str, tuple[re.Pattern[str], int]] = {
    ClusterKind.PCS: (re.compile(r"^[A-Za-z][A-Za-z0-9_-]{2,39}$"), 40),
    ClusterKind.EKS: (re.compile(r"^[0-9A-Za-z][A-Za-z0-9_-]{0,99}$"), 100),
    ClusterKind.HYPERPOD_SLURM: (re.compile(r"^[A-Za-z0-9](-*[A-Za-z0-9]){0,62}$"), 63),
    ClusterKind.HYPERPOD_EKS: (re.compile(r"^[A-Za-z0-9](-*[A-Za-z0-9]){0,62}$"), 63),
    ClusterKind.PARALLELCLUSTER: (re.compile(r"^[A-Za-z][A-Za-z0-9-]{0,59}$"), 60),
}
_ROLE = re.compile(r"^arn:aws[a-z-]*:iam::(\d{12}):role/(?:[!-~]+/)?([\w+=,.@-]{1,64})$")
_PRINCIPAL = re.compile(r"^arn:aws[a-z-]*:iam::\d{12}:(role|user)/[!-~]{1,512}$")
_PROFILE = re.compile(r"^arn:aws[a-z-]*:iam::(\d{12}):instance-profile/((?:[!-~]+/)?)([\w+=,.@-]{1,128})$")
_EKS_CLUSTER = re.compile(r"^arn:aws[a-z-]*:eks:([a-z0-9-]+):(\d{12}):cluster/([0-9A-Za-z][A-Za-z0-9_-]{0,99})$")


@dataclass(frozen=True)
class Place:
    """The account that a cluster is made in: its uid and name here, its number, region and address at AWS."""

    uid: str
    name: str
    number: str
    region: str
    endpoint_url: str = ""


def size_for(nodes: int) -> str | None:
    """The smallest PCS size that manages so many nodes; None where none does."""
    return next((size for size, (most, _jobs) in PCS_SIZES.items() if nodes <= most), None)


def size_problem(size: str, nodes: int, *, is_made: bool, pointer: str) -> FieldProblem | None:
    """Why a PCS cluster of this size cannot manage so many nodes, and which size could."""
    most = PCS_SIZES[size][0]
    if nodes <= most:
        return None
    fits = size_for(nodes)
    if fits is None:
        text = _("%(nodes)s nodes in all are more than any PCS cluster manages (%(most)s): make two clusters") % {
            "nodes": nodes,
            "most": PCS_SIZES["LARGE"][0],
        }
    elif is_made:
        text = _(
            "%(size)s manages at most %(most)s nodes, with these it would be %(nodes)s. The size of a cluster cannot"
            " be changed: take fewer, or make a new cluster of size %(fits)s"
        ) % {"size": size, "most": most, "nodes": nodes, "fits": fits}
    else:
        text = _("%(size)s manages at most %(most)s nodes, these are %(nodes)s; the smallest that fits is %(fits)s") % {
            "size": size,
            "most": most,
            "nodes": nodes,
            "fits": fits,
        }
    return FieldProblem(pointer, "too-small", text)


def kind_problems(kind: str, *, is_adopted: bool) -> list[FieldProblem]:
    """Whether the portal makes, or watches, clusters of this kind."""
    if kind in (KINDS_MANAGED if is_adopted else KINDS_MADE):
        return []
    if kind == ClusterKind.SLURM:
        text = _("a Slurm of your own is connected by its address, not made")
    else:
        known = ", ".join(k.value for k in ClusterKind if k in KINDS_MADE)
        text = _("%(kind)s is no kind of cluster; one of %(known)s") % {"kind": repr(kind), "known": known}
    return [FieldProblem("/kind", "unknown", text)]


def is_name(name: str) -> bool:
    """Whether the portal takes it as a cluster's name."""
    return bool(_NAME.fullmatch(name))


def name_problems(kind: str, name: str) -> list[FieldProblem]:
    """Names in the portal, from which the name in AWS is derived."""
    if not is_name(name):
        return [FieldProblem("/name", "invalid", _("lower-case letters, digits and dashes, at most 59"))]
    if kind == ClusterKind.PCS and not (name[0].isalpha() and 3 <= len(name) <= 40):
        return [FieldProblem("/name", "invalid", _("PCS wants 3 to 40 characters, the first a letter"))]
    if kind == ClusterKind.PARALLELCLUSTER and not name[0].isalpha():
        return [FieldProblem("/name", "invalid", _("ParallelCluster wants a letter first"))]
    if kind in KINDS_HYPERPOD and name.endswith("-"):
        return [FieldProblem("/name", "invalid", _("HyperPod takes no dash at the end"))]
    return []


def adoption_problems(kind: str, name_at_provider: str) -> list[FieldProblem]:
    """The name in AWS of what is adopted."""
    pattern, most = _NAMES_AT_AWS[kind]
    if pattern.fullmatch(name_at_provider):
        return []
    text = _("the name that it has in AWS: letters, digits and dashes, at most %(most)s") % {"most": most}
    return [FieldProblem("/name_at_provider", "invalid", text)]


def ids_problems(pointer: str, ids: Sequence[str], prefix: str, least: int, most: int = 16) -> list[FieldProblem]:
    """Ids of AWS that all begin alike, none twice."""
    if any(not re.fullmatch(rf"{prefix}[0-9a-z]{{3,32}}", i) for i in ids):
        return [FieldProblem(pointer, "invalid", _("each must start with %(prefix)s") % {"prefix": prefix})]
    if len(set(ids)) != len(ids):
        return [FieldProblem(pointer, "twice", _("one is named twice"))]
    if len(ids) < least:
        text = _("name at least %(least)s, each starting with %(prefix)s") % {"least": least, "prefix": prefix}
        return [FieldProblem(pointer, "too-few", text)]
    if len(ids) > most:
        return [FieldProblem(pointer, "too-many", _("at most %(most)s") % {"most": most})]
    return []


def role_problem(pointer: str, arn: str, place: Place) -> list[FieldProblem]:
    """A role of the account, by its ARN."""
    found = _ROLE.fullmatch(arn)
    if found is None:
        return [FieldProblem(pointer, "invalid", _("a role's ARN such as arn:aws:iam::123456789012:role/name"))]
    return _own(pointer, found[1], place)


def profile_problem(pointer: str, arn: str, place: Place) -> list[FieldProblem]:
    """An instance profile that PCS takes: its name begins with AWSPCS, or it stands under /aws-pcs/."""
    found = _PROFILE.fullmatch(arn)
    if found is None:
        text = _("an instance profile's ARN such as arn:aws:iam::123456789012:instance-profile/AWSPCS-nodes")
        return [FieldProblem(pointer, "invalid", text)]
    if not found[3].startswith("AWSPCS") and "aws-pcs/" not in found[2]:
        text = _("PCS takes only instance profiles whose name begins with AWSPCS or that stand under /aws-pcs/")
        return [FieldProblem(pointer, "not-for-pcs", text)]
    return _own(pointer, found[1], place)


def _own(pointer: str, number: str, place: Place) -> list[FieldProblem]:
    if not place.number or number == place.number:
        return []
    text = _("it is in the account %(other)s; %(name)s is %(own)s") % {
        "other": number,
        "name": place.name,
        "own": place.number,
    }
    return [FieldProblem(pointer, "other-account", text)]


def settings_problems(kind: str, settings: Mapping[str, Any], place: Place) -> list[FieldProblem]:
    """Everything wrong with what a kind wants to know, each at its field."""
    match kind:
        case ClusterKind.PCS:
            return _pcs(settings)
        case ClusterKind.EKS:
            return _eks(settings, place)
        case ClusterKind.HYPERPOD_SLURM | ClusterKind.HYPERPOD_EKS:
            return _hyperpod(kind, settings, place)
        case ClusterKind.PARALLELCLUSTER:
            return [
                *pcluster_rules.config_problems(str(settings.get("config") or ""), place.region),
                *pcluster_rules.api_problems(
                    str(settings.get("pcluster_api_url") or ""), place.region, place.endpoint_url
                ),
            ]
        case _:
            return []


def _network(settings: Mapping[str, Any], least: int) -> list[FieldProblem]:
    return [
        *ids_problems("/subnet_ids", settings.get("subnet_ids") or [], "subnet-", least),
        *ids_problems("/security_group_ids", settings.get("security_group_ids") or [], "sg-", 1, 5),
    ]


def _known(pointer: str, value: Any, known: Sequence[str]) -> list[FieldProblem]:
    if value in known:
        return []
    text = _("%(value)s is not among %(known)s") % {"value": repr(value), "known": ", ".join(known)}
    return [FieldProblem(pointer, "unknown", text)]


def _pcs(settings: Mapping[str, Any]) -> list[FieldProblem]:
    problems = [
        *_known("/version", settings.get("version"), PCS_VERSIONS),
        *_known("/size", settings.get("size"), tuple(PCS_SIZES)),
    ]
    subnets = settings.get("subnet_ids") or []
    if len(subnets) > 1:
        text = _("PCS puts its controller into exactly one subnet, these are %(n)s; groups name their own") % {
            "n": len(subnets)
        }
        problems.append(FieldProblem("/subnet_ids", "too-many", text))
    problems += _network({**settings, "subnet_ids": subnets[:1]}, 1)
    idle_s = settings.get("idle_s")
    if not isinstance(idle_s, int) or not 1 <= idle_s <= IDLE_S_MOST:
        text = _("from 1 to %(most)s seconds") % {"most": IDLE_S_MOST}
        problems.append(FieldProblem("/idle_s", "out-of-range", text))
    return problems


def _eks(settings: Mapping[str, Any], place: Place) -> list[FieldProblem]:
    problems = [
        *_known("/version", settings.get("version"), EKS_VERSIONS),
        *role_problem("/role_arn", str(settings.get("role_arn") or ""), place),
    ]
    subnets = settings.get("subnet_ids") or []
    if len(subnets) < 2:
        text = _("EKS wants two subnets at least, in different zones, for its control plane")
        problems.append(FieldProblem("/subnet_ids", "too-few", text))
    else:
        problems += ids_problems("/subnet_ids", subnets, "subnet-", 2)
    problems += ids_problems("/security_group_ids", settings.get("security_group_ids") or [], "sg-", 0, 5)
    admins = settings.get("admin_arns") or []
    if any(not _PRINCIPAL.fullmatch(arn) for arn in admins):
        text = _("each an ARN of an IAM role or user; sessions (assumed-role) are not taken")
        problems.append(FieldProblem("/admin_arns", "invalid", text))
    elif not admins:
        text = _("name at least one role: without an access entry nobody could reach the cluster")
        problems.append(FieldProblem("/admin_arns", "required", text))
    for addon in settings.get("addons") or []:
        problems += _known("/addons", addon, EKS_ADDONS)
    return problems


def _hyperpod(kind: str, settings: Mapping[str, Any], place: Place) -> list[FieldProblem]:
    problems = _network(settings, 1)
    arn = str(settings.get("eks_cluster_arn") or "")
    if kind == ClusterKind.HYPERPOD_SLURM:
        if arn:
            text = _("only HyperPod on EKS stands on an EKS cluster")
            problems.append(FieldProblem("/eks_cluster_arn", "not-here", text))
        return problems
    found = _EKS_CLUSTER.fullmatch(arn)
    if found is None:
        text = _("the ARN of an EKS cluster such as arn:aws:eks:us-east-2:123456789012:cluster/name")
        return [*problems, FieldProblem("/eks_cluster_arn", "invalid", text)]
    if place.region and found[1] != place.region:
        text = _("it is in %(other)s; the account works in %(region)s, and HyperPod needs both in one region") % {
            "other": found[1],
            "region": place.region,
        }
        problems.append(FieldProblem("/eks_cluster_arn", "other-region", text))
    return problems + _own("/eks_cluster_arn", found[2], place)
