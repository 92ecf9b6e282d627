"""The page of who is who in a cluster's Slurm: its forms, and what it says of a cluster with one user for all."""

from __future__ import annotations

from typing import Any

from apps.clusters.slurm_models import SlurmUser


def test_it_says_as_whom_jobs_run(sign_in: Any, more: Any) -> None:
    client = sign_in("operator")
    assert "as whoever submits them" in client.get(f"/clusters/{more.clusters['ada'].uid}/slurm").content.decode()
    text = client.get(f"/clusters/{more.clusters['hopper'].uid}/slurm").content.decode()
    assert "run as portal" in text


def test_the_page_takes_its_forms(sign_in: Any, more: Any) -> None:
    client = sign_in("operator")
    cluster = more.clusters["ada"]
    SlurmUser.objects.all().delete()
    owner = more.users["owner"]
    address = f"/clusters/{cluster.uid}/slurm"
    assert client.post(address, {"what": "user", "user_name": "a b"}).status_code == 422
    body = {"what": "user", "user_name": "u1", "person": f"user:{owner.pk}", "user_team": "nlp", "gids": "7 8"}
    assert client.post(address, body).status_code == 302
    assert SlurmUser.objects.get().gids == [7, 8]
    assert client.post(address, {"what": "account", "account": "nlp", "team": "nlp"}).status_code == 302
    checked = client.post(address, {"what": "import", "text": "user_name\nu5\n", "dry_run": "yes"})
    assert checked.status_code == 200
    assert b"u5" in checked.content
    assert not SlurmUser.objects.filter(user_name="u5").exists()
    assert client.post(address, {"what": "import", "text": "user_name\nu5\n", "dry_run": "no"}).status_code == 302
    assert SlurmUser.objects.filter(user_name="u5").exists()
    row = SlurmUser.objects.get(user_name="u5")
    assert client.post(f"/slurm-users/{row.uid}/remove").status_code == 302


def test_the_admin_console_checks_rows_alike(sign_in: Any, more: Any) -> None:
    client = sign_in("admin")
    cluster = more.clusters["hopper"]
    body = {"cluster": cluster.pk, "user_name": "root", "gids": "[]", "uid_number": 5}
    refused = client.post("/admin/clusters/slurmuser/add/", body).content.decode()
    assert "nobody acts as root" in refused
    assert "uid and gid go together" in refused
    good = {"cluster": cluster.pk, "user_name": "u9", "gids": ""}
    assert client.post("/admin/clusters/slurmuser/add/", good).status_code == 302
    assert SlurmUser.objects.get(cluster=cluster, user_name="u9").gids == []
    account = {"cluster": cluster.pk, "account": "root", "team": more.teams["nlp"].pk}
    assert "nobody" in client.post("/admin/clusters/slurmaccount/add/", account).content.decode()
