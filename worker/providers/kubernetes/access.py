"""Ways to an API server: a kubeconfig's text, the pod that the worker runs in, and an EKS cluster with its token."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from worker.providers.errors import AccessDenied, InvalidRequest
from worker.providers.kubernetes.client import KubernetesAccess, decoded
from worker.providers.kubernetes.errors import SOURCE

#: Where Kubernetes puts a pod's own token and trust.
IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Users of a kubeconfig that only another program or a file of this machine could make out.
_REFUSED = {
    "exec": "it starts a program for its token, which the portal does not: connect EKS clusters by their account, or "
    "put a service account's token into the kubeconfig (kubectl create token)",
    "auth-provider": "auth-provider is gone from Kubernetes: put a service account's token into the kubeconfig",
    "username": "API servers take no passwords any more: put a service account's token into the kubeconfig",
    "client-certificate": "it names a file of another machine: kubectl config view --flatten --raw puts it inside",
    "client-key": "it names a file of another machine: kubectl config view --flatten --raw puts it inside",
    "as": "it acts as somebody else, which the portal does not",
}


def of_kubeconfig(text: str, context: str = "") -> KubernetesAccess:
    """The access that a kubeconfig's current context (or ``context``) stands for.

    Nothing but the text is read. Raises InvalidRequest saying what is missing and what to do.
    """
    try:
        told = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise _refused(f"is no YAML{where}") from None
    if not isinstance(told, dict) or not isinstance(told.get("clusters"), list):
        raise _refused("has no clusters: it is no kubeconfig")
    wanted = context or str(told.get("current-context") or "")
    if not wanted:
        raise _refused("has no current-context: name the context")
    chosen = _named(told, "contexts", wanted, "context")
    cluster = _named(told, "clusters", str(chosen.get("cluster") or ""), "cluster")
    user = _named(told, "users", str(chosen.get("user") or ""), "user")
    return _user(_cluster(cluster), user)


def in_cluster(folder: Path = IN_CLUSTER, environment: Mapping[str, str] | None = None) -> KubernetesAccess:
    """The cluster whose pod the worker is, the token read anew. Raises InvalidRequest outside of one."""
    found = os.environ if environment is None else environment
    host, port = found.get("KUBERNETES_SERVICE_HOST", ""), found.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise InvalidRequest("the worker does not run in a pod: KUBERNETES_SERVICE_HOST is not set", source=SOURCE)
    try:
        ca, token = (folder / "ca.crt").read_text(), (folder / "token").read_text().strip()
    except OSError as error:
        raise AccessDenied(f"the pod's service account cannot be read: {error}", source=SOURCE) from None
    address = f"[{host}]" if ":" in host else host
    return KubernetesAccess(endpoint_url=f"https://{address}:{port}", ca=ca, token=token)


def of_eks(endpoint_url: str, ca_data: str, token: str) -> KubernetesAccess:
    """An EKS cluster by its address and authority as DescribeCluster tells them; ``ca_data`` is base64 or ""."""
    if not endpoint_url:
        raise InvalidRequest("AWS has not told the address of the cluster's API server yet", source=SOURCE)
    ca = decoded(ca_data, "the cluster's certificate authority") if ca_data else ""
    return KubernetesAccess(endpoint_url=endpoint_url, ca=ca, token=token)


def _refused(what: str) -> InvalidRequest:
    return InvalidRequest(f"the kubeconfig {what}", source=SOURCE, code="kubeconfig")


def _named(told: Mapping[str, Any], part: str, name: str, key: str) -> dict[str, Any]:
    rows = told.get(part)
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("name") == name:
            found = row.get(key)
            return found if isinstance(found, dict) else {}
    raise _refused(f"has no {key} {name!r}")


def _cluster(told: Mapping[str, Any]) -> KubernetesAccess:
    if told.get("insecure-skip-tls-verify"):
        raise _refused("trusts any server (insecure-skip-tls-verify): put certificate-authority-data in its place")
    if told.get("certificate-authority") and not told.get("certificate-authority-data"):
        raise _refused(
            "names a file as certificate-authority: kubectl config view --flatten --raw puts it inside the text"
        )
    if told.get("proxy-url"):
        raise _refused("goes through a proxy (proxy-url), which the portal does not")
    server = urlsplit(str(told.get("server") or ""))
    if server.scheme != "https" and server.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise _refused(f"has the server {told.get('server') or '–'}: a token goes by https only")
    ca = str(told.get("certificate-authority-data") or "")
    return KubernetesAccess(
        endpoint_url=str(told.get("server") or ""), ca=decoded(ca, "certificate-authority-data") if ca else ""
    )


def _user(access: KubernetesAccess, told: Mapping[str, Any]) -> KubernetesAccess:
    own = {"client-certificate": "client-certificate-data", "client-key": "client-key-data"}
    for key, why in _REFUSED.items():
        if told.get(key) and not told.get(own.get(key, "")):
            raise _refused(f"has a user with {key}: {why}")
    if told.get("token"):
        return replace(access, token=str(told["token"]).strip())
    if told.get("tokenFile"):
        # A file of the worker's own would go to whatever address stands beside it.
        raise _refused("names a tokenFile: put the token into it, or choose the portal's own service account")
    certificate, key = str(told.get("client-certificate-data") or ""), str(told.get("client-key-data") or "")
    if not certificate or not key:
        raise _refused("has a user without token or client certificate")
    return replace(
        access, certificate=decoded(certificate, "client-certificate-data"), key=decoded(key, "client-key-data")
    )
