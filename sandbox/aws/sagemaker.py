"""SageMaker: HyperPod's clusters and training plans."""

from __future__ import annotations

from typing import ClassVar

from sandbox.aws.hyperpod import HyperPod
from sandbox.aws.hyperpod_nodes import HyperPodNodes
from sandbox.aws.service import Service
from sandbox.aws.trainingplans import TrainingPlans


class SageMaker(HyperPodNodes, HyperPod, TrainingPlans, Service):
    """What of SageMaker is pretended."""

    name: ClassVar[str] = "sagemaker"

    def settle(self) -> None:
        """Let time act; plans first, clusters use them."""
        self.plans_settle()
        self.clusters_settle()

    def census(self) -> dict[str, int]:
        """What lives and is billed."""
        return self.clusters_census()
