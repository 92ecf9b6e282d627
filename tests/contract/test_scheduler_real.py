"""The scheduler contract on a real Slurm 22.05 on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.beacon_contract import BeaconContract
from tests.contract.scheduler_contract import SchedulerContract
from tests.labs import RealSlurm, real_slurm_lab, why_no_real_slurm
from worker.providers.slurm import SlurmScheduler

pytestmark = [
    pytest.mark.contract,
    pytest.mark.real_slurm,
    pytest.mark.skipif(bool(why_no_real_slurm()), reason=why_no_real_slurm() or "it can run here"),
]


class RealSite:
    api_version = "v0.0.38"
    release = "22.05.8"
    accounting_tells_exit_codes = False

    def __init__(self, lab: RealSlurm) -> None:
        self.lab = lab
        self.user = lab.access.user_name
        self.jwt_key = Path(lab.description["jwt_key"]).read_bytes()
        self.work_dir = Path(lab.description["work_dir"])
        self.forgets_quickly = bool(lab.description["accounting"])

    def scheduler(self, **changes: Any) -> SlurmScheduler:
        return self.lab.scheduler(**changes)


class TestRealSlurm(SchedulerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls) -> Iterator[RealSite]:
        # The queue forgets on a sweep every minute; the shortest age makes it forget at the next one.
        with real_slurm_lab(min_job_age_s=2) as lab:
            yield RealSite(lab)


class TestRealBeacons(BeaconContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls) -> Iterator[RealSite]:
        with real_slurm_lab(nodes=2) as lab:
            yield RealSite(lab)
