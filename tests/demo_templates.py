"""Templates of the demo site: one of team nlp with locks, three versions and two runs, and one that is retired."""

from __future__ import annotations

from dataclasses import replace

from tests.demo_site import DemoRows

SCRIPT = """#!/bin/bash
# One point of the sweep: learning rate, length of the context and the data are parameters.
srun --ntasks-per-node=1 --kill-on-bad-exit=1 \\
  torchrun --nnodes="$SLURM_NNODES" --nproc-per-node={{ ranks }} \\
  train.py --lr {{ learning_rate }} --context {{ context }} --data {{ data }} {{ compile }} \\
  --checkpoint-dir "$QD_CHECKPOINT_DIR"
"""


def demo_templates(rows: DemoRows) -> None:
    """Makes them."""
    from apps.jobs.models import Job
    from apps.jobs.template_rules import Content, fill_template
    from apps.jobs.template_selectors import inherited_rules
    from apps.jobs.template_services import team_retry_set, template_create, template_edit, template_offer
    from apps.teams.models import Team, User
    from tests.conftest import actor_of

    lead, team = actor_of(User.objects.get(username="lead")), Team.objects.get(slug="nlp")
    first = Content(
        title="Pre-training sweep",
        description="One point of the team's learning-rate sweep on H100 nodes.",
        script=SCRIPT.replace(" {{ compile }}", "").replace("{{ context }}", "4096"),
        parameters=[
            {
                "name": "learning_rate",
                "label": "Learning rate",
                "type": "number",
                "default": 0.0003,
                "maximum": 1,
            },
            {"name": "ranks", "label": "Ranks per node", "type": "integer", "default": 8, "locked": True},
            {"name": "data", "label": "Data", "type": "path", "default": "/fsx/corpus/v3", "help": "On FSx."},
        ],
        defaults={"nodes": 2, "gpus_per_node": 8, "gpu_type": "h100", "time_limit_min": 600},
        locked=["gpus_per_node"],
    )
    template = template_create(
        actor=lead, name="pretrain-sweep", teams=[team], content=first, why="from the first sweep"
    )
    more = [
        {
            "name": "context",
            "label": "Context",
            "type": "choice",
            "default": "4096",
            "choices": ["2048", "4096", "8192"],
        },
        {"name": "compile", "label": "Compile", "type": "switch", "default": True, "on": "--compile", "off": ""},
    ]
    second = replace(first, script=SCRIPT, parameters=[*first.parameters, *more])
    template_edit(actor=lead, template=template, content=second, why="context and torch.compile")
    rules = ["retry exit 75", "retry log NCCL*timeout", "stop log *loss is nan*"]
    third = replace(
        second,
        defaults={
            **first.defaults,
            "time_limit_min": 900,
            "retry_rules": rules,
            "environment": {"NCCL_DEBUG": "WARN"},
        },
        locked=["gpus_per_node", "gpu_type", "retry_rules"],
    )
    template_edit(actor=lead, template=template, content=third, why="longer, and starts again after NCCL timeouts")
    team_retry_set(actor=lead, team=team, rules=["retry signal BUS", "stop exit 2"], expected_version=0)
    for name, values, number in (
        ("moe-8x7b-ablation", {"learning_rate": 0.0002, "context": "2048"}, 3),
        ("sft-instruct-v3", {"learning_rate": 0.0001}, 2),
    ):
        script = fill_template(template.script, template.parameters, values, template.name)[0]
        Job.objects.filter(name=name).update(
            template=template,
            template_version=number,
            template_parameters=values,
            script=script,
            retry_defaults=inherited_rules(template, team),
        )
    old = template_create(
        actor=lead,
        name="tokenize",
        teams=[team],
        content=Content(title="Tokenise a corpus", script="#!/bin/bash\nsrun python tokenize.py\n"),
    )
    template_offer(actor=lead, template=old, is_offered=False)
