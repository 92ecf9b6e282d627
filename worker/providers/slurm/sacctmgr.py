"""Limits of accounts through sacctmgr and scontrol, where slurmdbd's REST cannot (Slurm 22.05)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence

from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import errors as se

_ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9._@-]{0,59}")
_GPU = re.compile(r"(?:^|,)gres/gpu=(\d+)(?=,|$)")
#: "GrpTRESMins=cpu=N(0),…,gres/gpu=6000(12)": the limit and, in brackets, the minutes that count against it.
_USED = re.compile(r"GrpTRESMins=\S*?gres/gpu=(?:N|\d+)\((\d+)\)")
_BLOCK = re.compile(r"Account=(\S+) UserName=(\S*)")


def beside(scontrol: Sequence[str]) -> tuple[str, ...]:
    """The command for sacctmgr that lies beside a command for scontrol; empty where that cannot be told."""
    if not scontrol:
        return ()
    folder, slash, name = scontrol[-1].rpartition("/")
    return (*scontrol[:-1], f"{folder}{slash}sacctmgr") if name == "scontrol" else ()


class Sacctmgr:
    """Runs the two commands, each bounded in time; their user must be an administrator of Slurm's accounting."""

    def __init__(self, scontrol: Sequence[str], timeout_s: float) -> None:
        self._scontrol = tuple(scontrol)
        self._sacctmgr = beside(scontrol)
        self._timeout_s = timeout_s

    @property
    def is_there(self) -> bool:
        """Whether there is a command to run."""
        return bool(self._sacctmgr)

    def account_limits(self, accounts: Collection[str], cluster: str) -> Mapping[str, v.AccountLimit]:
        """As the port says."""
        names = ",".join(sorted(_checked(name) for name in accounts))
        fields = "format=account,user,partition,grptres,grptresmins"
        where = ["where", f"account={names}", f"cluster={cluster}"]
        told = self._run(self._sacctmgr, ["--noheader", "--parsable2", "show", "association", *where, fields])
        used = _used(self._run(self._scontrol, ["show", "assoc_mgr", f"accounts={names}", "flags=assoc"]))
        found: dict[str, v.AccountLimit] = {}
        for line in told.splitlines():
            cells = line.split("|")
            if len(cells) != 5 or cells[1] or cells[2] or cells[0] not in accounts:
                continue
            found[cells[0]] = v.AccountLimit(cells[0], _count(cells[3]), _count(cells[4]), used.get(cells[0], 0))
        return found

    def account_limit_write(self, account: str, gpus: int | None, gpu_min: int | None, cluster: str) -> None:
        """As the port says."""
        limits = [f"GrpTRES=gres/gpu={_word(gpus)}", f"GrpTRESMins=gres/gpu={_word(gpu_min)}"]
        where = ["where", f"account={_checked(account)}", f"cluster={cluster}"]
        self._run(self._sacctmgr, ["--immediate", "modify", "account", "set", *limits, *where])

    def _run(self, command: Sequence[str], words: Sequence[str]) -> str:
        try:
            done = subprocess.run(
                [*command, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            text = f"{command[-1]} did not end within {self._timeout_s:g} s"
            raise e.Unavailable(text, source=se.SOURCE, code="timeout") from None
        except OSError as error:
            text = f"cannot run {command[0]}: {error.strerror or error}"
            raise e.Unavailable(text, source=se.SOURCE, code="sacctmgr") from None
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            if "permission" in said.lower() or "admin" in said.lower():
                raise e.AccessDenied(said[-300:], source=se.SOURCE, code="sacctmgr")
            raise e.Unavailable(f"{command[-1]} failed: {said[-300:]}", source=se.SOURCE, code="sacctmgr")
        return done.stdout


def _checked(name: str) -> str:
    """The name, if it can be one, so that no odd text reaches a command line. Raises InvalidRequest."""
    if not _ACCOUNT.fullmatch(name):
        raise e.InvalidRequest(f"{name[:80]!r} cannot be an account", source=se.SOURCE, code="account")
    return name


def _word(count: int | None) -> str:
    return "-1" if count is None else str(count)


def _count(text: str) -> int | None:
    match = _GPU.search(text)
    return int(match.group(1)) if match is not None else None


def _used(text: str) -> dict[str, int]:
    """Minutes by account, from the records of accounts; those of users begin with another UserName."""
    found: dict[str, int] = {}
    heads = list(_BLOCK.finditer(text))
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        match = _USED.search(text, head.end(), following.start() if following is not None else len(text))
        if match is not None and not head.group(2):
            found[head.group(1)] = int(match.group(1))
    return found
