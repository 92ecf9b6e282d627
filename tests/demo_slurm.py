"""Rows of people and teams in Slurm: a cluster whose jobs run as whoever submits them."""

from __future__ import annotations

from apps.clusters.models import Cluster
from apps.clusters.slurm_models import SlurmAccount, SlurmUser
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
