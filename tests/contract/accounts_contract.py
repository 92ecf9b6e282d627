"""What limits of accounts must do in any Slurm; run on the sandbox and on real ones."""

from __future__ import annotations

from typing import Any

import pytest

from worker.providers import errors as e
from worker.providers.slurm import SlurmAccounts

ACCOUNT = "default"


class AccountsContract:
    """``place`` gives ``accounts(admin=True)``: the port as an administrator of Slurm or as a mere user."""

    def test_no_limit_is_none(self, place: Any) -> None:
        port: SlurmAccounts = place.accounts()
        port.account_limit_write(ACCOUNT, None, None)
        found = port.account_limits([ACCOUNT])[ACCOUNT]
        assert (found.gpus, found.gpu_min) == (None, None)

    def test_what_is_written_is_read(self, place: Any) -> None:
        port: SlurmAccounts = place.accounts()
        for pair in ((16, 6000), (0, 0), (16, None), (None, 60)):
            for _twice in range(2):
                port.account_limit_write(ACCOUNT, *pair)
            found = port.account_limits([ACCOUNT])[ACCOUNT]
            assert (found.gpus, found.gpu_min) == pair
            assert found.used_gpu_min >= 0
        port.account_limit_write(ACCOUNT, None, None)

    def test_unknown_accounts_are_left_out(self, place: Any) -> None:
        assert list(place.accounts().account_limits(["no-such-account", ACCOUNT])) == [ACCOUNT]
        assert place.accounts().account_limits([]) == {}

    def test_a_mere_user_is_refused(self, place: Any) -> None:
        with pytest.raises(e.AccessDenied):
            place.accounts(admin=False).account_limit_write(ACCOUNT, 1, 1)
