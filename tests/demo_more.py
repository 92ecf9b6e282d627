"""More rows on top of ``demo_rows``: what the pages of capacity, health, money and admin show besides the usual.

A fleet whose preflight failed, one that is being deleted, an account that is paused and one that
fails, orphans the sweep removed, a GPU off the bus, an exporter with missing inputs, resolved
findings, a month of charges, limits that someone changed.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

from apps.core.said import said
from tests.demo_capacity import demo_capacity
from tests.demo_clusters import demo_clusters
from tests.demo_fleets import demo_fleets
from tests.demo_jobs import demo_jobs
from tests.demo_kube_teams import demo_kube_teams
from tests.demo_rows import DemoRows, _Seed
from tests.demo_slurm import demo_slurm
from tests.demo_starts import demo_starts
from tests.demo_storage import demo_storage
from tests.demo_templates import demo_templates

CHECKS = (
    ("subnet", True, said("%(subnet)s is in zone %(zone)s.", subnet="subnet-0a1b2c3d", zone="use1-az4")),
    ("instance-type-offered", True, said("%(type)s is offered in %(zone)s.", type="p5en.48xlarge", zone="use1-az4")),
    (
        "interfaces",
        True,
        said("%(n)s interfaces a node, %(efas)s of them EFA, fit %(type)s.", n=17, efas=16, type="p5en.48xlarge"),
    ),
    (
        "subnet-addresses",
        True,
        said(
            "%(sentence)s.",
            sentence=said(
                "%(subnet)s has %(free)s free addresses, %(nodes)s nodes × %(each)s need %(needed)s",
                subnet="subnet-0a1b2c3d",
                free="231",
                nodes=8,
                each=1,
                needed="8",
            ),
        ),
    ),
    ("security-groups", True, said("%(groups)s allow all traffic to and from themselves.", groups="sg-0a1b2c3d")),
    (
        "vcpu-quota",
        False,
        said(
            "%(sentence)s; ask AWS for at least %(vcpus)s (quota code %(code)s) or plan fewer nodes.",
            sentence=said(
                "“%(name)s” is %(limit)s vCPUs, %(used)s in use, %(nodes)s nodes need %(needed)s",
                name="Running On-Demand P instances",
                limit="768",
                used="384",
                nodes=8,
                needed="1,536",
            ),
            vcpus="1,920",
            code="L-417A185B",
        ),
    ),
    ("permission-to-launch", True, said("AWS would accept the launch (dry run).")),
)


def demo_more(rows: DemoRows) -> DemoRows:
    """Add them and return the same rows."""
    seed = _Seed()
    seed.rows = rows
    _failed_fleet(seed)
    _accounts(seed)
    _health(seed)
    _month(seed)
    _limits(seed)
    demo_storage(seed)
    demo_jobs(rows)
    demo_templates(rows)
    demo_slurm(rows)
    demo_starts(rows)
    demo_capacity(seed)
    demo_fleets(seed)
    demo_clusters(seed)
    demo_kube_teams(seed)
    _orphans()
    from apps.audit.services import seal

    seal(100_000)
    _checks()
    return rows


def _orphans() -> None:
    """A machine of a deleted fleet, one of a portal that is no more, and a template someone keeps."""
    from apps.capacity.orphan_models import Orphan
    from apps.connections.models import CloudAccount
    from apps.core import clock

    account = CloudAccount.objects.get(name="research")
    for kind, provider_id, phase, columns in (
        (
            "instance",
            "i-0f0e0d0c0b0a09080",
            "FOUND",
            {"instance_type": "p5.48xlarge", "usd_per_hour": Decimal("55.04"), "has_row": True, "state": "running"},
        ),
        (
            "instance",
            "i-0a1a2a3a4a5a6a7a8",
            "FOUND",
            {"instance_type": "g6.48xlarge", "usd_per_hour": Decimal("13.3504"), "state": "running"},
        ),
        ("launch-template", "lt-0a1a2a3a4a5a6a7a8", "KEPT", {"kept_by": "operator", "kept_reason": "for the audit"}),
    ):
        Orphan.objects.create(
            account=account,
            kind=kind,
            provider_id=provider_id,
            phase=phase,
            tagged_uid="flt_01j9zk3v5q8w2x4y6z7a8b9c0d",
            first_seen_at=clock.now() - timedelta(minutes=12),
            **columns,
        )


def _failed_fleet(seed: _Seed) -> None:
    from apps.clusters import observations
    from apps.clusters.fleet_services import fleet_create, fleet_delete

    operator = seed.actor("operator")

    def launch(name: str, kind: str, nodes: int) -> Any:
        return fleet_create(
            actor=operator,
            cluster=seed.rows.clusters["ada"],
            name=name,
            instance_type=kind,
            nodes=nodes,
            subnet_id="subnet-0a1b2c3d",
            security_group_ids=["sg-0a1b2c3d"],
            image_id="ami-0a1b2c3d",
            team=seed.rows.teams["nlp"],
        )

    with seed.ago(41):
        failed = launch("p5en-eval", "p5en.48xlarge", 8)
        observations.fleet_move(failed, "PREFLIGHT", said("checking before anything is created"))
        checks = [{"name": n, "passed": p, "detail": d} for n, p, d in CHECKS]
        observations.fleet_say(failed, said("%(n)s of %(all)s checks passed", n=6, all=7), checks=checks)
    with seed.ago(40.8):
        observations.fleet_move(
            failed, "FAILED", said("%(check)s: %(detail)s", check="vcpu-quota", detail=CHECKS[5][2])
        )
    with seed.ago(60 * 5):
        leaving = launch("g6-old", "g6.48xlarge", 2)
        for phase in ("PREFLIGHT", "PLACEMENT_GROUP", "LAUNCH_TEMPLATE", "LAUNCHING", "BOOTING", "JOINING", "READY"):
            observations.fleet_move(leaving, phase)
    with seed.ago(2):
        fleet_delete(actor=operator, fleet=leaving, expected_version=leaving.version)
        observations.fleet_move(leaving, "DELETING", said("terminating %(n)s machines", n=2), observed_nodes=2)
    seed.rows.fleets |= {"p5en-eval": failed, "g6-old": leaving}


def _accounts(seed: _Seed) -> None:
    from apps.audit.services import event
    from apps.connections.models import CloudAccount
    from apps.connections.services import account_connect, account_observe, account_pause

    operator = seed.actor("operator")
    with seed.ago(60 * 26):
        paused = account_connect(actor=operator, name="staging", region="us-west-2", credentials_ref="env:AWS_STAGING")
        account_observe(paused, account_id="210987654321", arn="arn:aws:iam::210987654321:user/portal")
        account_pause(actor=operator, account=paused, is_paused=True, expected_version=paused.version)
    with seed.ago(17):
        broken = account_connect(actor=operator, name="old-lab", region="eu-west-1", credentials_ref="file:old-lab")
        account_observe(broken, error="GetCallerIdentity: InvalidClientTokenId: the security token is invalid")
    research = CloudAccount.objects.get(name="research")
    with seed.ago(60 * 28):
        arn = research.observed_arn
        event("account", research.uid, "AccountConnected", f"connected as {arn} in account 123456789012")
    with seed.ago(60 * 7):
        event(
            "account",
            research.uid,
            "OrphanRemoved",
            "network-interface eni-0f00ba4 of flt_gone had no owner",
            data={"kind": "network-interface", "provider_id": "eni-0f00ba4", "uid": "flt_gone"},
        )


def _health(seed: _Seed) -> None:
    from apps.clusters.models import Cluster, Node
    from apps.clusters.states import ClusterPhase
    from apps.health.models import Finding, Gpu
    from apps.health.rules import Fault
    from apps.health.services import faults_report, finding_acknowledge, finding_resolve

    dead = seed.rows.nodes["p5-main-8"]
    Gpu.objects.filter(node=dead, index=3).update(
        is_on_bus=False, xid_last=79, temperature_c=None, power_w=None, sm_active=None, tensor_active=None
    )
    Gpu.objects.filter(node=seed.rows.nodes["p5-main-6"], index=1).update(xid_last=63, row_remap_pending=1)
    Gpu.objects.exclude(xid_last__gt=0).update(xid_last=0, row_remap_failure=0, row_remap_pending=0, ecc_dbe_volatile=0)
    Node.objects.filter(name="p5-main-7").update(
        exporter_missing=["DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_ROW_REMAP_FAILURE"],
        exporter_read_at=seed.now - timedelta(minutes=4),
        exporter_error="HTTP 503 from http://p5-main-7:9400/metrics",
    )

    def fault(node: Any, source: str, code: str, slot: int | None, text: str, **evidence: Any) -> Any:
        uuid = f"GPU-{node.pk:04d}-{slot}" if slot is not None else ""
        (found,) = faults_report(node, [Fault(source, code, slot, uuid, text, evidence)])
        return found

    with seed.ago(60 * 20):
        old = fault(
            seed.rows.nodes["p5-main-2"],
            "xid",
            "31",
            5,
            said("XID %(code)s logged %(n)s× by GPU %(gpu)s", code=31, n=1, gpu=5),
            xid=31,
        )
        worn = fault(
            seed.rows.nodes["p5-main-5"], "dcgm", "RowRemapPending", 2, said("a row remap waits for a reset"), value=1
        )
    with seed.ago(60 * 19):
        finding_resolve(actor=seed.actor("operator"), finding=Finding.objects.select_related("node").get(pk=old.pk))
        finding_acknowledge(
            actor=seed.actor("operator"), finding=Finding.objects.select_related("node").get(pk=worn.pk)
        )
    with seed.ago(6):
        missing = fault(
            seed.rows.nodes["p4d-2"],
            "inventory",
            "GpuMissing",
            None,
            said("%(n)s of %(all)s GPUs visible", n=7, all=8),
            expected=8,
            visible=7,
            without_gauges=[6],
        )
    seed.rows.findings |= {"missing": missing, "resolved": old, "acknowledged": worn}
    Cluster.objects.create(
        name="new-lab",
        api_url="https://slurm.new-lab.example:6820",
        user_name="portal",
        token_ref="file:slurm-new-lab",
        working_root="/shared/jobs",
        phase=ClusterPhase.PENDING,
    )


def _month(seed: _Seed) -> None:
    """A month of charges of three teams, as finished jobs would have left them."""
    from apps.core import ids
    from apps.costs.services import charge, hold_money, release
    from apps.costs.states import Unit

    weights = {"nlp": 900, "vision": 420, "speech": 160}
    with seed.ago(60 * 24 * 31):
        pass
    for day in range(30, 1, -1):
        for slug, base in weights.items():
            if seed.random.random() < 0.25:
                continue
            team = seed.rows.teams[slug]
            usd = Decimal(round(base * (0.4 + seed.random.random()), 2)).quantize(Decimal("0.01"))
            job, attempt = ids.new_uid("job"), ids.new_uid("att")
            memo = f"{slug}-run-{31 - day:02d}, attempt 1"
            with seed.ago(60 * 24 * day):
                hold_money(team, usd * 2, usd / 5, subject=job, detail=attempt, memo=memo)
                charge(team, Unit.USD, usd, key=f"c:{attempt}", subject=job, detail=attempt, memo=memo)
                charge(team, Unit.GPU_HOURS, usd / 7, key=f"h:{attempt}", subject=job, detail=attempt, memo=memo)
                release(team, Unit.USD, key=f"r:{attempt}", subject=job, detail=attempt, memo=memo)
                release(team, Unit.GPU_HOURS, key=f"g:{attempt}", subject=job, detail=attempt, memo=memo)


def _limits(seed: _Seed) -> None:
    from apps.costs.models import Budget
    from apps.costs.services import budget_set
    from apps.quotas.models import Quota
    from apps.quotas.services import quota_set
    from apps.teams.models import Team

    admin = seed.actor("admin")
    team = seed.rows.teams["nlp"]
    with seed.ago(60 * 10):
        quota_set(actor=admin, team=team, gpus=144, expected_version=Quota.objects.get(team=team).version)
        budget_set(
            actor=admin,
            team=team,
            usd_per_month=Decimal(75_000),
            expected_version=Budget.objects.get(team=team).version,
        )
    Team.objects.create(slug="robotics", name="Robotics")


def _checks() -> None:
    from apps.audit.observations import chain_observe
    from apps.costs.observations import ledger_observe

    chain_observe()
    ledger_observe()
