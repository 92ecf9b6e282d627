"""Limits of accounts on a real Slurm with slurmdbd: what the portal writes binds sbatch by ssh, too."""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.accounts_contract import ACCOUNT, AccountsContract
from tests.contract.scheduler_site import until
from tests.labs import RealSlurm, real_slurm_lab, replaced, why_no_real_slurm
from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import SlurmAccounts

pytestmark = [pytest.mark.contract, pytest.mark.real_slurm]
USER = "games"


def needs(release: str) -> pytest.MarkDecorator:
    reason = why_no_real_slurm(release)
    return pytest.mark.skipif(bool(reason), reason=reason or "it can run here")


class Place:
    def __init__(self, lab: RealSlurm) -> None:
        self.lab = lab

    def accounts(self, admin: bool = True) -> SlurmAccounts:
        access = self.lab.access
        if admin:
            access = replaced(access, user_name="slurm", token=self.lab.description["admin_token"])
        return SlurmAccounts(access, scontrol=self.lab.scontrol if admin else self.as_user("scontrol"))

    def as_user(self, name: str) -> list[str]:
        """A command of the lab as the jobs' user runs it at the head node."""
        command = list(self.lab.description[name])
        account = pwd.getpwnam(USER)
        ids = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}"]
        at = next(i for i, word in enumerate(command) if word.endswith("/env"))
        command[at:at] = ["/usr/bin/setpriv", *ids, "--clear-groups"]
        return command

    def sbatch(self, *words: str) -> str:
        """Submit as a user at the head node does; the job's id."""
        whole = [*self.as_user("sbatch"), "--parsable", "--chdir=/tmp", "--output=/dev/null", *words]
        done = subprocess.run(whole, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def sacctmgr(self, *words: str) -> None:
        done = subprocess.run(
            [*self.lab.description["sacctmgr"], "-i", *words], capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stdout + done.stderr


class RealAccounts(AccountsContract):
    """The contract and what only a real Slurm can show."""

    def test_sbatch_beyond_the_budget_waits_until_it_is_raised(self, place: Place) -> None:
        port, scheduler = place.accounts(), place.lab.scheduler()
        port.account_limit_write(ACCOUNT, None, 30)
        number = place.sbatch("--gres=gpu:8", "-N1", "--time=60", "--wrap", "sleep 1")
        until("the reason", lambda: scheduler.job(number).reason == "AssocGrpGRESMinutes", timeout_s=60)
        port.account_limit_write(ACCOUNT, None, 6000)
        until("its end", lambda: scheduler.job(number).state == "COMPLETED", timeout_s=90)

    def test_sbatch_beyond_the_quota_waits_with_its_own_reason(self, place: Place) -> None:
        port, scheduler = place.accounts(), place.lab.scheduler()
        port.account_limit_write(ACCOUNT, 8, None)
        first = place.sbatch("--gres=gpu:8", "-N1", "--time=60", "--wrap", "sleep 300")
        second = place.sbatch("--gres=gpu:8", "-N1", "--time=60", "--wrap", "sleep 1")
        until("the reason", lambda: scheduler.job(second).reason == "AssocGrpGRES", timeout_s=60)
        scheduler.cancel(first)
        until("its end", lambda: scheduler.job(second).state == "COMPLETED", timeout_s=90)
        port.account_limit_write(ACCOUNT, None, None)

    def test_a_change_by_sacctmgr_is_seen(self, place: Place) -> None:
        port = place.accounts()
        port.account_limit_write(ACCOUNT, 16, 6000)
        place.sacctmgr("modify", "account", ACCOUNT, "set", "GrpTRES=gres/gpu=32")
        found = port.account_limits([ACCOUNT])[ACCOUNT]
        assert (found.gpus, found.gpu_min) == (32, 6000)
        port.account_limit_write(ACCOUNT, None, None)

    def test_an_account_without_association_is_refused_in_words(self, place: Place) -> None:
        request = v.SubmitRequest(
            script="#!/bin/bash\ntrue\n", name="n", comment="c", partition="gpu", nodes=1, gpus_per_node=1,
            gpu_type="", tasks_per_node=1, cpus_per_task=1, memory_per_node_mib=0, time_limit_min=5,
            working_directory="/tmp", environment={"A": "b"}, account="no-such-account",
        )  # fmt: skip
        with pytest.raises(e.InvalidRequest, match="Invalid account"):
            place.lab.scheduler().submit(request)

    def test_a_user_whom_slurm_does_not_know_is_refused(self, place: Place) -> None:
        from pathlib import Path

        from worker.providers.slurm import mint_jwt

        key = Path(place.lab.description["jwt_key"]).read_bytes()
        scheduler: Any = place.lab.scheduler(user_name="no-such-user", token=mint_jwt(key, "no-such-user", 60))
        request = v.SubmitRequest(
            script="#!/bin/bash\ntrue\n", name="n", comment="c", partition="gpu", nodes=1, gpus_per_node=1,
            gpu_type="", tasks_per_node=1, cpus_per_task=1, memory_per_node_mib=0, time_limit_min=5,
            working_directory="/tmp", environment={"A": "b"},
        )  # fmt: skip
        with pytest.raises((e.AccessDenied, e.InvalidRequest)) as refused:
            scheduler.submit(request)
        print("REFUSAL", type(refused.value).__name__, refused.value)


@needs("26.05")
class TestAccounts2605(RealAccounts):
    @pytest.fixture(scope="class")
    @classmethod
    def place(cls) -> Iterator[Place]:
        with real_slurm_lab(release="26.05", user=USER, enforce=True, accounting=True) as lab:
            yield Place(lab)


@needs("24.11")
class TestAccounts2411(RealAccounts):
    @pytest.fixture(scope="class")
    @classmethod
    def place(cls) -> Iterator[Place]:
        with real_slurm_lab(release="24.11", user=USER, enforce=True, accounting=True) as lab:
            yield Place(lab)


@needs("22.05")
class TestAccounts2205(RealAccounts):
    """By sacctmgr: v0.0.38 has no such calls."""

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls) -> Iterator[Place]:
        with real_slurm_lab(user=USER, enforce=True, accounting=True) as lab:
            yield Place(lab)

    def test_what_was_used_is_counted(self, place: Place) -> None:
        port, scheduler = place.accounts(), place.lab.scheduler()
        number = place.sbatch("--gres=gpu:8", "-N4", "--time=5", "--wrap", "sleep 8")
        until("its end", lambda: scheduler.job(number).state == "COMPLETED", timeout_s=60)
        until("the count", lambda: port.account_limits([ACCOUNT])[ACCOUNT].used_gpu_min >= 2, timeout_s=90)
