"""A fake AWS on one port: EC2, STS and Service Quotas as far as a fleet of GPU instances needs them."""

from sandbox.aws.options import AwsOptions
from sandbox.aws.server import AwsServer

__all__ = ["AwsOptions", "AwsServer"]
