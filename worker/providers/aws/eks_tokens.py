"""Tokens of EKS: a presigned question to STS who we are, bound to one cluster by a header that it signs."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import reading_client
from worker.providers.values import CloudAccess

PREFIX: Final = "k8s-aws-v1."
HEADER: Final = "x-k8s-aws-id"
#: EKS takes a token for 15 minutes; a new one is made in good time.
RENEW_S: Final = 600.0
#: What the URL itself says; EKS goes by the date alone.
EXPIRES_S: Final = 60


def eks_token(access: CloudAccess, cluster_name: str) -> str:
    """A bearer token for one cluster, made without a call. Raises AccessDenied without credentials."""
    client = reading_client(access, "sts")
    with aws_call("GetCallerIdentity"):
        url = _presigned(client, cluster_name)
    return PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


_signing = threading.Lock()


def _presigned(client: Any, cluster_name: str) -> str:
    """The URL with the cluster's name among the signed headers, which GetCallerIdentity's model does not know."""

    def add(request: Any, **_: Any) -> None:
        request.headers[HEADER] = cluster_name

    event = "before-sign.sts.GetCallerIdentity"
    # The client is shared: a handler of another cluster's must not be there at the same time.
    with _signing:
        client.meta.events.register(event, add)
        try:
            return str(
                client.generate_presigned_url("get_caller_identity", Params={}, ExpiresIn=EXPIRES_S, HttpMethod="GET")
            )
        finally:
            client.meta.events.unregister(event, add)


class EksTokens:
    """Tokens by account and cluster, each kept for ten minutes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[tuple[CloudAccess, str], tuple[float, str]] = {}

    def token(self, access: CloudAccess, cluster_name: str) -> str:
        """The token to use now."""
        now = self._clock()
        kept = self._kept.get((access, cluster_name))
        if kept is None or now - kept[0] >= RENEW_S:
            kept = self._kept[access, cluster_name] = (now, eks_token(access, cluster_name))
            for key in [key for key, (at, _token) in self._kept.items() if now - at > 2 * RENEW_S]:
                del self._kept[key]
        return kept[1]
