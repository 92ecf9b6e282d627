"""Keys in Secrets Manager: read through the cluster's account, PCS's own found by its ARN."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from apps.clusters.models import Cluster
from apps.clusters.slurm_models import SlurmUser
from apps.connections.models import CloudAccount
from sandbox.aws import AwsServer
from sandbox.tokens import user_of
from sandbox.world import World
from tests import cluster_site as at
from worker import doors
from worker.providers import errors as e
from worker.providers.aws.secrets import secret_value

pytestmark = pytest.mark.contract
KEY = b"k" * 32


@pytest.fixture
def server(tmp_path: Any) -> Iterator[AwsServer]:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, at.OPTIONS)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def arn(server: AwsServer) -> str:
    kept: Any = server.services["secretsmanager"]
    return str(kept.keep("quarterdeck/lab", base64.b64encode(KEY).decode()))


@pytest.fixture
def account(server: AwsServer, monkeypatch: pytest.MonkeyPatch, db: None) -> CloudAccount:
    found = CloudAccount.objects.create(name="main", region=server.options.region, phase="CONNECTED")
    monkeypatch.setattr(doors, "access_of", lambda account: at.access_of(server))
    monkeypatch.setattr(doors, "_from_aws", {})
    return found


def test_by_name_and_by_arn(server: AwsServer, arn: str) -> None:
    for wanted in (arn, "quarterdeck/lab"):
        assert secret_value(at.access_of(server), wanted) == base64.b64encode(KEY).decode()
    with pytest.raises(e.ProviderError, match="GetSecretValue") as refused:
        secret_value(at.access_of(server), "none")
    assert not refused.value.retryable


def test_the_key_is_decoded_and_read_once(server: AwsServer, arn: str, account: CloudAccount) -> None:
    assert doors.signing_key("aws:quarterdeck/lab", account) == KEY
    kept: Any = server.services["secretsmanager"]
    kept.forget(arn)
    assert doors.signing_key("aws:quarterdeck/lab", account) == KEY, "kept in memory for some minutes"
    with pytest.raises(e.InvalidRequest, match="the cluster has none"):
        doors.signing_key("aws:quarterdeck/lab", None)


def test_a_token_may_lie_there_too(arn: str, server: AwsServer, account: CloudAccount) -> None:
    kept: Any = server.services["secretsmanager"]
    kept.keep("quarterdeck/token", "a.b.c\n")
    assert doors.secret("aws:quarterdeck/token", account) == "a.b.c"


def test_a_cluster_of_pcs_needs_no_reference(arn: str, account: CloudAccount) -> None:
    cluster = Cluster.objects.create(
        name="shannon", kind="pcs", account=account, phase="READY", user_name="ops", working_root="/fsx",
        observed_api_url="http://10.0.0.1:6820", provider_facts={"jwt_key_arn": arn},
    )  # fmt: skip
    assert cluster.takes_jobs
    SlurmUser.objects.create(cluster=cluster, user_name="ops", uid_number=900, gid_number=900)
    access = doors.scheduler_access(cluster)
    assert user_of(access.token, KEY) == "ops"
    assert not access.names_user
