"""The official client on one API server: trust, identity and time limits from plain values."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path

from kubernetes import client

from worker.providers.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    """How to reach one API server: its address, whom to trust and who we are.

    ``ca`` is the PEM of the authority that signed the server's certificate, "" for the machine's own list. ``token`` is
    a bearer token; a certificate with its key (both PEM) stands in its place where a kubeconfig has one.
    """

    endpoint_url: str
    ca: str = ""
    token: str = field(default="", repr=False)
    certificate: str = ""
    key: str = field(default="", repr=False)
    timeout_s: float = 20.0


def connection(access: KubernetesAccess, folder: Path) -> client.ApiClient:
    """A client with its own pool of connections; nothing is asked yet and nothing is ever retried by itself.

    The official client takes certificates as files: they lie in ``folder``, a private one of the caller's.
    Raises InvalidRequest for an address that is none.
    """
    if not access.endpoint_url.startswith(("https://", "http://")):
        raise InvalidRequest(f"{access.endpoint_url!r} is no address of an API server", source="kubernetes")
    made = client.Configuration()
    made.host = access.endpoint_url.rstrip("/")
    made.retries = False
    # A proxy from the environment would be shown the token; the other end may be gone without a word.
    made.proxy = None
    made.keep_alive = True
    # A watch a kind stays open, beside the calls of whoever works.
    made.connection_pool_maxsize = 32
    made.verify_ssl = True
    for name, text in (("ssl_ca_cert", access.ca), ("cert_file", access.certificate), ("key_file", access.key)):
        if text:
            setattr(made, name, _file(folder / name, text))
    if access.token:
        made.api_key = {"authorization": access.token}
        made.api_key_prefix = {"authorization": "Bearer"}
    return client.ApiClient(made)


def _file(path: Path, pem: str) -> str:
    path.touch(mode=0o600)
    path.write_text(pem)
    return str(path)


def decoded(data: str, what: str) -> str:
    """The PEM behind base64, as kubeconfigs and EKS give it. Raises InvalidRequest naming ``what``."""
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError as error:
        raise InvalidRequest(f"{what} is not base64 of text: {error}", source="kubernetes") from None
