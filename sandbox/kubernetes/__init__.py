"""A pretend Kubernetes API server with its CRDs, faults and permissions, for the official client to talk to."""

from sandbox.kubernetes.cluster import Cluster
from sandbox.kubernetes.server import ClusterApi

__all__ = ["Cluster", "ClusterApi"]
