"""Kubeconfigs are read from their text alone, and EKS's tokens are what EKS takes."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from sandbox.kubernetes import eks_tokens as theirs
from worker.providers import values as v
from worker.providers.aws.eks_tokens import RENEW_S, EksTokens, eks_token
from worker.providers.errors import AccessDenied, InvalidRequest
from worker.providers.kubernetes import access


def _config(user: dict[str, object], **cluster: object) -> str:
    return yaml.safe_dump(
        {
            "current-context": "one",
            "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", **cluster}}],
            "users": [{"name": "u", "user": user}],
        }
    )


def test_a_token_and_the_authority_come_out() -> None:
    ca = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
    found = access.of_kubeconfig(_config({"token": "secret"}, **{"certificate-authority-data": ca}))
    assert (found.endpoint_url, found.token, found.ca) == (
        "https://api.example:6443",
        "secret",
        "-----BEGIN CERTIFICATE-----",
    )
    assert "secret" not in repr(found)


def test_a_client_certificate_comes_out() -> None:
    data = {key: base64.b64encode(key.encode()).decode() for key in ("client-certificate-data", "client-key-data")}
    found = access.of_kubeconfig(_config(dict(data)))
    assert (found.certificate, found.key) == ("client-certificate-data", "client-key-data")


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"exec": {"command": "aws"}}, "starts a program"),
        ({"client-certificate": "/etc/passwd", "client-key": "/etc/shadow"}, "names a file"),
        ({"tokenFile": "/etc/passwd"}, "tokenFile"),
        ({"username": "a", "password": "b"}, "no passwords"),
        ({}, "without token"),
        ({"token": "a", "as": "system:admin"}, "acts as somebody else"),
    ],
)
def test_users_that_need_more_than_the_text_are_refused(user: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        access.of_kubeconfig(_config(user))


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"certificate-authority": "/etc/ssl/ca.pem"}, "names a file"),
        ({"insecure-skip-tls-verify": True}, "trusts any server"),
        ({"proxy-url": "http://proxy"}, "proxy"),
        ({"certificate-authority-data": "%%%"}, "not base64"),
    ],
)
def test_clusters_that_need_more_are_refused(cluster: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        access.of_kubeconfig(_config({"token": "a"}, **cluster))


@pytest.mark.parametrize("text", ["", "a: [", "just words", "clusters: 3", "[1, 2]", "current-context: a"])
def test_what_is_no_kubeconfig_is_said(text: str) -> None:
    with pytest.raises(InvalidRequest, match="kubeconfig"):
        access.of_kubeconfig(text)


def test_a_context_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidRequest, match="'two'"):
        access.of_kubeconfig(_config({"token": "a"}), "two")


def test_a_pods_own_account_is_read_anew(tmp_path: Path) -> None:
    place = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(AccessDenied):
        access.in_cluster(tmp_path, place)
    (tmp_path / "ca.crt").write_text("ca")
    (tmp_path / "token").write_text("first\n")
    assert access.in_cluster(tmp_path, place).token == "first"
    (tmp_path / "token").write_text("second\n")
    assert access.in_cluster(tmp_path, place).token == "second"
    with pytest.raises(InvalidRequest):
        access.in_cluster(tmp_path, {})


KEYS = v.CloudAccess(region="us-east-2", credentials=v.Credentials("AKIATEST", "very-secret"))


def test_eks_takes_our_token_for_its_cluster_and_no_other() -> None:
    token = eks_token(KEYS, "training")
    assert theirs.access_key_of(token, "training", {"AKIATEST": "very-secret"}.get) == "AKIATEST"
    with pytest.raises(theirs.BadToken):
        theirs.access_key_of(token, "another", {"AKIATEST": "very-secret"}.get)


def test_tokens_of_two_clusters_do_not_mix() -> None:
    tokens = EksTokens()
    for name in ("one", "two", "one"):
        assert theirs.access_key_of(tokens.token(KEYS, name), name, {"AKIATEST": "very-secret"}.get) == "AKIATEST"


def test_a_token_is_kept_for_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    made: list[str] = []
    monkeypatch.setattr(
        "worker.providers.aws.eks_tokens.eks_token", lambda access, name: made.append(name) or f"token-{len(made)}"
    )
    tokens = EksTokens(lambda: now[0])
    assert tokens.token(KEYS, "one") == tokens.token(KEYS, "one") == "token-1"
    now[0] = RENEW_S + 1
    assert tokens.token(KEYS, "one") == "token-2"
