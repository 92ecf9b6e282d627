"""Rows of shared storage for the demo: in use, nearly full, growing, failed, and what is tied to S3."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

from tests.demo_rows import _Seed

TIB = 2**40


def demo_storage(seed: _Seed) -> None:
    """Add them to the demo site."""
    from apps.audit.services import event
    from apps.clusters.models import Mount
    from apps.connections.models import CloudAccount
    from apps.core import clock
    from apps.storage.models import Export, FileSystem, RepositoryAssociation

    now = clock.now()
    account = CloudAccount.objects.get(name="research")

    def make(name: str, phase: str, age_h: float, **columns: Any) -> Any:
        columns = {
            "kind": "fsx-lustre",
            "subnet_id": "subnet-0a1b2c3d",
            "security_group_ids": ["sg-0a1b2c3d"],
            "throughput_mb_s_tib": 250,
            "has_efa": True,
            "price_source": "AWS public price list, us-east-1, 2026-11",
            **columns,
        }
        since = now - timedelta(hours=age_h)
        fs = FileSystem.objects.create(
            account=account,
            name=name,
            phase=phase,
            phase_since=since,
            observed_at=now,
            created_at=since,
            **columns,
        )
        event("file_system", fs.uid, "FileSystemRequested", f"{name} asked for")
        return fs

    train = make(
        "train-scratch",
        "AVAILABLE",
        31 * 24,
        provider_id="fs-0a1b2c3d4e5f60718",
        dns_name="fs-0a1b2c3d4e5f60718.fsx.us-east-2.amazonaws.com",
        mount_name="x7kq2bmv",
        capacity_gib=38_400,
        observed_capacity_gib=38_400,
        usd_per_month=Decimal("8064.00"),
        export_queue_age_s=74,
        free_bytes=14 * TIB,
        fullest_free_bytes=int(0.31 * TIB),
        targets=32,
        metrics_read_at=now - timedelta(seconds=40),
    )
    event("file_system", train.uid, "FileSystemAvailable", "train-scratch")
    for path, exports in (("/ckpt", ["NEW", "CHANGED"]), ("/datasets", [])):
        tie = RepositoryAssociation.objects.create(
            file_system=train,
            path=path,
            repository=f"s3://research-data{path}/",
            imports=["NEW", "CHANGED"],
            exports=exports,
            phase="AVAILABLE",
            provider_id="dra-0a1b2c3d4e5f60718",
        )
        data = {"path": tie.path, "repository": tie.repository}
        event("file_system", train.uid, "AssociationAvailable", str(tie), data=data)
    Export.objects.create(
        file_system=train,
        paths=["ckpt/sft-instruct-v3"],
        asked_by="operator",
        phase="SUCCEEDED",
        created_at=now - timedelta(hours=5),
        ended_at=now - timedelta(hours=4, minutes=48),
    )
    make(
        "eval-scratch",
        "AVAILABLE",
        9 * 24,
        provider_id="fs-0b1b2c3d4e5f60718",
        dns_name="fs-0b1b2c3d4e5f60718.fsx.us-east-2.amazonaws.com",
        mount_name="b2k9aaqz",
        capacity_gib=19_200,
        observed_capacity_gib=19_200,
        usd_per_month=Decimal("4032.00"),
        export_queue_age_s=0,
        free_bytes=3 * TIB,
        fullest_free_bytes=int(0.04 * TIB),
        targets=16,
        metrics_read_at=now - timedelta(seconds=20),
    )
    make(
        "vision-data",
        "UPDATING",
        0.4,
        provider_id="fs-0c1b2c3d4e5f60718",
        dns_name="fs-0c1b2c3d4e5f60718.fsx.us-east-2.amazonaws.com",
        mount_name="c8aq1zzk",
        capacity_gib=38_400,
        observed_capacity_gib=19_200,
        update_percent=42,
        usd_per_month=Decimal("8064.00"),
    )
    home = make(
        "home",
        "AVAILABLE",
        120 * 24,
        kind="efs",
        has_efa=False,
        throughput_mb_s_tib=0,
        provider_id="fs-0d1b2c3d4e5f60718",
        dns_name="fs-0d1b2c3d4e5f60718.efs.us-east-2.amazonaws.com",
        mount_name="/",
        is_adopted=True,
    )
    cluster = seed.rows.clusters["ada"]
    for path, kind, purpose, fs, source in (
        ("/fsx", "fsx-lustre", "checkpoints", train, ""),
        ("/home", "efs", "home", home, ""),
        ("/data/web", "s3", "datasets", None, "s3://research-data/web/"),
        ("/scratch", "nvme", "scratch", None, ""),
    ):
        Mount.objects.create(cluster=cluster, path=path, kind=kind, purpose=purpose, file_system=fs, source=source)
    make(
        "first-try",
        "FAILED",
        2,
        capacity_gib=19_200,
        usd_per_month=Decimal("4032.00"),
        message="aws InvalidNetworkSettings: CreateFileSystem: Insufficient security group permissions:"
        " sg-0a1b2c3d does not allow all outbound traffic with itself",
    )
