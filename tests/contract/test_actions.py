"""The contract of job actions on real Slurm 22.05, 24.11 and 26.05 and on the sandbox in both dialects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.actions_contract import ActionsContract
from tests.contract.test_scheduler_real import RealSite, needs
from tests.contract.test_scheduler_sandbox import SandboxSite, _site
from tests.labs import real_slurm_lab

pytestmark = pytest.mark.contract


class TestActionsSandboxOld(ActionsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxSite]:
        yield from _site(tmp_path_factory.mktemp("actions38"), "v0.0.38")


class TestActionsSandboxNew(ActionsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxSite]:
        yield from _site(tmp_path_factory.mktemp("actions42"), "v0.0.42")


@needs("22.05")
@pytest.mark.real_slurm
class TestActions2205(ActionsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls) -> Iterator[RealSite]:
        with real_slurm_lab() as lab:
            yield RealSite(lab, "v0.0.38", "22.05.8")


@needs("24.11")
@pytest.mark.real_slurm
class TestActions2411(ActionsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls) -> Iterator[RealSite]:
        with real_slurm_lab(release="24.11") as lab:
            yield RealSite(lab, "v0.0.42", "24.11.5")


@needs("26.05")
@pytest.mark.real_slurm
class TestActions2605(ActionsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls) -> Iterator[RealSite]:
        with real_slurm_lab(release="26.05", user="games") as lab:
            yield RealSite(lab, "v0.0.45", "26.05.5")
