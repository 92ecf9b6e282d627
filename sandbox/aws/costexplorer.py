"""Cost Explorer: what the pretend machines cost, by day, with tags and instance types to group by."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

from sandbox.aws.errors import AwsError
from sandbox.aws.options import AwsOptions
from sandbox.aws.pricing import price_of
from sandbox.aws.service import Service
from sandbox.aws.state import Cloud, Machine
from sandbox.world import World

_EC2: Final = "Amazon Elastic Compute Cloud - Compute"
_LIMIT_GROUPS: Final = 2


class CostExplorer(Service):
    """Reads what ``cloud`` ran; a machine in a Capacity Block costs nothing by the hour, as on AWS's bill."""

    name: ClassVar[str] = "ce"
    refusal: ClassVar[str] = "ValidationException"

    def __init__(self, options: AwsOptions, world: World, state_dir: Path, cloud: Cloud) -> None:
        super().__init__(options, world, state_dir)
        self.cloud = cloud

    def get_cost_and_usage(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Daily or monthly sums; ``End`` is the first day that is not counted."""
        start, end = _day(asked["TimePeriod"]["Start"]), _day(asked["TimePeriod"]["End"])
        if start >= end:
            raise AwsError("ValidationException", "Start date (and hour) should be before end date (and hour)")
        if asked["Granularity"] == "HOURLY":
            raise AwsError("ValidationException", "Hourly granularity is an opt-in feature of the account.")
        groups = asked.get("GroupBy") or []
        if len(groups) > _LIMIT_GROUPS:
            raise AwsError("ValidationException", "GroupBy can only support at most 2 grouping dimensions")
        with self.cloud.lock:
            machines = list(self.cloud.machines.values())
        results = []
        for first, last in _periods(start, end, asked["Granularity"]):
            results.append(_period(first, last, machines, groups, asked["Metrics"], self.options))
        return {"GroupDefinitions": list(groups), "ResultsByTime": results}

    def get_tags(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The values that a tag has had."""
        key = asked.get("TagKey")
        with self.cloud.lock:
            machines = list(self.cloud.machines.values())
        found = sorted({v for m in machines for k, v in m.tags.items() if key in (None, k)})
        return {"Tags": found, "ReturnSize": len(found), "TotalSize": len(found)}


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text[:10])
    except ValueError as exc:
        raise AwsError("ValidationException", f"{text!r} is not a day as YYYY-MM-DD") from exc


def _periods(start: date, end: date, granularity: str) -> list[tuple[date, date]]:
    found = []
    while start < end:
        if granularity == "MONTHLY":
            following = (start.replace(day=1) + timedelta(days=32)).replace(day=1)
        else:
            following = start + timedelta(days=1)
        found.append((start, min(following, end)))
        start = following
    return found


def _hours(machine: Machine, first: date, last: date, options: AwsOptions) -> float:
    since = datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp()
    until = datetime(last.year, last.month, last.day, tzinfo=UTC).timestamp()
    ended = machine.terminated_at + options.shutdown_s if machine.terminated_at is not None else time.time()
    return max(0.0, min(until, ended) - max(since, machine.launched_at)) / 3600


def _period(
    first: date,
    last: date,
    machines: Sequence[Machine],
    groups: Sequence[Mapping[str, str]],
    metrics: Sequence[str],
    options: AwsOptions,
) -> dict[str, Any]:
    sums: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for machine in machines:
        hours = _hours(machine, first, last, options)
        if not hours:
            continue
        row = sums[tuple(_key(machine, group, options) for group in groups)]
        row[0] += hours * price_of(machine.instance_type)
        row[1] += hours
    total = [sum(r[0] for r in sums.values()), sum(r[1] for r in sums.values())]
    return {
        "TimePeriod": {"Start": first.isoformat(), "End": last.isoformat()},
        "Total": {} if groups else _amounts(total, metrics),
        "Groups": [{"Keys": list(k), "Metrics": _amounts(v, metrics)} for k, v in sorted(sums.items())]
        if groups
        else [],
        "Estimated": last > datetime.now(UTC).date(),
    }


def _key(machine: Machine, group: Mapping[str, str], options: AwsOptions) -> str:
    if group["Type"] == "TAG":
        return f"{group['Key']}${machine.tags.get(group['Key'], '')}"
    known = {"INSTANCE_TYPE": machine.instance_type, "REGION": options.region, "AZ": machine.zone, "SERVICE": _EC2}
    if group["Key"] not in known:
        raise AwsError("ValidationException", f"The sandbox cannot group by {group['Key']}.")
    return known[group["Key"]]


def _amounts(row: Sequence[float], metrics: Sequence[str]) -> dict[str, dict[str, str]]:
    usd, hours = {"Amount": f"{row[0]:.10f}", "Unit": "USD"}, {"Amount": f"{row[1]:.10f}", "Unit": "Hrs"}
    return {metric: hours if metric == "UsageQuantity" else usd for metric in metrics}
