"""Limits of accounts on the sandbox's Slurm, and that its queue obeys them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.accounts_contract import ACCOUNT, AccountsContract
from tests.contract.scheduler_site import until
from tests.labs import SandboxSlurm, replaced, sandbox_slurm
from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import SlurmAccounts

pytestmark = pytest.mark.contract


class Place:
    def __init__(self, slurm: SandboxSlurm) -> None:
        self.slurm = slurm

    def accounts(self, admin: bool = True) -> SlurmAccounts:
        user = "slurm" if admin else "member"
        return SlurmAccounts(replaced(self.slurm.access, user_name=user, token=self.slurm.server.token(user)))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with sandbox_slurm(tmp_path) as slurm:
        slurm.server.controller.associations.add(ACCOUNT)
        yield Place(slurm)


class TestSandboxAccounts(AccountsContract):
    """The contract, on v0.0.42."""

    def test_a_job_beyond_the_limit_waits_with_the_reason(self, place: Place, tmp_path: Path) -> None:
        port, scheduler = place.accounts(), place.slurm.scheduler()
        port.account_limit_write(ACCOUNT, None, 60)
        request = v.SubmitRequest(
            script="#!/bin/bash\nsleep 1\n", name="n", comment="c", partition="gpu", nodes=1, gpus_per_node=8,
            gpu_type="", tasks_per_node=1, cpus_per_task=1, memory_per_node_mib=0, time_limit_min=60,
            working_directory=str(tmp_path), environment={"A": "b"}, account=ACCOUNT,
        )  # fmt: skip
        number = scheduler.submit(request).scheduler_id
        until("the reason", lambda: scheduler.job(number).reason == "AssocGrpGRESMinutes")
        port.account_limit_write(ACCOUNT, None, 6000)
        until("its end", lambda: scheduler.job(number).state == "COMPLETED")


def test_old_releases_say_that_they_cannot(tmp_path: Path) -> None:
    with sandbox_slurm(tmp_path, versions=("v0.0.38",)) as slurm:
        port: Any = SlurmAccounts(slurm.access)
        with pytest.raises(e.Unsupported, match=r"v0\.0\.38"):
            port.account_limits([ACCOUNT])
