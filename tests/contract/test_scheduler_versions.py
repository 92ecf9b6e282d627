"""The contract on every REST version that a release serves besides its newest; where QD_EVERY_REST_VERSION is set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.actions_contract import ActionsContract
from tests.contract.scheduler_contract import SchedulerContract
from tests.contract.test_scheduler_real import RealSite, needs
from tests.labs import real_slurm_lab
from worker.providers.slurm.versions import SERVED

pytestmark = [pytest.mark.contract, pytest.mark.real_slurm]

RELEASES = {"24.11": ("24.11.5", {}), "26.05": ("26.05.5", {"user": "games"})}


def contract_on(release: str, version: str, contract: type) -> type:
    """One of the contract's classes for one version of one release."""
    full, options = RELEASES[release]

    class Pinned(contract):  # type: ignore[misc]
        @pytest.fixture(scope="class")
        @classmethod
        def site(cls) -> Iterator[RealSite]:
            with real_slurm_lab(min_job_age_s=2, release=release, **options) as lab:  # type: ignore[arg-type]
                yield RealSite(lab, version, full, versions=(version,))

    Pinned.__name__ = Pinned.__qualname__ = (
        f"Test{contract.__name__}{release.replace('.', '')}By{version.replace('.', '')}"
    )
    marked: Any = needs(release)(Pinned)
    return marked  # type: ignore[no-any-return]


if os.environ.get("QD_EVERY_REST_VERSION"):
    # Ten more real Slurms: the newest version of each release is what everybody's run covers.
    for _release in RELEASES:
        for _version in SERVED[_release][1:]:
            for _contract in (SchedulerContract, ActionsContract):
                _case = contract_on(_release, _version, _contract)
                globals()[_case.__name__] = _case
