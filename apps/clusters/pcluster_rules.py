"""What is asked of a ParallelCluster configuration before it is sent, and which machines it names: pure decisions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import yaml
from django.utils.translation import gettext as _

from apps.core.errors import FieldProblem

#: More than any configuration has, and less than a page chokes on.
MOST_BYTES = 100_000


@dataclass(frozen=True)
class Machines:
    """Equal machines that a configuration names; ``least`` of them run always."""

    name: str
    instance_type: str
    least: int
    most: int


class NotAConfiguration(ValueError):
    """The text is no ParallelCluster configuration; the message says why."""


def read(text: str) -> Mapping[str, Any]:
    """The configuration as a mapping. Raises NotAConfiguration."""
    if len(text.encode()) > MOST_BYTES:
        raise NotAConfiguration(_("longer than %(most)s bytes") % {"most": MOST_BYTES})
    try:
        found = yaml.safe_load(text)
    except RecursionError as error:
        raise NotAConfiguration(_("not YAML: %(problem)s") % {"problem": _("too deeply nested")}) from error
    except (yaml.YAMLError, ValueError) as error:
        # A number or date that Python cannot hold is a ValueError of its own.
        mark = getattr(error, "problem_mark", None)
        where = f" ({mark.line + 1}:{mark.column + 1})" if mark is not None else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())[:200]
        raise NotAConfiguration(_("not YAML: %(problem)s") % {"problem": f"{problem}{where}"}) from error
    if not isinstance(found, dict):
        raise NotAConfiguration(_("a YAML mapping with HeadNode and Scheduling"))
    return found


def machines(text: str) -> list[Machines]:
    """The head node and the compute resources of every queue; none where the text cannot be understood."""
    try:
        return list(islice(_machines(read(text)), 500)) if text.strip() else []
    except (NotAConfiguration, AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return []


def _machines(config: Mapping[str, Any]) -> Iterator[Machines]:
    head = config.get("HeadNode") or {}
    yield Machines("HeadNode", str(head.get("InstanceType") or "?"), 1, 1)
    for queue in (config.get("Scheduling") or {}).get("SlurmQueues") or []:
        for resource in queue.get("ComputeResources") or []:
            types = [str(i.get("InstanceType", "")) for i in resource.get("Instances") or []]
            kind = str(resource.get("InstanceType") or (types[0] if types else "?"))
            most = _count(resource.get("MaxCount", 10))
            least = min(most, _count(resource.get("MinCount") or 0))
            yield Machines(f"{queue['Name']}/{resource['Name']}", kind, least, most)


def _count(value: Any) -> int:
    """A number of machines; ParallelCluster itself refuses what is beyond its limits."""
    return max(0, min(int(value), 10_000))


def config_problems(text: str, region: str) -> list[FieldProblem]:
    """Why ParallelCluster would not take the text; it looks much closer itself before it makes anything."""

    def problem(detail: str) -> list[FieldProblem]:
        return [FieldProblem("/config", "invalid", detail)]

    if not text.strip():
        return [FieldProblem("/config", "required", _("paste the configuration, in YAML"))]
    try:
        config = read(text)
    except NotAConfiguration as error:
        return problem(str(error))
    if missing := [key for key in ("Image", "HeadNode", "Scheduling") if not isinstance(config.get(key), dict)]:
        return problem(_("%(keys)s is missing") % {"keys": ", ".join(missing)})
    named = config.get("Region", region)
    if region and named != region:
        return problem(
            _("it is for %(other)s; the account works in %(region)s") % {"other": named, "region": region},
        )
    if config["Scheduling"].get("Scheduler") != "slurm":
        return problem(_("Scheduling.Scheduler must be slurm; AWS Batch is not watched here"))
    if len(machines(text)) < 2:
        return problem(_("no queue with a compute resource under Scheduling.SlurmQueues"))
    return []


def api_problems(url: str, region: str, endpoint_url: str) -> list[FieldProblem]:
    """Whether an address can be the ParallelCluster API of the account: requests there are signed with its keys."""
    parts = urlsplit(url)
    if endpoint_url and (parts.scheme, parts.netloc) == urlsplit(endpoint_url)[:2]:
        return []
    where = re.escape(region) if region else r"[a-z0-9-]+"
    gateway = rf"[a-z0-9-]+\.execute-api\.{where}\.amazonaws\.com(\.cn)?"
    if parts.scheme == "https" and re.fullmatch(gateway, parts.netloc):
        return []
    text = _("the address of the ParallelCluster API, https://….execute-api.%(region)s.amazonaws.com/…")
    return [FieldProblem("/pcluster_api_url", "invalid", text % {"region": region or "…"})]
