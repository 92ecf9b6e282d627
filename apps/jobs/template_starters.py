"""Templates that a site to try the portal with starts from; each also runs where there is no GPU and no NCCL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_noop as _

from apps.jobs.template_rules import Content

TORCHRUN = """#!/bin/bash
# torchrun on every node of the job, one process a GPU, meeting on the first node.
set -u
export MASTER_ADDR=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
SAVE=${QD_CHECKPOINT_DIR:-$PWD/checkpoints}

if command -v torchrun > /dev/null; then
  srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --kill-on-bad-exit=1 \\
    torchrun --nnodes="$SLURM_NNODES" --nproc-per-node={{ ranks_per_node }} --max-restarts=0 \\
    --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \\
    {{ program }} --steps {{ steps }} --save-every {{ save_every }} --checkpoint-dir "$SAVE"
else
  echo "torchrun is not on these nodes: the small model in plain Python takes its place"
  srun --ntasks-per-node=2 --kill-on-bad-exit=1 \\
    python3 "$QD_EXAMPLES/charlm/train.py" --steps {{ steps }} --save-every {{ save_every }} --checkpoint-dir "$SAVE"
fi
"""
NCCL = """#!/bin/bash
# Bandwidth of all-reduce over all GPUs of the job, by nccl-tests; over TCP where they are not installed.
set -u
TEST={{ binary }}
if command -v "$TEST" > /dev/null; then
  srun --ntasks-per-node="${SLURM_GPUS_ON_NODE:-8}" --kill-on-bad-exit=1 \\
    "$TEST" -b {{ from_size }} -e {{ to_size }} -f 2 -g 1 -n {{ iterations }}
else
  echo "$TEST is not on these nodes: a sum over TCP takes its place"
  srun --ntasks-per-node=1 --kill-on-bad-exit=1 python3 "$QD_EXAMPLES/charlm/allreduce.py" \\
    --from-size 8K --to-size 256K --iterations {{ iterations }}
fi
"""
EVALUATE = """#!/bin/bash
# One shard of an evaluation a task of the array; the array must count from 0 to the number of shards less one.
set -u
SHARDS={{ shards }}
TASK=${SLURM_ARRAY_TASK_ID:-0}
if [ "$TASK" -ge "$SHARDS" ]; then
  echo "task $TASK has no shard: there are $SHARDS, counted from 0" >&2
  exit 2
fi
srun --ntasks=1 python3 {{ program }} --checkpoint {{ checkpoint }} \\
  --shard "$TASK" --shards "$SHARDS" --every {{ every }}
"""
CONVERT = """#!/bin/bash
# A sharded checkpoint as one safetensors file, whole or not there at all.
set -u
srun --ntasks=1 python3 {{ program }} --checkpoint {{ checkpoint }} --output {{ output }} --dtype {{ dtype }}
"""


def _whole(name: str, label: str, default: int, low: int, high: int, told: str = "") -> dict[str, Any]:
    found = {"name": name, "label": label, "type": "integer", "default": default, "minimum": low, "maximum": high}
    return {**found, "help": told} if told else found


def _path(name: str, label: str, default: str = "", told: str = "", **more: Any) -> dict[str, Any]:
    found = {"name": name, "label": label, "type": "path", **more}
    return {**found, **({"default": default} if default else {}), **({"help": told} if told else {})}


_SIZES = ["8", "8K", "8M", "128M", "1G", "8G"]
#: Name → what it says.
STARTERS: Mapping[str, Content] = {
    "torchrun-multinode": Content(
        title=_("torchrun on many nodes"),
        description=_("One process a GPU, starts again after a lost peer or an NCCL timeout."),
        script=TORCHRUN,
        parameters=[
            _path("program", _("Training program"), "${QD_EXAMPLES}/torch_ddp/train.py", _("Path on the nodes.")),
            _whole("ranks_per_node", _("Processes per node"), 8, 1, 16, _("Usually one a GPU.")),
            _whole("steps", _("Steps"), 100, 1, 100_000_000),
            _whole("save_every", _("Checkpoint every (steps)"), 20, 1, 1_000_000),
        ],
        defaults={
            "nodes": 2,
            "gpus_per_node": 8,
            "time_limit_min": 60,
            "environment": {"NCCL_DEBUG": "WARN", "FI_PROVIDER": "efa"},
            "retry_rules": ["retry log NCCL*timeout", "retry log *connection closed by remote peer*"],
        },
    ),
    "nccl-test": Content(
        title=_("All-reduce bandwidth (nccl-tests)"),
        description=_("Whether the network between the nodes gives what it should, before a long run."),
        script=NCCL,
        parameters=[
            _path("binary", "all_reduce_perf", "all_reduce_perf", _("Name or path on the nodes.")),
            {"name": "from_size", "label": _("From (bytes)"), "type": "choice", "default": "8M", "choices": _SIZES},
            {"name": "to_size", "label": _("To (bytes)"), "type": "choice", "default": "8G", "choices": _SIZES},
            _whole("iterations", _("Iterations"), 20, 1, 1000),
        ],
        defaults={
            "nodes": 2,
            "gpus_per_node": 8,
            "time_limit_min": 15,
            "environment": {"NCCL_DEBUG": "INFO"},
            "slurm_options": ["--exclusive"],
            "max_recoveries": 0,
        },
        locked=["max_recoveries", "slurm_options"],
    ),
    "eval-array": Content(
        title=_("Evaluation as an array"),
        description=_("A shard a task; a task that fails does not take the others with it."),
        script=EVALUATE,
        parameters=[
            _path("program", _("Evaluation program"), "${QD_EXAMPLES}/charlm/evaluate.py", _("Path on the nodes.")),
            _path(
                "checkpoint",
                _("Checkpoint"),
                told=_("A step's folder, or the one above for the newest; empty: the untrained model."),
                required=False,
            ),
            _whole("shards", _("Shards"), 4, 1, 10_000, _("The array counts from 0 to one less.")),
            _whole("every", _("Every n-th place"), 20, 1, 10_000, _("1 looks at the whole text.")),
        ],
        defaults={"nodes": 1, "gpus_per_node": 1, "time_limit_min": 30, "array": "0-3%2"},
        locked=["nodes"],
    ),
    "checkpoint-convert": Content(
        title=_("Checkpoint to safetensors"),
        description=_("One file of the weights alone from a sharded checkpoint, for serving."),
        script=CONVERT,
        parameters=[
            _path("program", _("Conversion program"), "${QD_EXAMPLES}/charlm/convert.py", _("Path on the nodes.")),
            _path("checkpoint", _("Checkpoint"), told=_("A step's folder, or the one above for the newest.")),
            _path("output", _("Output file"), "model.safetensors", _("In the job's folder unless it starts with /.")),
            {
                "name": "dtype",
                "label": _("Number format"),
                "type": "choice",
                "default": "bf16",
                "choices": ["bf16", "f32", "f64"],
            },
        ],
        defaults={"nodes": 1, "gpus_per_node": 1, "time_limit_min": 30, "max_recoveries": 1},
        locked=["nodes"],
    ),
}
