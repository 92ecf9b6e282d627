"""Opens providers for the rows that describe them, secrets resolved at the last moment; tests replace them."""

from __future__ import annotations

import base64
import binascii
import configparser
import json
import os
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings

from apps.clusters.models import Cluster
from apps.clusters.slurm_selectors import slurm_identity
from apps.clusters.states import ClusterKind
from apps.connections.models import CloudAccount
from apps.connections.services import OWN_SECRETS
from worker.providers import ports
from worker.providers import values as v
from worker.providers.errors import AccessDenied, InvalidRequest, Unavailable
from worker.providers.slurm.tokens import PosixIdentity, TokenMill

if TYPE_CHECKING:
    from worker.providers.slurm import SlurmScheduler

#: No single provider call may take longer (the first rung of the ladder of time limits).
CALL_TIMEOUT_S = 20.0


#: What was read from Secrets Manager is kept so long, in memory: a collector asks every few seconds.
SECRET_KEPT_S = 300.0
#: Connections of people to schedulers that are kept open; the one used longest ago is closed.
SCHEDULERS_KEPT = 200

_from_aws: dict[tuple[int, str], tuple[float, str | bytes]] = {}


def _guard(reference: str) -> tuple[str, str]:
    kind, _sep, name = reference.partition(":")
    if (kind == "file" and name in OWN_SECRETS) or (kind == "env" and name.startswith("QD_")):
        raise AccessDenied(f"{reference} is the portal's own and never sent anywhere", source="secrets")
    return kind, name


def secret(reference: str, account: CloudAccount | None = None) -> str:
    """The text behind ``env:NAME``, ``file:NAME`` (in QD_SECRETS_DIR) or, with an account, ``aws:NAME-or-ARN``.

    Raises AccessDenied naming the reference.
    """
    kind, name = _guard(reference)
    if kind == "aws":
        found = _secret_of_aws(name, account)
        try:
            return (found if isinstance(found, str) else found.decode()).strip()
        except UnicodeDecodeError:
            raise InvalidRequest(f"secret {reference} is not text", source="secrets") from None
    if kind == "env":
        value = os.environ.get(name)
        if value is None:
            raise AccessDenied(f"environment variable {name} is not set for the worker", source="secrets")
        return value
    if kind == "file" and name and "/" not in name and ".." not in name:
        path = settings.CONFIG.secrets_dir / name
        try:
            return str(path.read_text()).strip()
        except OSError as error:
            raise AccessDenied(
                f"secret file {name} cannot be read in QD_SECRETS_DIR: {error.strerror}", source="secrets"
            ) from error
    raise InvalidRequest(f"{reference!r} is not a secret reference", source="secrets")


def _secret_of_aws(name: str, account: CloudAccount | None) -> str | bytes:
    from worker.providers.aws.secrets import secret_value

    if account is None:
        raise InvalidRequest(f"aws:{name} is read in a cloud account and the cluster has none", source="secrets")
    kept = _from_aws.get((account.pk, name))
    if kept is not None and time.monotonic() - kept[0] < SECRET_KEPT_S:
        return kept[1]
    found = secret_value(access_of(account), name)
    _from_aws[account.pk, name] = (time.monotonic(), found)
    return found


def signing_key(reference: str, account: CloudAccount | None = None) -> bytes:
    """Slurm's key: a file's bytes as they are; text (an environment variable, a secret of AWS) is base64.

    Raises AccessDenied or InvalidRequest naming the reference.
    """
    kind, name = _guard(reference)
    if kind == "file" and name and "/" not in name and ".." not in name:
        try:
            key = bytes((settings.CONFIG.secrets_dir / name).read_bytes())
        except OSError as error:
            raise AccessDenied(
                f"secret file {name} cannot be read in QD_SECRETS_DIR: {error.strerror}", source="secrets"
            ) from error
    else:
        found = _secret_of_aws(name, account) if kind == "aws" else secret(reference)
        if isinstance(found, bytes):
            key = found
        else:
            try:
                key = base64.b64decode(found.strip(), validate=True)
            except binascii.Error:
                raise InvalidRequest(f"{reference} is not base64, as text must be", source="secrets") from None
    if len(key) < 16:
        raise InvalidRequest(f"{reference} holds {len(key)} bytes; a key of Slurm has at least 16", source="secrets")
    return key


def credentials(reference: str) -> v.Credentials:
    """An access key from a secret: JSON, or the INI that AWS's tools write. Empty reference: the SDK's own chain."""
    if not reference:
        return v.Credentials()
    text = secret(reference)
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidRequest(f"secret {reference} is not valid JSON: {error}", source="secrets") from error
    else:
        parser = configparser.ConfigParser()
        try:
            parser.read_string(text)
        except configparser.Error as error:
            raise InvalidRequest(f"secret {reference} is neither JSON nor INI", source="secrets") from error
        section = "default" if parser.has_section("default") else next(iter(parser.sections()), "")
        found = {k.removeprefix("aws_"): value for k, value in parser.items(section)} if section else {}
    found = {k.lower().removeprefix("aws_"): value for k, value in found.items()}
    if not found.get("access_key_id") or not found.get("secret_access_key"):
        raise InvalidRequest(f"secret {reference} lacks access_key_id or secret_access_key", source="secrets")
    return v.Credentials(found["access_key_id"], found["secret_access_key"], found.get("session_token", ""))


def compute_for(account: CloudAccount) -> ports.Compute:
    """The compute provider of a cloud account."""
    from worker.providers.aws import Ec2Compute

    return Ec2Compute(access_of(account))


def access_of(account: CloudAccount) -> v.CloudAccess:
    """How the worker reaches an account, its secret resolved. Raises Unavailable for a paused one: no call is made."""
    if account.is_paused:
        raise Unavailable(f"account {account.name} is paused; no call is made", source="portal", code="AccountPaused")
    return v.CloudAccess(
        region=account.region,
        credentials=credentials(account.credentials_ref),
        endpoint_url=account.endpoint_url,
        role_arn=account.role_arn,
        external_id=account.external_id,
    )


def storage_for(account: CloudAccount) -> ports.FileStorage:
    """The provider of shared file systems of a cloud account."""
    from worker.providers.aws.storage import AwsFileStorage

    return AwsFileStorage(access_of(account))


def capacity_for(account: CloudAccount) -> ports.Capacity:
    """The provider of reserved capacity of a cloud account."""
    from worker.providers.aws.capacity import AwsCapacity

    return AwsCapacity(access_of(account))


def cluster_service_for(cluster: Cluster) -> ports.ClusterService:
    """The service that keeps a cluster, by its kind. Raises InvalidRequest for a kind that none keeps."""
    if cluster.account is None:
        raise InvalidRequest("the cluster has no cloud account", source="portal")
    access = access_of(cluster.account)
    match cluster.kind:
        case ClusterKind.PCS:
            from worker.providers.aws.pcs import Pcs

            return Pcs(access)
        case ClusterKind.EKS:
            from worker.providers.aws.eks import Eks

            return Eks(access)
        case ClusterKind.HYPERPOD_SLURM | ClusterKind.HYPERPOD_EKS:
            from worker.providers.aws.hyperpod import HyperPod

            return HyperPod(access)
        case ClusterKind.PARALLELCLUSTER:
            from worker.providers.aws.parallelcluster import ParallelCluster

            return ParallelCluster(access, str(cluster.settings.get("pcluster_api_url") or ""))
    raise InvalidRequest(f"no service of AWS keeps clusters of kind {cluster.kind}", source="portal")


def owned_clusters_for(account: CloudAccount) -> ports.OwnedClusters:
    """What finds our clusters and groups in a cloud account."""
    from worker.providers.aws.owned import OwnedClusters

    return OwnedClusters(access_of(account))


#: One scheduler a cluster, user and process: it remembers the version it negotiated and the queue it last read.
_schedulers: dict[tuple[str, str], tuple[v.SchedulerAccess, str, SlurmScheduler]] = {}
_mills: dict[str, TokenMill] = {}


def scheduler_access(cluster: Cluster, as_user: str = "") -> v.SchedulerAccess:
    """How to reach a cluster's scheduler as one of its users; "" is the cluster's own, for reads and operators.

    Without Slurm's key everything goes with the one token that the cluster has. Raises AccessDenied, InvalidRequest.
    """
    key_ref = cluster.signing_key_ref
    if not key_ref or (cluster.token_ref and as_user in ("", cluster.user_name)):
        user, token = cluster.user_name, secret(cluster.token_ref, cluster.account)
    else:
        user = as_user or cluster.user_name
        token = _token(cluster, user, signing_key(key_ref, cluster.account))
    return v.SchedulerAccess(
        endpoint_url=cluster.scheduler_url,
        user_name=user,
        token=token,
        timeout_s=CALL_TIMEOUT_S,
        names_user=not cluster.tells_ids,
    )


def _token(cluster: Cluster, user: str, key: bytes) -> str:
    mill = _mills.get(cluster.uid)
    if mill is None or mill.lifetime_s != cluster.token_lifetime_s:
        mill = _mills[cluster.uid] = TokenMill(cluster.token_lifetime_s)
    identity = None
    if cluster.tells_ids:
        known = slurm_identity(cluster, user)
        if known.uid_number is None or known.gid_number is None:
            raise InvalidRequest(
                f"Slurm user {user} of cluster {cluster.name} has no uid and gid, which its tokens must carry",
                source="portal",
                code="ids",
            )
        identity = PosixIdentity(known.uid_number, known.gid_number, known.gids, known.gecos)
    return mill.token(key, user, identity)


def scheduler_for(cluster: Cluster, as_user: str = "") -> ports.Scheduler:
    """The scheduler of a cluster as one of its users ("" the cluster's own); another address or user opens a new one.

    A fresh token of the same user goes into the one that is open. Kubernetes knows the portal alone.
    """
    if cluster.is_kubernetes:
        from worker.kube_doors import kubernetes_for

        return kubernetes_for(cluster)
    from worker.providers.slurm import SlurmScheduler

    access = scheduler_access(cluster, as_user)
    command = settings.CONFIG.scontrol
    place = (cluster.uid, as_user)
    known = _schedulers.pop(place, None)
    if (
        known is not None
        and known[0] != access
        and known[1] == command
        and replace(known[0], token="") == replace(access, token="")
    ):
        known[2].renew(access.token)
        known = (access, command, known[2])
    if known is None or known[:2] != (access, command):
        if known is not None:
            known[2].close()
        # scontrol's own user is an operator there: a person's actions go with the person's token instead.
        scheduler = SlurmScheduler(access, scontrol=shlex.split(command) or None, lends_token=bool(as_user))
        known = (access, command, scheduler)
    _schedulers[place] = known
    while len(_schedulers) > SCHEDULERS_KEPT:
        oldest = next((kept for kept in _schedulers if kept[1]), None)
        if oldest is None:
            break
        _schedulers.pop(oldest)[2].close()
    return known[2]


def object_store() -> ports.ObjectStore:
    """Where jobs' output is kept: QD_OBJECT_STORE. Raises InvalidRequest for an address that is none."""
    from worker.providers.object_store import FolderStore, S3Store

    config = settings.CONFIG
    if not config.object_store.startswith("s3://"):
        return FolderStore(Path(config.object_store) if config.object_store else config.var_dir / "object-store")
    bucket, _sep, prefix = config.object_store.removeprefix("s3://").partition("/")
    if not bucket:
        raise InvalidRequest(f"QD_OBJECT_STORE {config.object_store!r} names no bucket", source="portal")
    access = v.CloudAccess(
        region=config.object_store_region,
        credentials=credentials(config.object_store_credentials),
        endpoint_url=config.object_store_endpoint,
    )
    return S3Store(access, bucket, prefix)


def accounting_for(cluster: Cluster) -> ports.SlurmAccounting:
    """The limits of a cluster's accounts, as the cluster's own user."""
    from worker.providers.slurm import SlurmAccounts

    return SlurmAccounts(scheduler_access(cluster), scontrol=shlex.split(settings.CONFIG.scontrol))


def exporter() -> ports.GpuExporter:
    """The reader of DCGM exporters."""
    from worker.providers.prometheus.exporter import DcgmExporter

    return DcgmExporter()
