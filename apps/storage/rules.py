"""What AWS allows of a file system, what it costs and when it may go: decisions on values, without a database.

Capacities and throughputs are AWS's documented steps for PERSISTENT_2 on SSD (botocore's model and the FSx for
Lustre guide). Prices are AWS's public list for us-east-1 as of 2026-11; they are an estimate in other regions.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from django.utils.translation import gettext as _

from apps.core.errors import FieldProblem
from apps.storage.states import FileSystemKind, RepositoryEvent

THROUGHPUTS: Final = (125, 250, 500, 1000)
#: GiB steps of an EFA-enabled file system by MB/s per TiB.
EFA_STEPS: Final = {125: 38_400, 250: 19_200, 500: 9_600, 1000: 4_800}
STEP_GIB: Final = 2400
SMALLEST_GIB: Final = 1200
METADATA_IOPS: Final = (1500, 3000, 6000, *range(12_000, 192_001, 12_000))
MOST_ASSOCIATIONS: Final = 8
USD_PER_GIB_MONTH: Final = {
    125: Decimal("0.145"),
    250: Decimal("0.210"),
    500: Decimal("0.340"),
    1000: Decimal("0.600"),
}
EFS_USD_PER_GIB_MONTH: Final = Decimal("0.30")
PRICE_SOURCE: Final = "AWS public price list, us-east-1, 2026-11"
PRICE_REGION: Final = "us-east-1"
#: A reading older than this says nothing about what still waits for export.
READING_FRESH_S: Final = 600
#: A storage target with less than this share left makes writes fail while others still have room.
FULL_SHARE: Final = 0.10

_BUCKET = re.compile(r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$")


def step_gib(throughput: int, has_efa: bool) -> int:
    """The step in which capacity grows."""
    return EFA_STEPS[throughput] if has_efa else STEP_GIB


def lustre_problems(capacity_gib: int, throughput: int, has_efa: bool, metadata_iops: int) -> list[FieldProblem]:
    """What AWS would refuse about a Lustre file system, each at its field."""
    problems: list[FieldProblem] = []
    if throughput not in THROUGHPUTS:
        known = ", ".join(str(t) for t in THROUGHPUTS)
        text = _("one of %(known)s MB/s per TiB") % {"known": known}
        return [FieldProblem("/throughput_mb_s_tib", "not-a-step", text)]
    step = step_gib(throughput, has_efa)
    smallest = step if has_efa else SMALLEST_GIB
    if capacity_gib < smallest or (capacity_gib % step and capacity_gib != smallest):
        low = max(smallest, capacity_gib // step * step)
        high = max(smallest, -(-capacity_gib // step) * step)
        if has_efa:
            text = _(
                "with EFA at %(throughput)s MB/s per TiB a multiple of %(step)s GiB; nearest: %(low)s or %(high)s"
            ) % {"throughput": throughput, "step": step, "low": low, "high": high}
        else:
            text = _("1200 GiB or a multiple of 2400 GiB; nearest: %(low)s or %(high)s") % {"low": low, "high": high}
        problems.append(FieldProblem("/capacity_gib", "not-a-step", text))
    if metadata_iops and metadata_iops not in METADATA_IOPS:
        text = _("0 (automatic), 1500, 3000, 6000 or a multiple of 12000 up to 192000")
        problems.append(FieldProblem("/metadata_iops", "not-a-step", text))
    return problems


def grow_problem(now_gib: int, wanted_gib: int, throughput: int, has_efa: bool) -> str:
    """Why a file system cannot grow to this capacity, "" when it can."""
    if wanted_gib <= now_gib:
        return _("it has %(now)s GiB; AWS only grows a file system, it never shrinks one") % {"now": now_gib}
    found = lustre_problems(wanted_gib, throughput, has_efa, 0)
    return found[0].detail if found else ""


def usd_per_month(kind: str, capacity_gib: int, throughput: int) -> Decimal | None:
    """List price of the capacity; None where it follows use (EFS) or the throughput is unknown."""
    if kind == FileSystemKind.EFS or throughput not in USD_PER_GIB_MONTH:
        return None
    return (USD_PER_GIB_MONTH[throughput] * capacity_gib).quantize(Decimal("0.01"))


def overlap(one: str, other: str) -> bool:
    """Whether one path or prefix is the other or lies below it."""
    a, b = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return a.startswith(b) or b.startswith(a)


def association_problems(
    path: str, repository: str, imports: list[str], exports: list[str], others: list[tuple[str, str]]
) -> list[FieldProblem]:
    """What AWS would refuse about an association beside ``others``, each a (path, repository)."""
    problems: list[FieldProblem] = []
    if not path.startswith("/") or ".." in path or any(ord(c) < 32 for c in path):
        problems.append(FieldProblem("/path", "invalid", _("an absolute folder of the file system, such as /ckpt")))
    if not _BUCKET.fullmatch(repository) or any(ord(c) < 32 for c in repository):
        problems.append(FieldProblem("/repository", "invalid", _("an S3 address such as s3://bucket/prefix/")))
    known = {c.value for c in RepositoryEvent}
    for pointer, events in (("/imports", imports), ("/exports", exports)):
        unknown = sorted(set(events) - known)
        if unknown:
            text = _("%(value)s is not one of %(known)s") % {
                "value": ", ".join(unknown),
                "known": ", ".join(sorted(known)),
            }
            problems.append(FieldProblem(pointer, "unknown", text))
    if len(others) >= MOST_ASSOCIATIONS:
        problems.append(FieldProblem("", "too-many", _("a file system takes at most 8 associations")))
    for other_path, other_repository in others:
        if overlap(path, other_path):
            text = _("overlaps %(other)s, which is tied to %(where)s") % {
                "other": other_path,
                "where": other_repository,
            }
            problems.append(FieldProblem("/path", "overlaps", text))
        if overlap(repository, other_repository):
            text = _("overlaps %(other)s, which is tied to %(where)s") % {
                "other": other_repository,
                "where": other_path,
            }
            problems.append(FieldProblem("/repository", "overlaps", text))
    return problems


def deletes_in_s3(exports: list[str]) -> bool:
    """Whether an ``rm`` on the file system also removes the copy in S3."""
    return RepositoryEvent.DELETED in exports


def unexported_reason(queue_age_s: float | None, reading_age_s: float | None, has_exports: bool) -> str:
    """Why deleting now may lose data that has not reached S3, "" when everything has (or nothing ever would)."""
    if not has_exports:
        return ""
    if queue_age_s is None or reading_age_s is None or reading_age_s > READING_FRESH_S:
        return _("it is not known whether everything has reached S3: there is no fresh reading of the export queue")
    if queue_age_s > 0:
        return _("files still wait for their export to S3, the oldest for %(age)s s") % {"age": round(queue_age_s)}
    return ""


def fullness(capacity_gib: int, free_bytes: int | None) -> float | None:
    """The used share of a file system, 0 to 1; None when unknown."""
    if free_bytes is None or capacity_gib <= 0:
        return None
    return min(1.0, max(0.0, 1 - free_bytes / (capacity_gib * 2**30)))


def fullest_share(capacity_gib: int, targets: int | None, fullest_free_bytes: int | None) -> float | None:
    """The used share of the fullest storage target, 0 to 1; None when unknown."""
    if not targets or fullest_free_bytes is None or capacity_gib <= 0:
        return None
    return min(1.0, max(0.0, 1 - fullest_free_bytes / (capacity_gib / targets * 2**30)))
