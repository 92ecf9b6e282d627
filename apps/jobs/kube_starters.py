"""Templates for clusters that run Kubernetes: training that grows and shrinks, and that mends itself without a restart.

Two are for SageMaker HyperPod's training operator (1.2 or newer) on EKS; two do what comes nearest to it where the
server does not have that kind. Their text is a manifest: text among the parameters is put in as YAML.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_noop as _

from apps.clusters.kube_states import WorkloadKind
from apps.jobs.template_rules import Content

_RESOURCES = """\
resources:
  requests: {nvidia.com/gpu: {{ gpus }}}
  limits: {nvidia.com/gpu: {{ gpus }}}
volumeMounts:
  - {name: shm, mountPath: /dev/shm}
  - {name: data, mountPath: /fsx}
"""
_VOLUMES = """\
volumes:
  - name: shm
    emptyDir: {medium: Memory}
  - name: data
    persistentVolumeClaim: {claimName: {{ claim }}}
"""


def _pod(command: str, indent: int, more: str = "") -> str:
    """The lines of a pod's spec whose one container runs a command, set in so many blanks."""
    container = f"name: pytorch\nimage: {{{{ image }}}}\ncommand:\n{textwrap.indent(command, '  ')}{more}{_RESOURCES}"
    inner = textwrap.indent(container, "    ").replace("    name", "  - name", 1)
    return textwrap.indent(f"containers:\n{inner}{_VOLUMES}", " " * indent)


HYPERPOD_ELASTIC = """\
# Grows to the most nodes while they are free and shrinks when jobs of higher priority need them.
# The program must save a checkpoint on SIGTERM and go on from it with any number of nodes (PyTorch DCP).
apiVersion: sagemaker.amazonaws.com/v1
kind: HyperPodPyTorchJob
metadata:
  name: {{ object_name }}
spec:
  nprocPerNode: "{{ gpus }}"
  elasticPolicy:
    minReplicas: {{ least_nodes }}
    maxReplicas: {{ most_nodes }}
    replicaIncrementStep: {{ step_nodes }}
    gracefulShutdownTimeoutInSeconds: {{ save_s }}
    scalingTimeoutInSeconds: 60
    faultyScaleDownTimeoutInSeconds: 120
  runPolicy:
    cleanPodPolicy: None
    jobMaxRetryCount: {{ retries }}
  replicaSpecs:
    - name: workers
      replicas: {{ least_nodes }}
      maxReplicas: {{ most_nodes }}
      template:
        spec:
""" + _pod('- hyperpodrun\n- "--nproc-per-node={{ gpus }}"\n- {{ program }}\n', 10)

HYPERPOD_CHECKPOINTLESS = """\
# Processes stay alive through a fault and take the lost state from their peers' memory, not from a checkpoint.
# The program must be wrapped for it (hyperpod_checkpointless_training), and its image hold that package.
apiVersion: sagemaker.amazonaws.com/v1
kind: HyperPodPyTorchJob
metadata:
  name: {{ object_name }}
spec:
  nprocPerNode: "{{ gpus }}"
  runPolicy:
    cleanPodPolicy: None
    jobMaxRetryCount: {{ retries }}
  replicaSpecs:
    - name: workers
      replicas: {{ nodes }}
      spares: {{ spares }}
      template:
        spec:
""" + _pod(
    '- hyperpodrun\n- "--nproc_per_node={{ gpus }}"\n- --inprocess-restart\n- {{ program }}\n',
    10,
    'env:\n  - {name: HPCT_USE_ROOTLESS, value: "1"}\n',
)

ELASTIC = """\
# torchrun's own elasticity by Kubeflow's operator: goes on with the nodes that are left and takes new ones in.
# The program must save often and go on from its newest checkpoint with any number of nodes.
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {{ object_name }}
spec:
  runPolicy:
    activeDeadlineSeconds: {{ deadline_s }}
    cleanPodPolicy: None
  elasticPolicy:
    rdzvBackend: c10d
    minReplicas: {{ least_nodes }}
    maxReplicas: {{ most_nodes }}
    maxRestarts: {{ retries }}
  pytorchReplicaSpecs:
    Worker:
      replicas: {{ least_nodes }}
      restartPolicy: ExitCode
      template:
        spec:
""" + _pod('- torchrun\n- "--nproc-per-node={{ gpus }}"\n- {{ program }}\n', 10)

MENDING = """\
# The whole gang starts again in place after a fault, without a new turn in the queue.
# The nearest to checkpointless training without HyperPod's operator: keep a copy of the state in memory of a peer.
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {{ object_name }}
spec:
  failurePolicy:
    maxRestarts: {{ retries }}
  replicatedJobs:
    - name: workers
      replicas: 1
      template:
        spec:
          parallelism: {{ nodes }}
          completions: {{ nodes }}
          completionMode: Indexed
          backoffLimit: 0
          activeDeadlineSeconds: {{ deadline_s }}
          template:
            spec:
              restartPolicy: Never
""" + _pod(
    """\
- bash
- -c
- >-
  exec torchrun --nnodes "$NODES" --node-rank "$JOB_COMPLETION_INDEX" --nproc-per-node "$GPUS"
  --master-addr "$SET-workers-0-0.$SET" --master-port 29400 "$PROGRAM"
""",
    14,
    """\
env:
  - {name: SET, value: {{ object_name }}}
  - {name: NODES, value: "{{ nodes }}"}
  - {name: GPUS, value: "{{ gpus }}"}
  - {name: PROGRAM, value: {{ program }}}
""",
)


def _text(name: str, label: str, default: str, told: str = "") -> dict[str, Any]:
    return {"name": name, "label": label, "type": "text", "default": default, "help": told}


def _whole(name: str, label: str, default: int, low: int, high: int, told: str = "") -> dict[str, Any]:
    found = {"name": name, "label": label, "type": "integer", "default": default, "minimum": low, "maximum": high}
    return {**found, "help": told}


_IMAGE = _text("image", _("Image"), "registry.example.org/train/pytorch:2.9-cuda13")
_PROGRAM = _text("program", _("Training program"), "/fsx/train.py", _("Path in the container."))
_CLAIM = _text("claim", _("Volume claim"), "fsx", _("The PersistentVolumeClaim of your namespace, mounted at /fsx."))
_GPUS = _whole("gpus", _("GPUs per node"), 8, 1, 16)
_RETRIES = _whole("retries", _("Restarts"), 10, 0, 1000)
_DEADLINE = _whole("deadline_s", _("Ends after (s)"), 86_400, 60, 7_776_000)
_SIZES = (
    _whole("least_nodes", _("Nodes at least"), 2, 1, 1000),
    _whole("most_nodes", _("Nodes at most"), 8, 1, 1000, _("Held and paid up to this many.")),
)


def _name(default: str) -> dict[str, Any]:
    return _text("object_name", _("Name of the object"), default, _("Small letters, digits and -; one at a time."))


_MANIFEST = {"workload_kind": str(WorkloadKind.MANIFEST)}
#: Name → what it says.
KUBERNETES_STARTERS: Mapping[str, Content] = {
    "hyperpod-elastic": Content(
        title=_("HyperPod: elastic training"),
        description=_("Grows and shrinks with what is free, by HyperPod's training operator on EKS."),
        script=HYPERPOD_ELASTIC,
        parameters=[
            *(_name("elastic"), _IMAGE, _PROGRAM, _GPUS, *_SIZES),
            _whole("step_nodes", _("Nodes a step"), 2, 1, 1000, _("It grows and shrinks by so many.")),
            _whole("save_s", _("Time to save (s)"), 600, 1, 7200, _("Between SIGTERM and the end of a process.")),
            *(_RETRIES, _CLAIM),
        ],
        defaults={**_MANIFEST, "time_limit_min": 1440},
        locked=["workload_kind"],
    ),
    "hyperpod-checkpointless": Content(
        title=_("HyperPod: checkpointless training"),
        description=_("Recovers from a fault out of the memory of its peers, by HyperPod's training operator on EKS."),
        script=HYPERPOD_CHECKPOINTLESS,
        parameters=[
            *(_name("checkpointless"), _IMAGE, _PROGRAM, _GPUS),
            _whole("nodes", _("Nodes"), 4, 2, 1000),
            _whole("spares", _("Spare nodes"), 1, 0, 100, _("They stand by, held and paid as the others.")),
            *(_RETRIES, _CLAIM),
        ],
        defaults={**_MANIFEST, "time_limit_min": 1440},
        locked=["workload_kind"],
    ),
    "elastic-pytorchjob": Content(
        title=_("Elastic training (PyTorchJob)"),
        description=_("Grows and shrinks with what is free, by Kubeflow's operator; for clusters without HyperPod's."),
        script=ELASTIC,
        parameters=[_name("elastic"), _IMAGE, _PROGRAM, _GPUS, *_SIZES, _RETRIES, _DEADLINE, _CLAIM],
        defaults=_MANIFEST,
        locked=["workload_kind"],
    ),
    "self-mending-jobset": Content(
        title=_("Restart in place (JobSet)"),
        description=_(
            "The gang starts again on the same nodes after a fault; for clusters without HyperPod's operator."
        ),
        script=MENDING,
        parameters=[
            *(_name("mending"), _IMAGE, _PROGRAM, _GPUS),
            _whole("nodes", _("Nodes"), 4, 1, 1000),
            *(_RETRIES, _DEADLINE, _CLAIM),
        ],
        defaults=_MANIFEST,
        locked=["workload_kind"],
    ),
}
