"""Accounts of the pretend slurmdbd and the limits of their GPUs, as associations and shares tell them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sandbox.slurm.model import Job, Refused


@dataclass
class Account:
    """One account: GrpTRES=gres/gpu and GrpTRESMins=gres/gpu; None is no limit."""

    gpus: int | None = None
    gpu_min: int | None = None


class Associations:
    """All accounts that are known, one JSON file; an account that a job names comes to be with it, without limits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.accounts: dict[str, Account] = {}
        try:
            self.accounts = {name: Account(**one) for name, one in json.loads(path.read_text()).items()}
        except (OSError, ValueError, TypeError):
            self.accounts = {}

    def add(self, name: str) -> None:
        """Make an account known."""
        if name and name not in self.accounts:
            self.accounts[name] = Account()

    def write(self, body: Any, user: str) -> None:
        """Take the associations of a POST. Raises Refused for whoever is no administrator, and for what is none."""
        if user not in ("slurm", "root"):
            raise Refused(2002)
        listed = body.get("associations") if isinstance(body, Mapping) else None
        if not isinstance(listed, list):
            raise Refused(9001)
        for one in listed:
            account = self.accounts.setdefault(str(one.get("account") or ""), Account())
            tres = (one.get("max") or {}).get("tres") or {}
            if "total" in tres:
                account.gpus = _count(tres["total"])
            if "minutes" in (tres.get("group") or {}):
                account.gpu_min = _count(tres["group"]["minutes"])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({name: asdict(one) for name, one in self.accounts.items()}))

    def shown(self, cluster: str, wanted: Iterable[str]) -> list[dict[str, Any]]:
        """The records of a GET."""
        chosen = {name for name in wanted if name} or set(self.accounts)
        return [
            {
                "account": name,
                "cluster": cluster,
                "user": "",
                "partition": "",
                "parent_account": "root",
                "max": {
                    "tres": {
                        "total": _entries(one.gpus),
                        "group": {"minutes": _entries(one.gpu_min), "active": []},
                    }
                },
            }
            for name, one in sorted(self.accounts.items())
            if name in chosen
        ]

    def shares(self, jobs: Iterable[Job], now: float) -> dict[str, Any]:
        """What GET shares tells: GPU-seconds used by account."""
        used = dict.fromkeys(self.accounts, 0.0)
        for job in jobs:
            used[job.account] = used.get(job.account, 0.0) + _seconds(job, now)
        listed = [
            {
                "name": name,
                "parent": "root",
                "type": ["ASSOCIATION"],
                "tres": {"usage": [{"name": "gres/gpu", "value": seconds}]},
            }
            for name, seconds in sorted(used.items())
        ]
        return {"shares": {"shares": listed, "total_shares": len(listed)}}

    def refusal(self, job: Job, jobs: Iterable[Job], now: float) -> str:
        """Why a job must wait for its account's limits, in Slurm's word; "" when it need not."""
        account = self.accounts.get(job.account)
        if account is None or (account.gpus is None and account.gpu_min is None):
            return ""
        gpus = job.gpus_per_node * job.node_count
        same = [one for one in jobs if one.account == job.account and one is not job]
        running = [one for one in same if one.state == "RUNNING"]
        if account.gpus is not None and gpus + sum(o.gpus_per_node * o.node_count for o in running) > account.gpus:
            return "AssocGrpGRES"
        if account.gpu_min is None:
            return ""
        used = sum(_seconds(one, now) for one in same) / 60
        open_min = sum(
            max(0.0, one.time_limit_min - (now - one.started_at) / 60) * one.gpus_per_node * one.node_count
            for one in running
        )
        wanted = job.time_limit_min * gpus
        return "AssocGrpGRESMinutes" if used + open_min + wanted > account.gpu_min else ""


def _count(entries: Any) -> int | None:
    for one in entries or []:
        if one.get("type") == "gres" and one.get("name") == "gpu":
            count = int(one.get("count", -1))
            return None if count < 0 else count
    return None


def _entries(count: int | None) -> list[dict[str, Any]]:
    return [] if count is None else [{"type": "gres", "name": "gpu", "id": 1001, "count": count}]


def _seconds(job: Job, now: float) -> float:
    if not job.started_at or not job.nodes:
        return 0.0
    return max(0.0, (job.ended_at or now) - job.started_at) * job.gpus_per_node * job.node_count
