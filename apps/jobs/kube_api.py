"""Members of a submit that a cluster with Kubernetes understands."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.clusters.kube_states import WorkloadKind
from apps.jobs.kube_rules import MAX_IMAGE, WRITTEN

#: What a submit can ask to be written as.
WRITTEN_CHOICES = [(str(kind), str(WorkloadKind(kind).label)) for kind in WRITTEN]


def kubernetes_members() -> dict[str, serializers.Field[Any, Any, Any, Any]]:
    """By name; a cluster with Slurm refuses each that says something."""
    return {
        "image": serializers.CharField(
            max_length=MAX_IMAGE,
            required=False,
            default="",
            allow_blank=True,
            help_text="Kubernetes: the container in which the script runs; empty: the cluster's own.",
        ),
        "workload_kind": serializers.ChoiceField(
            choices=WRITTEN_CHOICES,
            required=False,
            default="",
            allow_blank=True,
            help_text="Kubernetes: what the job is written as; empty: the cluster's choice.",
        ),
        "manifest": serializers.CharField(
            required=False,
            default="",
            allow_blank=True,
            trim_whitespace=False,
            help_text="Kubernetes: YAML of one or more objects in place of script and image, at most 1 MiB. Nodes, "
            "GPUs and the time limit (activeDeadlineSeconds, else time_limit_min) are counted from it.",
        ),
        "priority_class": serializers.CharField(
            max_length=63,
            required=False,
            default="",
            allow_blank=True,
            help_text="Kubernetes: a WorkloadPriorityClass of Kueue; empty: its default.",
        ),
    }
