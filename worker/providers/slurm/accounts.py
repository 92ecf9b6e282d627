"""The ``SlurmAccounting`` port: limits of accounts through slurmdbd's REST (v0.0.40 and later), else sacctmgr."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import httpx2

from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import decode
from worker.providers.slurm import errors as se
from worker.providers.slurm.rest import Rest
from worker.providers.slurm.sacctmgr import Sacctmgr

#: Versions whose slurmdbd takes no associations by REST, or none of their limits.
_WITHOUT = ("v0.0.38", "v0.0.39")
#: Clears a limit.
_NO_LIMIT = -1


class SlurmAccounts:
    """Limits of one cluster's accounts; its user needs Slurm's admin level. Not for use by several threads at once.

    ``scontrol`` is a command as ``SlurmScheduler`` takes it: where REST cannot, the sacctmgr beside it is used.
    """

    def __init__(
        self,
        access: v.SchedulerAccess,
        *,
        scontrol: Sequence[str] = (),
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._rest = Rest(access, transport)
        self._sacctmgr = Sacctmgr(scontrol, access.timeout_s)
        self._cluster = ""

    def close(self) -> None:
        """Let go of the connections."""
        self._rest.close()

    def renew(self, token: str) -> None:
        """Go on with a fresh token of the same user."""
        self._rest.renew(token)

    def account_limits(self, accounts: Collection[str]) -> Mapping[str, v.AccountLimit]:
        """GPU limits of these accounts and what counts against them; those that Slurm does not know are left out."""
        by_rest = self._able("read")
        wanted = sorted(accounts)
        if not wanted:
            return {}
        if not by_rest:
            return self._sacctmgr.account_limits(wanted, self._name())
        params = {"account": ",".join(wanted), "cluster": self._name()}
        told = self._rest.call("GET", "/slurmdb/{v}/associations/", about="accounting", params=params).body
        used = self._used(wanted)
        found: dict[str, v.AccountLimit] = {}
        for record in self._list(told, "associations"):
            name = decode.text(record.get("account"))
            # The account's own record, not those of its users or of a partition.
            if record.get("user") or record.get("partition") or name not in accounts:
                continue
            found[name] = decode.guarded(lambda one: _limit(one, used), record, "association")
        return found

    def account_limit_write(self, account: str, gpus: int | None, gpu_min: int | None) -> None:
        """Set GrpTRES=gres/gpu and GrpTRESMins=gres/gpu of an account; None takes a limit away. Twice is once.

        Raises AccessDenied where our user is no administrator of Slurm's accounting.
        """
        if not self._able("write"):
            self._sacctmgr.account_limit_write(account, gpus, gpu_min, self._name())
            return
        tres = {"total": [_gpu(gpus)], "group": {"minutes": [_gpu(gpu_min)]}}
        one = {"account": account, "cluster": self._name(), "user": "", "partition": "", "max": {"tres": tres}}
        self._rest.call("POST", "/slurmdb/{v}/associations/", about="accounting", body={"associations": [one]})

    def _able(self, verb: str) -> bool:
        """Whether REST can; False where sacctmgr must. Raises Unsupported where neither can."""
        if self._rest.version not in _WITHOUT:
            return True
        if self._sacctmgr.is_there:
            return False
        raise e.Unsupported(
            f"Slurm's REST {self._rest.version} cannot {verb} limits of accounts: from Slurm 23.02 on it can, "
            "before that the worker needs scontrol and sacctmgr (QD_SCONTROL)",
            source=se.SOURCE,
            code="version",
        )

    def _name(self) -> str:
        """The cluster's name in accounting."""
        if not self._cluster:
            meta = self._rest.ping().body.get("meta")
            slurm = (meta.get("slurm") or meta.get("Slurm")) if isinstance(meta, Mapping) else None
            name = decode.text(slurm.get("cluster")) if isinstance(slurm, Mapping) else ""
            if not name:
                told = self._list(self._rest.call("GET", "/slurmdb/{v}/clusters", about="accounting").body, "clusters")
                name = decode.text(told[0].get("name")) if len(told) == 1 else ""
            if not name:
                raise e.Unavailable("Slurm does not say which cluster it is", source=se.SOURCE, code="cluster")
            self._cluster = name
        return self._cluster

    def _used(self, accounts: Collection[str]) -> Mapping[str, float]:
        """GPU-seconds that slurmctld counts against each account: what decays and resets there is gone here, too."""
        params = {"accounts": ",".join(accounts)}
        told = self._rest.call("GET", "/slurm/{v}/shares", about="queue", params=params).body
        shares = told.get("shares")
        found: dict[str, float] = {}
        for record in self._list(shares if isinstance(shares, Mapping) else {}, "shares"):
            if "USER" in decode.words(record.get("type")):
                continue
            tres = record.get("tres")
            for one in (tres.get("usage") if isinstance(tres, Mapping) else None) or []:
                if isinstance(one, Mapping) and one.get("name") == "gres/gpu":
                    found[decode.text(record.get("name"))] = _seconds(one.get("value"))
        return found

    def _list(self, body: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        found = body.get(key)
        if not isinstance(found, list):
            raise e.Unavailable(f"the answer holds no list {key!r}", source=se.SOURCE, code="shape")
        return [one for one in found if isinstance(one, Mapping)]


def _gpu(count: int | None) -> Mapping[str, Any]:
    return {"type": "gres", "name": "gpu", "count": _NO_LIMIT if count is None else count}


def _seconds(value: Any) -> float:
    if isinstance(value, Mapping):
        value = value.get("number")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _limit(record: Mapping[str, Any], used: Mapping[str, float]) -> v.AccountLimit:
    tres = (record.get("max") or {}).get("tres") or {}
    name = decode.text(record.get("account"))
    return v.AccountLimit(
        account=name,
        gpus=_count(tres.get("total")),
        gpu_min=_count((tres.get("group") or {}).get("minutes")),
        used_gpu_min=int(used.get(name, 0.0) // 60),
    )


def _count(entries: Any) -> int | None:
    for one in entries or []:
        if one.get("type") == "gres" and one.get("name") == "gpu":
            count = decode.number(one.get("count"))
            return None if count is None or count < 0 else count
    return None
