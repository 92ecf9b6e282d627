"""Opens providers for the rows that describe them, secrets resolved at the last moment; tests replace them."""

from __future__ import annotations

import configparser
import json
import os
import shlex

from django.conf import settings

from apps.clusters.models import Cluster
from apps.clusters.states import ClusterKind
from apps.connections.models import CloudAccount
from apps.connections.services import OWN_SECRETS
from worker.providers import ports
from worker.providers import values as v
from worker.providers.errors import AccessDenied, InvalidRequest, Unavailable

#: No single provider call may take longer (the first rung of the ladder of time limits).
CALL_TIMEOUT_S = 20.0


def secret(reference: str) -> str:
    """The text behind ``env:NAME`` or ``file:NAME`` (in QD_SECRETS_DIR). Raises AccessDenied naming the reference."""
    kind, _sep, name = reference.partition(":")
    if (kind == "file" and name in OWN_SECRETS) or (kind == "env" and name.startswith("QD_")):
        raise AccessDenied(f"{reference} is the portal's own and never sent anywhere", source="secrets")
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


#: One scheduler a cluster and process: it remembers the version it negotiated and the queue it last read.
_schedulers: dict[str, tuple[v.SchedulerAccess, str, ports.Scheduler]] = {}


def scheduler_for(cluster: Cluster) -> ports.Scheduler:
    """The scheduler of a cluster; a changed address, user or token opens a new one."""
    from worker.providers.slurm import SlurmScheduler

    access = v.SchedulerAccess(
        endpoint_url=cluster.scheduler_url,
        user_name=cluster.user_name,
        token=secret(cluster.token_ref),
        timeout_s=CALL_TIMEOUT_S,
    )
    command = settings.CONFIG.scontrol
    known = _schedulers.get(cluster.uid)
    if known is None or known[:2] != (access, command):
        known = (access, command, SlurmScheduler(access, scontrol=shlex.split(command) or None))
        _schedulers[cluster.uid] = known
    return known[2]


def exporter() -> ports.GpuExporter:
    """The reader of DCGM exporters."""
    from worker.providers.prometheus.exporter import DcgmExporter

    return DcgmExporter()
