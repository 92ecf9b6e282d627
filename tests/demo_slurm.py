"""Rows of people and teams in Slurm: a cluster whose jobs run as whoever submits them."""

from __future__ import annotations

from datetime import timedelta

from apps.clusters.models import Cluster
from apps.clusters.slurm_models import SlurmAccount, SlurmUser
from apps.core import clock
from apps.jobs.models import Job
from apps.jobs.outside_observations import outsider_charge, outsiders_adopt
from apps.jobs.outside_selectors import owned_strangers
from apps.jobs.queue_models import QueueEntry
from tests.demo_rows import DemoRows


def demo_slurm(rows: DemoRows) -> None:
    """Users with and without a person, accounts with and without being a default, on the cluster ada."""
    cluster = rows.clusters["ada"]
    Cluster.objects.filter(pk=cluster.pk).update(jwt_key_ref="file:slurm-ada-key")
    cluster.refresh_from_db()
    people = [u for u in (rows.users.get("owner"), rows.users.get("member")) if u is not None]
    for number, user in enumerate(people):
        SlurmUser.objects.create(
            cluster=cluster,
            user=user,
            user_name=user.username,
            uid_number=2001 + number,
            gid_number=2001 + number,
            gids=[3000],
        )
    SlurmUser.objects.create(cluster=cluster, user_name="svc-eval", team=rows.teams["vision"])
    SlurmAccount.objects.create(cluster=cluster, account="nlp", team=rows.teams["nlp"], is_default=True)
    SlurmAccount.objects.create(cluster=cluster, account="nlp-eval", team=rows.teams["nlp"])
    SlurmAccount.objects.create(cluster=cluster, account="vision", team=rows.teams["vision"], is_default=True)
    _outside(cluster)


def _outside(cluster: Cluster) -> None:
    """One job from ssh that runs, one that waits, and one that nobody owns."""
    now = clock.now()
    told = {"cluster": cluster, "partition": "train", "node_count": 1, "gpus": 8, "time_limit_min": 720}
    began = {"state": "RUNNING", "submitted_at": now - timedelta(hours=5), "started_at": now - timedelta(hours=4)}
    QueueEntry.objects.create(
        scheduler_id="90431",
        name="tokenize-web",
        user_name="member",
        account="nlp",
        nodes=["p5-main-6"],
        **told,
        **began,
    )
    QueueEntry.objects.create(
        scheduler_id="90437",
        name="probe-layers",
        user_name="member",
        account="nlp",
        state="PENDING",
        reason="AssocGrpGRESMinutes",
        submitted_at=now - timedelta(minutes=40),
        **told,
    )
    QueueEntry.objects.create(
        scheduler_id="90440", name="bench", user_name="guest7", account="staff", nodes=["p5-main-7"], **told, **began
    )
    outsiders_adopt(cluster, owned_strangers(cluster, 10))
    outsider_charge(QueueEntry.objects.select_related("attempt__job__team").get(scheduler_id="90431"), now)
    assert Job.objects.filter(origin="outside").count() == 2
