"""The scheduler contract on the sandbox's Slurm, in both dialects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.slurm import Settings
from tests.contract.beacon_contract import BeaconContract
from tests.contract.scheduler_contract import SchedulerContract
from tests.labs import SandboxSlurm, sandbox_slurm
from worker.providers.slurm import SlurmScheduler

pytestmark = pytest.mark.contract


class SandboxSite:
    accounting_tells_exit_codes = True
    forgets_quickly = True

    def __init__(self, slurm: SandboxSlurm, work_dir: Path, version: str) -> None:
        self.slurm = slurm
        self.user = slurm.user
        self.jwt_key = slurm.server._key
        self.work_dir = work_dir
        self.api_version = version
        self.release = {"v0.0.38": "22.05.8", "v0.0.42": "24.11.5"}[version]
        self.accounting_tells_exit_codes = version != "v0.0.38"

    def scheduler(self, **changes: Any) -> SlurmScheduler:
        return self.slurm.scheduler(**changes)


def _site(tmp: Path, version: str) -> Iterator[SandboxSite]:
    settings = Settings(min_job_age_s=3, kill_wait_s=1.5)
    work_dir = tmp / "work"
    work_dir.mkdir()
    with sandbox_slurm(tmp, versions=(version,), settings=settings) as slurm:
        yield SandboxSite(slurm, work_dir, version)


class TestSandboxOld(SchedulerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxSite]:
        yield from _site(tmp_path_factory.mktemp("v38"), "v0.0.38")


class TestSandboxNew(SchedulerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxSite]:
        yield from _site(tmp_path_factory.mktemp("v42"), "v0.0.42")


class TestSandboxBeacons(BeaconContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxSite]:
        yield from _site(tmp_path_factory.mktemp("beacons"), "v0.0.42")
