"""SageMaker: training plans."""

from __future__ import annotations

from typing import ClassVar

from sandbox.aws.service import Service
from sandbox.aws.trainingplans import TrainingPlans


class SageMaker(TrainingPlans, Service):
    """What of SageMaker is pretended."""

    name: ClassVar[str] = "sagemaker"

    def settle(self) -> None:
        """Let time act."""
        self.plans_settle()
