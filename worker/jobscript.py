"""The batch script the portal submits: the person's script, unchanged, run by the runner that reports on it."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from functools import lru_cache

from django.conf import settings

from apps.jobs.ingest import ingest_token
from apps.jobs.models import Attempt, Job
from apps.jobs.option_rules import PYXIS_NONE, PYXIS_VALUE, pyxis_environment
from apps.jobs.part_rules import Part, further_parts
from apps.jobs.sbatch import kept_options
from worker.providers import values as v

RUNNER = "runner/quarterdeck_runner.py"

#: One runner on each further node, beside the job's own steps: it takes none of their CPUs, memory or GPUs, says
#: nothing into the job's output, and goes with the job. Slurm's variables for the job's steps are not meant for it.
BEACONS = """\
if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ] 2>/dev/null && command -v srun >/dev/null 2>&1; then
  (
    for name in $(compgen -e); do
      case "$name" in
        SLURM_NTASKS* | SLURM_NPROCS | SLURM_NNODES | SLURM_TASKS_PER_NODE | SLURM_CPUS_PER_*) unset "$name" ;;
        SLURM_MEM_* | SLURM_GPUS* | SLURM_GRES* | SLURM_TRES_PER_* | SLURM_DISTRIBUTION) unset "$name" ;;
        SLURM_EXACT | SLURM_EXCLUSIVE | SRUN_*) unset "$name" ;;
      esac
    done
    exec srun --job-name=quarterdeck --overlap --relative=1 --nodes="$((SLURM_JOB_NUM_NODES - 1))" \
      --ntasks="$((SLURM_JOB_NUM_NODES - 1))" --ntasks-per-node=1 --cpus-per-task=1 --mem=0 --gres=none \
      --cpu-bind=none --mpi=none --kill-on-bad-exit=0 --input=none \
      python3 -I "$QD_RUNNER" --role node
  ) </dev/null >"$qd_dir/nodes.log" 2>&1 &
fi"""


@lru_cache(maxsize=1)
def runner_source() -> bytes:
    """The file of the runner."""
    return (settings.BASE_DIR / RUNNER).read_bytes()


def working_directory(job: Job) -> str:
    """One folder a job, the same for all its attempts, below the cluster's shared root.

    A job that runs as a user of its own lies below that user's folder, which its script makes.
    """
    if job.slurm_user:
        return f"{job.cluster.working_root}/{job.slurm_user}/{job.team.slug}/{job.uid}"
    return f"{job.cluster.working_root}/{job.team.slug}/{job.uid}"


def early_output(job: Job, attempt: Attempt) -> str:
    """Where Slurm writes until the script has made the job's folder; it starts nothing whose output it cannot open."""
    return f"{job.cluster.working_root}/.quarterdeck-{attempt.uid}{'_%a' if attempt.array else ''}.out"


def _own_folder(job: Job) -> str:
    """Lines that make the user's own folder and refuse one that another put there; none where all share one user."""
    if not job.slurm_user:
        return ""
    home = shlex.quote(f"{job.cluster.working_root}/{job.slurm_user}")
    return f"""mkdir -p {home} || exit 1
if [ ! -O {home} ]; then
  echo "quarterdeck: "{home}" belongs to another user; nothing is run there" >&2
  exit 1
fi
"""


def _container(job: Job) -> str:
    """Exports by which pyxis puts every srun of the person's script into its container, "" for none.

    REST has no member for options of plugins. The lines stand behind the portal's own srun, which needs no container.
    """
    found = pyxis_environment([(option.name, option.value) for option in kept_options(job.slurm_options)])
    return "".join(f"export {name}={shlex.quote(value)}; " for name, value in sorted(found.items()))


def batch_script(job: Job, attempt: Attempt) -> str:
    """Unpack the runner and the script beside the job, then run the one with the other.

    Both travel as base64, so no content of a script can break out of its quotes. Where the node has
    no usable Python the script runs without the runner: reporting is lost, the job is not.
    """
    runner = base64.encodebytes(runner_source()).decode()
    script = base64.encodebytes(job.script.encode()).decode()
    shebang = job.script.split("\n", 1)[0]
    interpreter = shebang[2:].strip() if shebang.startswith("#!") else "/bin/bash"
    # Each task of an array has its own folder for the runner, its own output and its own checkpoints.
    task, mine, early = "", "", shlex.quote(early_output(job, attempt))
    if attempt.array:
        task, mine = "/task-$SLURM_ARRAY_TASK_ID", "_$SLURM_ARRAY_TASK_ID"
        mine_checkpoints = 'export QD_CHECKPOINT_DIR="$QD_CHECKPOINT_DIR/task-$SLURM_ARRAY_TASK_ID"\n'
        early = shlex.quote(early_output(job, attempt).removesuffix("_%a.out")) + '"_$SLURM_ARRAY_TASK_ID.out"'
    else:
        mine_checkpoints = ""
    return f"""#!/bin/bash
# {job.name}, attempt {attempt.number}, submitted by Quarterdeck
set -u
{_own_folder(job)}{mine_checkpoints}qd_dir="$QD_WORKING_DIRECTORY/.quarterdeck/{attempt.uid}{task}"
mkdir -p "$qd_dir" "$QD_CHECKPOINT_DIR" && cd "$QD_WORKING_DIRECTORY" || exit 1
# Slurm's own file caught what went wrong until here; from now on the output lies beside the job.
exec >> "attempt-{attempt.number}{mine}.out" 2>&1 || exit 1
rm -f {early}
base64 -d > "$qd_dir/quarterdeck_runner.py" <<'QD_RUNNER'
{runner}QD_RUNNER
base64 -d > "$qd_dir/script" <<'QD_SCRIPT'
{script}QD_SCRIPT
chmod 700 "$qd_dir/script"
(umask 077; printf %s "$QD_INGEST_TOKEN" > "$qd_dir/token")
export KUBEFLOW_TRAINER_STATUS_TOKEN="$qd_dir/token"
export QD_RUNNER="$qd_dir/quarterdeck_runner.py" QD_SPOOL_DIR="$qd_dir/spool"
if command -v python3 >/dev/null 2>&1; then
{BEACONS if job.nodes > 1 else ":"}
  {_container(job)}exec python3 -I "$QD_RUNNER" --role batch -- {interpreter} "$qd_dir/script"
fi
{_container(job)}echo "quarterdeck: no python3 on this node; running without live reports" >&2
exec {interpreter} "$qd_dir/script"
"""


def submit_request(job: Job, attempt: Attempt) -> v.SubmitRequest:
    """Everything the scheduler needs; the attempt's uid is the comment."""
    directory = working_directory(job)
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        **job.environment,
        "QD_ATTEMPT": attempt.uid,
        "QD_JOB": job.uid,
        "QD_WORKING_DIRECTORY": directory,
        "QD_CHECKPOINT_DIR": f"{directory}/checkpoints",
        "QD_INGEST_URL": f"{settings.CONFIG.base_url}/api/v1/ingest/attempts/{attempt.uid}/events",
        "QD_INGEST_TOKEN": ingest_token(attempt.uid),
        # Trainers that report to Kubeflow report here instead, unasked.
        "KUBEFLOW_TRAINER_STATUS_URL": f"{settings.CONFIG.base_url}/api/v1/ingest/attempts/{attempt.uid}/status",
    }
    if attempt.resume_from:
        environment["QD_RESUME_FROM"] = attempt.resume_from
    return v.SubmitRequest(
        script=batch_script(job, attempt),
        name=job.name,
        comment=attempt.uid,
        partition=job.partition,
        nodes=job.nodes,
        gpus_per_node=job.gpus_per_node,
        gpu_type=job.gpu_type,
        tasks_per_node=job.tasks_per_node,
        cpus_per_task=job.cpus_per_task,
        memory_per_node_mib=job.memory_per_node_mib,
        time_limit_min=job.time_limit_min,
        # Slurm wants a folder that exists; the script makes the job's own and goes there.
        working_directory=job.cluster.working_root,
        environment=environment,
        account=job.slurm_account,
        array=attempt.array,
        stdout_path=early_output(job, attempt),
        # A node whose block ends before the job would is no place for it, whatever is free there now.
        options=_options(job.slurm_options),
        parts=tuple(_submit_part(part) for part in further_parts(job.parts)),
        excluded_nodes=tuple(dict.fromkeys([*attempt.excluded_nodes, *attempt.avoided_nodes])),
    )


def _submit_part(part: Part) -> v.SubmitPart:
    return v.SubmitPart(
        partition=part.partition,
        nodes=part.nodes,
        gpus_per_node=part.gpus_per_node,
        gpu_type=part.gpu_type,
        tasks_per_node=part.tasks_per_node,
        cpus_per_task=part.cpus_per_task,
        memory_per_node_mib=part.memory_per_node_mib,
        time_limit_min=part.time_limit_min,
        name=part.name,
        options=_options(part.slurm_options),
    )


def _options(lines: Sequence[str]) -> tuple[str, ...]:
    """Kept options as Slurm takes them; those of a plugin reach it another way."""
    return tuple(o.plain for o in kept_options(lines) if o.name not in PYXIS_VALUE | PYXIS_NONE)
