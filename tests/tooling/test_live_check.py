"""manage.py live-check against the sandbox: what works, what is denied, and that nothing was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.connections.models import CloudAccount
from sandbox.aws import AwsServer
from sandbox.aws.options import ACCESS_KEY_ID, SECRET_ACCESS_KEY
from sandbox.world import World
from worker.live_check import main

pytestmark = pytest.mark.django_db


def test_every_call_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path)
    server.start()
    try:
        keys = f'{{"access_key_id": "{ACCESS_KEY_ID}", "secret_access_key": "{SECRET_ACCESS_KEY}"}}'
        monkeypatch.setenv("TEST_AWS", keys)
        CloudAccount.objects.create(
            name="main", region=server.options.region, endpoint_url=server.url, credentials_ref="env:TEST_AWS"
        )
        before = server.census()
        server.world.fault_add("access-denied", service="aws", operation="DescribeSubnets")
        assert main(["main"]) == 0
        out = capsys.readouterr().out
        assert "denied   ec2:DescribeSubnets" in out
        assert "works    fsx:DescribeFileSystems" in out
        assert "works    ec2:CreateLaunchTemplate" in out
        assert "nothing was made or changed" in out
        assert server.census() == before
    finally:
        server.stop()


def test_unknown_accounts_and_missing_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nobody"]) == 2
    CloudAccount.objects.create(name="bare", region="us-east-2", credentials_ref="env:NOT_SET_ANYWHERE")
    assert main(["bare"]) == 1
    assert "NOT_SET_ANYWHERE" in capsys.readouterr().out
