"""AWS as a provider of machines."""

from worker.providers.aws.compute import Ec2Compute
from worker.providers.aws.layouts import addresses_per_node, interface_layout

__all__ = ["Ec2Compute", "addresses_per_node", "interface_layout"]
