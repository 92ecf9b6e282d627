"""What an attempt is submitted as: a batch job of Slurm, or a workload of Kubernetes."""

from __future__ import annotations

from apps.jobs.models import Attempt, Job
from worker.jobscript import submit_request
from worker.providers import values as v
from worker.providers.workload_values import WorkloadSubmit


def submission(job: Job, attempt: Attempt) -> v.SubmitRequest | WorkloadSubmit:
    """Everything the cluster's scheduler needs; the attempt's uid is the key by which it is found again."""
    if job.cluster.is_kubernetes:
        from worker.workloads import workload_submit

        return workload_submit(job, attempt)
    return submit_request(job, attempt)
