"""Builds boto3 clients, one configuration a risk class, each call bounded in time."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import boto3
import botocore.loaders
import botocore.session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import NoCredentialsError
from botocore.httpsession import URLLib3Session

from worker.providers.aws.errors import CallBudgetSpent
from worker.providers.values import CloudAccess

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_service_quotas import ServiceQuotasClient
    from mypy_boto3_sts import STSClient

#: No single call lasts longer than this, whatever AWS or the network does.
CALL_LIMIT_S: Final = 20.0
CONNECT_TIMEOUT_S: Final = 3
#: Short enough that a read whose connection hangs is made once more within the limit.
READ_TIMEOUT_S: Final = 6
READ_ATTEMPTS: Final = 3

#: A further attempt may take a connect and a read time-out, so none starts later than this after the first.
_LATEST_START_S: Final = CALL_LIMIT_S - CONNECT_TIMEOUT_S - READ_TIMEOUT_S

_budget = threading.local()


@dataclass(frozen=True)
class Clients:
    """The clients that ``Ec2Compute`` uses. ``launch`` sends everything that creates; it makes exactly one attempt."""

    ec2: EC2Client
    launch: EC2Client
    sts: STSClient
    quotas: ServiceQuotasClient


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _config(access: CloudAccess, *, attempts: int, read_timeout_s: float) -> Config:
    return Config(
        region_name=access.region,
        retries={"total_max_attempts": attempts, "mode": "adaptive" if attempts > 1 else "standard"},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=read_timeout_s,
        # A proxy from the environment must not stand between us and a local endpoint.
        proxies={} if access.endpoint_url and _is_loopback(access.endpoint_url) else None,
        max_pool_connections=20,
        user_agent_extra="quarterdeck",
    )


def launch_config(access: CloudAccess) -> Config:
    """For calls that create or spend: AWS answers a lack of capacity with HTTP 500, which botocore would repeat."""
    return _config(access, attempts=1, read_timeout_s=CALL_LIMIT_S - CONNECT_TIMEOUT_S)


def reader_config(access: CloudAccess) -> Config:
    """For reads and for deletions that may be repeated: adaptive back-off within the time one call may take."""
    return _config(access, attempts=READ_ATTEMPTS, read_timeout_s=READ_TIMEOUT_S)


@contextmanager
def call_budget() -> Iterator[None]:
    """Start the clock of one call in this thread; attempts that would overrun raise ``CallBudgetSpent``."""
    _budget.started_at = time.monotonic()
    try:
        yield
    finally:
        _budget.started_at = None


def _refuse_late_attempt(**_: Any) -> None:
    started_at = getattr(_budget, "started_at", None)
    if started_at is not None and time.monotonic() - started_at > _LATEST_START_S:
        raise CallBudgetSpent(f"{CALL_LIMIT_S:.0f} s")


#: AWS's descriptions of its services are read once a process, not once an account: EC2's alone takes half a second.
_models: Final = botocore.loaders.create_loader()


def _new_session() -> botocore.session.Session:
    session = botocore.session.get_session()
    session.register_component("data_loader", _models)
    return session


def _session(access: CloudAccess) -> boto3.Session:
    keys = access.credentials
    source = _new_session()
    if keys.access_key_id:
        source.set_credentials(keys.access_key_id, keys.secret_access_key, keys.session_token or None)
    if access.role_arn:
        if source.get_credentials() is None:
            raise NoCredentialsError
        fetcher = AssumeRoleCredentialFetcher(
            client_creator=functools.partial(
                source.create_client,
                region_name=access.region,
                endpoint_url=access.endpoint_url or None,
                config=reader_config(access),
            ),
            source_credentials=source.get_credentials(),
            role_arn=access.role_arn,
            extra_args={
                "RoleSessionName": "quarterdeck",
                **({"ExternalId": access.external_id} if access.external_id else {}),
            },
        )
        assumed = _new_session()
        # botocore offers no public way to set refreshable credentials; boto3's own documentation uses this attribute.
        assumed._credentials = DeferredRefreshableCredentials(  # type: ignore[attr-defined]
            refresh_using=fetcher.fetch_credentials, method="assume-role"
        )
        source = assumed
    return boto3.Session(botocore_session=source, region_name=access.region)


_build_lock = threading.Lock()


@functools.lru_cache(maxsize=256)
def _service(access: CloudAccess, service: str, attempts: int) -> Any:
    config = reader_config(access) if attempts > 1 else launch_config(access)
    client = _session(access).client(service, endpoint_url=access.endpoint_url or None, config=config)  # type: ignore[call-overload]
    if attempts > 1:
        client.meta.events.register("before-send", _refuse_late_attempt)
    return client


def reading_client(access: CloudAccess, service: str) -> Any:
    """A client of any service for reads and for deletions that may be repeated."""
    with _build_lock:
        return _service(access, service, READ_ATTEMPTS)


def creating_client(access: CloudAccess, service: str) -> Any:
    """A client of any service for what creates or spends: exactly one HTTP attempt a call."""
    with _build_lock:
        return _service(access, service, 1)


@functools.lru_cache(maxsize=64)
def _signer(access: CloudAccess) -> tuple[boto3.Session, URLLib3Session]:
    proxies: dict[str, str] | None = {} if access.endpoint_url and _is_loopback(access.endpoint_url) else None
    # botocore itself passes the pair of times to connect and to read; its stubs know the single number only.
    wait: Any = (CONNECT_TIMEOUT_S, CALL_LIMIT_S - CONNECT_TIMEOUT_S)
    return _session(access), URLLib3Session(timeout=wait, proxies=proxies)


def signed_request(access: CloudAccess, method: str, url: str, body: str, service: str) -> tuple[int, str]:
    """One HTTP attempt at an address that takes AWS's signatures (API Gateway): status and text of the answer.

    Redirects are not followed. Raises what botocore raises.
    """
    with _build_lock:
        session, http = _signer(access)
    keys = session.get_credentials()
    if keys is None:
        raise NoCredentialsError
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    request = AWSRequest(method=method, url=url, data=body.encode(), headers=headers)
    SigV4Auth(keys.get_frozen_credentials(), service, access.region).add_auth(request)
    answer = http.send(request.prepare())
    return int(answer.status_code), str(answer.text)


@functools.lru_cache(maxsize=64)
def _build(access: CloudAccess) -> Clients:
    session = _session(access)
    endpoint = access.endpoint_url or None
    reader, once = reader_config(access), launch_config(access)
    clients = Clients(
        ec2=session.client("ec2", endpoint_url=endpoint, config=reader),
        launch=session.client("ec2", endpoint_url=endpoint, config=once),
        sts=session.client("sts", endpoint_url=endpoint, config=reader),
        quotas=session.client("service-quotas", endpoint_url=endpoint, config=reader),
    )
    for client in (clients.ec2, clients.sts, clients.quotas):
        client.meta.events.register("before-send", _refuse_late_attempt)
    return clients


def build_clients(access: CloudAccess) -> Clients:
    """Clients for one account and region, kept for later calls: clients may be shared by threads, sessions may not."""
    with _build_lock:
        return _build(access)
