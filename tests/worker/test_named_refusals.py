"""What a person can get wrong about AWS: each named, in the form or as a condition, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from apps.capacity.models import Reservation
from apps.clusters.fleet_services import fleet_delete
from apps.clusters.history import step_advice
from apps.clusters.models import Cluster, Fleet
from apps.connections.models import CloudAccount
from apps.core.errors import FieldProblem, InvalidInput
from apps.storage.models import FileSystem
from apps.storage.services import association_create, file_system_create
from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import SECOND_SUBNET_ID, SECURITY_GROUP_ID, SUBNET_ID
from sandbox.world import World
from tests.chaos import Plan
from tests.conftest import actor_of
from tests.worker import fleet_site as at

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]
P5 = "p5.48xlarge"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    options = AwsOptions(boot_s=0.1, join_s=0.1, shutdown_s=0.05, block_clean_s=0.05)
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path_factory.mktemp("aws"), options)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def cluster(server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("TEST_AWS", at.KEYS)
    yield at.site(server)
    server.world.faults.clear()
    with server.cloud.lock:
        server.cloud.book.rows("reservations").clear()


def problems(call: Any) -> list[FieldProblem]:
    with pytest.raises(InvalidInput) as refusal:
        call()
    return list(refusal.value.problems)


def failed(fleet: Fleet, work: Any, server: AwsServer) -> str:
    """What a fleet says that could not be made: its sentence and its advice; nothing of it is left in AWS."""
    at.drive(fleet, work, Plan(), "FAILED")
    assert at.counts(server) == at.EMPTY
    advice = [step_advice(step) for step in fleet.steps.all()]
    assert any(advice), "a person is told what to do"
    return f"{fleet.message} {' '.join(advice)} {' '.join(str(c['text']) for c in fleet.conditions)}"


def still_works(cluster: Cluster, server: AwsServer, work: Any, operator: Any) -> None:
    """The cluster goes on: another fleet is launched and goes."""
    other = at.make(operator, cluster, name="other", nodes=1)
    at.drive(other, work, Plan(), "READY")
    other.refresh_from_db()
    fleet_delete(actor=actor_of(operator), fleet=other, expected_version=other.version)
    at.drive(other, work, Plan(), "DELETED")
    assert at.counts(server) == at.EMPTY


def test_bad_input_unknown_type(cluster: Cluster, operator: Any) -> None:
    (problem,) = problems(lambda: at.make(operator, cluster, instance_type="p9.huge"))
    assert (problem.pointer, "p9.huge" in problem.detail) == ("/instance_type", True)


def test_bad_input_wrong_zone(cluster: Cluster, server: AwsServer, work: Any, operator: Any) -> None:
    """p6-b300 is sold in no zone of this region: the checks before the launch say so, and name the zone."""
    fleet = at.make(operator, cluster, instance_type="p6-b300.48xlarge", nodes=1)
    said = failed(fleet, work, server)
    assert "p6-b300.48xlarge" in said
    assert "use2-az1" in said
    assert "Mend what is marked" in said
    still_works(cluster, server, work, operator)


def test_bad_input_reservation_in_another_zone(cluster: Cluster, server: AwsServer, work: Any, operator: Any) -> None:
    row = at.odcr(server, cluster, P5, 4)
    fleet = at.make(operator, cluster, source="odcr-targeted", reservation=row, subnet_id=SECOND_SUBNET_ID)
    said = failed(fleet, work, server)
    assert "use2-az1" in said
    assert "use2-az2" in said


def test_bad_input_capacity_that_is_no_multiple(cluster: Cluster, operator: Any) -> None:
    asked = {"kind": "fsx-lustre", "name": "scratch", "subnet_id": SUBNET_ID, "throughput_mb_s_tib": 250}
    asked |= {"security_group_ids": [SECURITY_GROUP_ID], "capacity_gib": 3600, "has_efa": False}
    account = cluster.account
    (problem,) = problems(lambda: file_system_create(actor=actor_of(operator), account=account, **asked))
    assert problem.pointer == "/capacity_gib"
    assert "2400 or 4800" in problem.detail, "what would fit is said"


@pytest.mark.parametrize("repository", ["s3://bucket/data/deeper/", "s3://bucket/", "s3://bucket/data/"])
def test_bad_input_overlapping_prefixes(cluster: Cluster, operator: Any, repository: str) -> None:
    fs = FileSystem.objects.create(account=cluster.account, name="a", phase="AVAILABLE", provider_id="fs-0123456789abc")
    actor = actor_of(operator)
    association_create(actor=actor, file_system=fs, path="/data", repository="s3://bucket/data/")
    (problem,) = problems(lambda: association_create(actor=actor, file_system=fs, path="/more", repository=repository))
    assert problem.pointer == "/repository"
    assert "s3://bucket/data/" in problem.detail, "the one it overlaps with is named"


def test_bad_input_block_of_another_account(cluster: Cluster, server: AwsServer, work: Any, operator: Any) -> None:
    row = at.block(server, cluster, P5, 4)
    theirs = CloudAccount.objects.create(name="theirs", region=server.options.region, phase="CONNECTED")
    Reservation.objects.filter(pk=row.pk).update(account=theirs)
    row.refresh_from_db()
    (problem,) = problems(lambda: at.make(operator, cluster, source="capacity-block", reservation=row))
    assert problem.pointer == "/reservation"
    assert f"{row} is in another account than sandbox" in problem.detail
    # One that is written down as ours and that AWS does not know here is found out before the launch.
    assert cluster.account is not None
    unknown = {"account": cluster.account, "provider_id": "cr-0feedc0de0feedc0d"}
    Reservation.objects.filter(pk=row.pk).update(**unknown)
    row.refresh_from_db()
    fleet = at.make(operator, cluster, source="capacity-block", reservation=row)
    said = failed(fleet, work, server)
    assert "cr-0feedc0de0feedc0d" in said
    assert "account that owns it" in said
    still_works(cluster, server, work, operator)


def test_bad_input_expired_reservation(cluster: Cluster, server: AwsServer, work: Any, operator: Any) -> None:
    row = at.block(server, cluster, P5, 4)
    before = at.make(operator, cluster, source="capacity-block", reservation=row)
    Reservation.objects.filter(pk=row.pk).update(phase="EXPIRED", observed_state="expired")
    row.refresh_from_db()
    (problem,) = problems(lambda: at.make(operator, cluster, name="late", source="capacity-block", reservation=row))
    assert problem.pointer == "/reservation"
    at.drive(before, work, Plan(), "FAILED")
    assert [c["kind"] for c in before.conditions] == ["ReservationEnded"]
    still_works(cluster, server, work, operator)


@pytest.mark.parametrize(
    "operation", ["DescribeSubnets", "CreatePlacementGroup", "CreateLaunchTemplate", "RunInstances"]
)
def test_bad_input_role_without_permission(
    cluster: Cluster, server: AwsServer, work: Any, operator: Any, operation: str
) -> None:
    server.world.fault_add("access-denied", service="aws", operation=operation)
    fleet = at.make(operator, cluster)
    at.drive(fleet, work, Plan(), "FAILED")
    said = f"{fleet.message} {' '.join(step_advice(s) for s in fleet.steps.all())}"
    assert "may not" in said or "not authorized" in said
    assert operation in said or "launch" in said
    server.world.faults.clear()
    fleet_delete(actor=actor_of(operator), fleet=fleet, expected_version=Fleet.objects.get(pk=fleet.pk).version)
    at.drive(fleet, work, Plan(), "DELETED")
    still_works(cluster, server, work, operator)
