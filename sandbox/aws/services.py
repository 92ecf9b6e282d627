"""The services of the fake AWS that speak JSON, by signing name: one line each."""

from __future__ import annotations

from pathlib import Path

from sandbox.aws.costexplorer import CostExplorer
from sandbox.aws.efs import Efs
from sandbox.aws.eks import Eks
from sandbox.aws.fsx import Fsx
from sandbox.aws.options import AwsOptions
from sandbox.aws.parallelcluster import Bucket, CloudFormation, ParallelClusterApi
from sandbox.aws.pcs import Pcs
from sandbox.aws.pricing import Pricing
from sandbox.aws.quotas import Quotas
from sandbox.aws.sagemaker import SageMaker
from sandbox.aws.secretsmanager import SecretsManager
from sandbox.aws.service import Service
from sandbox.aws.state import Cloud
from sandbox.world import World


def services_of(
    options: AwsOptions, world: World, state_dir: Path, cloud: Cloud
) -> dict[str, Service | Bucket | ParallelClusterApi]:
    """All services of one account, each with what it kept."""
    keys = SecretsManager(options, world, state_dir)
    stacks = CloudFormation(options, world, state_dir, cloud=cloud)
    found: list[Service | Bucket | ParallelClusterApi] = [
        keys,
        stacks,
        Bucket(stacks),
        ParallelClusterApi(stacks),
        Pcs(options, world, state_dir, keys=keys, cloud=cloud),
        Eks(options, world, state_dir, cloud=cloud),
        Quotas(options, world, state_dir),
        Pricing(options, world, state_dir),
        CostExplorer(options, world, state_dir, cloud),
        Fsx(options, world, state_dir),
        Efs(options, world, state_dir),
        SageMaker(options, world, state_dir),
    ]
    return {service.signing_name: service for service in found}
