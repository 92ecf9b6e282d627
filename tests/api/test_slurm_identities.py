"""Who is who in a cluster's Slurm, by page and by API: rows, settings, CSV all or nothing, bad input at its place."""

from __future__ import annotations

from typing import Any

import pytest

from apps.clusters.models import Cluster
from apps.clusters.slurm_models import SlurmAccount, SlurmUser

CSV = "user_name,person,uid,gid,gids,team\nu1,owner,2001,2001,3000 3001,nlp\nu2,member,,,,\nsvc,,,,,nlp\n"


def test_a_user_is_put_and_corrected(as_user: Any, operator: Any, owner: Any, cluster: Any) -> None:
    client = as_user(operator)
    path = f"clusters/{cluster.uid}/slurm-users"
    body = {"user_name": "u1", "user": "owner", "uid_number": 2001, "gid_number": 2001, "gids": [3000]}
    assert client.send("POST", path, body).status_code == 201
    answer = client.send("POST", path, body | {"uid_number": 2002})
    assert answer.status_code == 201
    row = SlurmUser.objects.get()
    assert (row.user, row.uid_number, row.version) == (owner, 2002, 2)
    assert client.send("GET", path).json()["results"][0]["user"] == "owner"
    assert client.send("DELETE", f"slurm-users/{row.uid}").status_code == 204
    assert not SlurmUser.objects.exists()


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"user_name": "a b"}, "/user_name"),
        ({"user_name": "root"}, "/user_name"),
        ({"user_name": "-x"}, "/user_name"),
        ({"user_name": "../x"}, "/user_name"),
        ({"uid_number": 0, "gid_number": 0}, "/uid_number"),
        ({"uid_number": 5}, "/gid_number"),
        ({"user": "nobody-here"}, "/user"),
        ({"service_account": "nlp/none"}, "/service_account"),
        ({"team": "none"}, "/team"),
        ({"gids": [-1]}, "/gids"),
    ],
)
def test_bad_users_are_named_at_their_field(
    as_user: Any, operator: Any, cluster: Any, changes: dict[str, Any], pointer: str
) -> None:
    answer = as_user(operator).send("POST", f"clusters/{cluster.uid}/slurm-users", {"user_name": "u1"} | changes)
    assert answer.status_code == 422, answer.content
    assert pointer in [e["pointer"] for e in answer.json()["errors"]]
    assert not SlurmUser.objects.exists()


def test_one_person_is_one_user(as_user: Any, operator: Any, owner: Any, cluster: Any) -> None:
    client = as_user(operator)
    path = f"clusters/{cluster.uid}/slurm-users"
    assert client.send("POST", path, {"user_name": "u1", "user": "owner"}).status_code == 201
    answer = client.send("POST", path, {"user_name": "u2", "user": "owner"})
    assert answer.status_code == 422
    assert "u1" in answer.json()["errors"][0]["detail"]


def test_csv_is_checked_then_taken_whole(
    as_user: Any, operator: Any, owner: Any, member: Any, team: Any, cluster: Any
) -> None:
    client = as_user(operator)
    path = f"clusters/{cluster.uid}/slurm-users/import"
    told = client.send("POST", path, {"text": CSV}).json()
    assert [line["verdict"] for line in told["lines"]] == ["new", "new", "new"]
    assert not told["written"]
    assert not SlurmUser.objects.exists()
    assert client.send("POST", path, {"text": "\ufeff" + CSV.replace("\n", "\r\n"), "dry_run": False}).json()["written"]
    assert SlurmUser.objects.get(user_name="u1").gids == [3000, 3001]
    assert SlurmUser.objects.get(user_name="svc").team == team
    again = client.send("POST", path, {"text": CSV.replace("2001,2001", "2001,2009"), "dry_run": False}).json()
    assert [line["verdict"] for line in again["lines"]] == ["changed", "same", "same"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("u9,ghost,,,,", "ghost"),
        ("u9,,x,1,,", "uid must be a number"),
        ("u9,,1,,,", "go together"),
        ("u9,,,,a b,", "gids must be a number"),
        ("u9,,,,,ghosts", "ghosts"),
        ("u1,,,,,", "row 2"),
        ("u9,owner,,,,", "row 2"),
    ],
)
def test_one_bad_row_writes_none(
    as_user: Any, operator: Any, owner: Any, member: Any, team: Any, cluster: Any, row: str, words: str
) -> None:
    path = f"clusters/{cluster.uid}/slurm-users/import"
    told = as_user(operator).send("POST", path, {"text": CSV + row + "\n", "dry_run": False}).json()
    assert told["refused"] == 1
    assert words in told["lines"][-1]["problem"]
    assert not SlurmUser.objects.exists()


def test_a_csv_without_columns_is_refused(as_user: Any, operator: Any, cluster: Any) -> None:
    path = f"clusters/{cluster.uid}/slurm-users/import"
    assert as_user(operator).send("POST", path, {"text": "a,b\n1,2\n"}).status_code == 422


def test_a_team_has_one_default_account(as_user: Any, operator: Any, team: Any, cluster: Any) -> None:
    client = as_user(operator)
    path = f"clusters/{cluster.uid}/slurm-accounts"
    for name in ("a1", "a2"):
        assert client.send("POST", path, {"account": name, "team": "nlp", "is_default": True}).status_code == 201
    assert [(a.account, a.is_default) for a in SlurmAccount.objects.all()] == [("a1", False), ("a2", True)]
    assert client.send("POST", path, {"account": "root", "team": "nlp"}).status_code == 422


def test_settings_need_the_version_they_were_read_with(as_user: Any, operator: Any, cluster: Any) -> None:
    client = as_user(operator)
    path = f"clusters/{cluster.uid}/slurm"
    tag = client.send("GET", path)["ETag"]
    answer = client.send("PATCH", path, {"same_names": True, "token_lifetime_s": 300}, If_Match=tag)
    assert answer.status_code == 200, answer.content
    assert Cluster.objects.get(pk=cluster.pk).same_names
    assert client.send("PATCH", path, {"same_names": False}, If_Match=tag).status_code == 412
    fresh = client.send("GET", path)["ETag"]
    assert client.send("PATCH", path, {"token_lifetime_s": 5}, If_Match=fresh).status_code == 422
