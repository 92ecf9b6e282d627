"""The two templates every installation starts with; edits made later stay."""

from django.db import migrations

from apps.core.ids import new_uid

DDP = """#!/bin/bash
# PyTorch DDP: torchrun on every node, one process a GPU, rendezvous on the first node.
export MASTER_ADDR=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export NCCL_DEBUG=${NCCL_DEBUG:-WARN} FI_PROVIDER=${FI_PROVIDER:-efa}
srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --kill-on-bad-exit=1 \\
  {{ torchrun }} --nnodes="$SLURM_NNODES" --nproc-per-node={{ processes_per_node }} \\
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \\
  {{ program }} --steps {{ steps }} --save-every {{ save_every }} --checkpoint-dir "$QD_CHECKPOINT_DIR"
"""
CHARLM = """#!/bin/bash
# A character-level language model in plain Python: trains anywhere, needs no GPU and no PyTorch.
srun --ntasks-per-node={{ ranks_per_node }} --kill-on-bad-exit=1 \\
  python3 {{ program }} --steps {{ steps }} --save-every {{ save_every }} \\
  --step-seconds {{ step_seconds }} --checkpoint-dir "$QD_CHECKPOINT_DIR"
"""


def _whole(name, label, default, minimum, maximum, help=""):
    return {
        "name": name,
        "label": label,
        "type": "integer",
        "default": default,
        "minimum": minimum,
        "maximum": maximum,
        "help": help,
    }


TEMPLATES = [
    {
        "name": "pytorch-ddp",
        "title": "PyTorch DDP with torchrun",
        "description": "One process a GPU over all nodes, checkpoints as PyTorch DCP, resumes by itself.",
        "script": DDP,
        "parameters": [
            {"name": "program", "label": "Training program", "type": "path", "default": "${QD_EXAMPLES}/torch_ddp/train.py", "help": "Path on the nodes."},
            {"name": "torchrun", "label": "torchrun", "type": "path", "default": "torchrun", "help": "Name or path on the nodes."},
            _whole("processes_per_node", "Processes per node", 8, 1, 16, "Usually one a GPU."),
            _whole("steps", "Steps", 1000, 1, 100_000_000),
            _whole("save_every", "Checkpoint every (steps)", 100, 1, 1_000_000),
        ],
    },
    {
        "name": "charlm",
        "title": "Character model (plain Python)",
        "description": "A small real training run without PyTorch, to try the portal and to test a cluster.",
        "script": CHARLM,
        "parameters": [
            {"name": "program", "label": "Training program", "type": "path", "default": "${QD_EXAMPLES}/charlm/train.py", "help": "Path on the nodes."},
            _whole("ranks_per_node", "Ranks per node", 2, 1, 64),
            _whole("steps", "Steps", 200, 1, 1_000_000),
            _whole("save_every", "Checkpoint every (steps)", 20, 1, 100_000),
            {"name": "step_seconds", "label": "At least this long a step (s)", "type": "number", "default": 0.5, "minimum": 0, "maximum": 60, "help": "Slows it down to watch it."},
        ],
    },
]


def forwards(apps, schema_editor):
    JobTemplate = apps.get_model("jobs", "JobTemplate")
    for row in TEMPLATES:
        if not JobTemplate.objects.filter(name=row["name"]).exists():
            JobTemplate.objects.create(uid=new_uid("tpl"), **row)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0002_initial")]
    operations = [migrations.RunPython(forwards, migrations.RunPython.noop)]
