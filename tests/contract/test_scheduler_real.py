"""The scheduler contract on real Slurm on this machine: its own 22.05, and 24.11 and 26.05 from newer Debian."""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.contract.beacon_contract import BeaconContract
from tests.contract.endpoints import transport
from tests.contract.scheduler_contract import SchedulerContract
from tests.contract.scheduler_site import Site
from tests.labs import RealSlurm, real_slurm_lab, why_no_real_slurm
from worker.providers.errors import AccessDenied
from worker.providers.slurm import SlurmScheduler, mint_jwt
from worker.providers.slurm.tokens import PosixIdentity
from worker.providers.slurm.versions import VERSIONS

pytestmark = [pytest.mark.contract, pytest.mark.real_slurm]


def needs(release: str) -> pytest.MarkDecorator:
    reason = why_no_real_slurm(release)
    return pytest.mark.skipif(bool(reason), reason=reason or "it can run here")


class RealSite:
    def __init__(self, lab: RealSlurm, api_version: str, release: str, versions: Sequence[str] = VERSIONS) -> None:
        self.lab = lab
        self.versions = versions
        self.api_version = api_version
        self.release = release
        self.accounting_tells_exit_codes = api_version != "v0.0.38"
        self.user = lab.access.user_name
        self.jwt_key = Path(lab.description["jwt_key"]).read_bytes()
        self.work_dir = Path(lab.description["work_dir"])
        self.forgets_quickly = bool(lab.description["accounting"])

    def scheduler(self, **changes: Any) -> SlurmScheduler:
        told = {"versions": self.versions, "transport": transport(self.release.rpartition(".")[0])}
        return self.lab.scheduler(**{**told, **changes})


@needs("22.05")
class TestSlurm2205(SchedulerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls) -> Iterator[RealSite]:
        # The queue forgets on a sweep every minute; the shortest age makes it forget at the next one.
        with real_slurm_lab(min_job_age_s=2) as lab:
            yield RealSite(lab, "v0.0.38", "22.05.8")


@needs("24.11")
class TestSlurm2411(SchedulerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls) -> Iterator[RealSite]:
        with real_slurm_lab(min_job_age_s=2, release="24.11") as lab:
            yield RealSite(lab, "v0.0.42", "24.11.5")


@needs("26.05")
class TestSlurm2605(SchedulerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls) -> Iterator[RealSite]:
        # From 26.05 on Slurm takes no jobs of the user or the group nobody.
        with real_slurm_lab(min_job_age_s=2, release="26.05", user="games") as lab:
            yield RealSite(lab, "v0.0.45", "26.05.5")


@needs("26.05")
class TestSlurm2605AsPcs(SchedulerContract):
    """AWS PCS's manner: no header with the user's name, tokens that say who their bearer is, none made by scontrol."""

    @pytest.fixture(scope="class")
    @classmethod
    def site(cls) -> Iterator[RealSite]:
        with real_slurm_lab(min_job_age_s=2, release="26.05", user="games", pcs=True) as lab:
            account = pwd.getpwnam("games")
            identity = PosixIdentity(account.pw_uid, account.pw_gid)
            lab.description["token"] = mint_jwt(Path(lab.description["jwt_key"]).read_bytes(), "games", 3600, identity)
            yield RealSite(lab, "v0.0.45", "26.05.5")

    def test_slurm_makes_no_token_and_takes_none_without_ids(self, site: Site) -> None:
        words = list(site.scheduler()._scontrol)
        account = pwd.getpwnam("games")
        # Root is always given one.
        as_user = ["/usr/bin/setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
        at = words.index("/usr/bin/env")
        words[at:at] = as_user
        done = subprocess.run([*words, "token"], capture_output=True, text=True, timeout=30)
        assert done.returncode != 0
        with pytest.raises(AccessDenied):
            site.scheduler(token=mint_jwt(site.jwt_key, "games", 60)).info()


@needs("22.05")
class TestRealBeacons(BeaconContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls) -> Iterator[RealSite]:
        with real_slurm_lab(nodes=2) as lab:
            yield RealSite(lab, "v0.0.38", "22.05.8")
