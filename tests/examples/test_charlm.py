"""The standard-library training example on four ranks of one machine: it learns, dies together, and resumes exactly."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "charlm"


class Ranks:
    """The ranks that srun would start, two a node."""

    def __init__(self, folder: Path, size: int, *arguments: str, **env: str) -> None:
        self.processes = []
        for rank in range(size):
            environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "QD_"))}
            environment |= {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size), "SLURM_JOB_ID": "1"}
            environment |= {"SLURMD_NODENAME": f"p5-{rank // 2 + 1}", "CHARLM_HOST": "127.0.0.1", **env}
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(EXAMPLE / "train.py"), *arguments],
                    env=environment,
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )

    def finish(self) -> tuple[list[int], list[str]]:
        outputs = [process.communicate(timeout=90)[0] for process in self.processes]
        return [process.returncode for process in self.processes], outputs

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def start(tmp_path):
    started = []

    def start_ranks(size, *arguments, folder=tmp_path, **env):
        started.append(Ranks(folder, size, *arguments, **env))
        return started[-1]

    yield start_ranks
    for ranks in started:
        ranks.close()


def losses(output):
    progress = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {line["step"]: line["loss"] for line in progress}


def wait_for(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_loss_falls_and_the_lines_have_their_keys(start, tmp_path):
    codes, outputs = start(4, "--steps", "120", "--save-every", "60").finish()
    assert codes == [0, 0, 0, 0], outputs
    curve = losses(outputs[0])
    assert list(curve) == list(range(1, 121))
    assert curve[1] > 3.5
    assert sum(curve[step] for step in range(111, 121)) / 10 < 2.75
    last = json.loads([line for line in outputs[0].splitlines() if line.startswith("{")][-1])
    assert set(last) == {"step", "total_steps", "loss", "tokens_per_s", "learning_rate", "grad_norm", "eta_s"}
    assert "rank 3 of 4 on p5-2: step 120" in outputs[3]
    assert "{" not in outputs[1]
    for step in (60, 120):
        names = sorted(path.name for path in (tmp_path / "checkpoints" / f"step-{step}").iterdir())
        assert names == [".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp"]
    assert list(tmp_path.glob(".charlm-*")) == [], "the meeting file is removed"


def test_one_rank_without_slurm(tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "QD_"))}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "train.py"), "--steps", "3"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert list(losses(done.stdout)) == [1, 2, 3]


def test_killed_and_resumed_it_goes_on_as_if_nothing_had_been(start, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    codes, outputs = start(4, "--steps", "40", "--save-every", "10", folder=whole).finish()
    assert codes == [0, 0, 0, 0]
    expected = losses(outputs[0])

    ranks = start(4, "--steps", "40", "--save-every", "10", "--step-seconds", "0.05", folder=broken)
    wait_for(lambda: (broken / "checkpoints" / "step-20" / ".metadata").exists())
    ranks.processes[2].kill()
    codes, outputs = ranks.finish()
    assert codes[2] == -signal.SIGKILL
    assert [code for rank, code in enumerate(codes) if rank != 2] == [1, 1, 1]
    assert "rank 0 of 4 on p5-1 ends: lost rank 2" in outputs[0]
    assert "lost rank 0" in outputs[1]
    assert max(losses(outputs[0])) < 40
    assert losses(outputs[0]) == {step: expected[step] for step in losses(outputs[0])}

    newest = str(broken / "checkpoints" / "step-20")
    codes, outputs = start(4, "--steps", "40", "--save-every", "10", folder=broken, QD_RESUME_FROM=newest).finish()
    assert codes == [0, 0, 0, 0], outputs
    assert losses(outputs[0]) == {step: expected[step] for step in range(21, 41)}
    for name in (".metadata", "__0_0.distcp", "__3_0.distcp"):
        ours, theirs = (root / "checkpoints" / "step-40" / name for root in (whole, broken))
        assert ours.read_bytes() == theirs.read_bytes(), "the weights and the momentum are the same to the bit"


def test_auto_takes_the_newest_whole_one(start, tmp_path):
    start(2, "--steps", "30", "--save-every", "10").finish()
    (tmp_path / "checkpoints" / "step-30" / ".metadata").unlink()
    codes, outputs = start(2, "--steps", "31", "--save-every", "10").finish()
    assert codes == [0, 0]
    assert re.search(r"resumed from checkpoints/step-20 at step 20", outputs[0])
    assert min(losses(outputs[0])) == 21


def test_another_number_of_ranks_may_resume(start, tmp_path):
    start(3, "--steps", "10", "--save-every", "10").finish()
    codes, outputs = start(2, "--steps", "12").finish()
    assert codes == [0, 0]
    assert list(losses(outputs[0])) == [11, 12]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / ".metadata").unlink(), ".metadata is missing"),
        (lambda folder: (folder / ".metadata").write_text(""), ".metadata is unreadable"),
        (lambda folder: (folder / "__1_0.distcp").unlink(), "__1_0.distcp is missing"),
        (lambda folder: (folder / "__1_0.distcp").write_bytes(b"short"), "__1_0.distcp has 5 bytes instead of"),
    ],
)
def test_a_torn_checkpoint_that_is_named_is_refused(start, tmp_path, damage, message):
    start(2, "--steps", "10", "--save-every", "10").finish()
    folder = tmp_path / "checkpoints" / "step-10"
    damage(folder)
    codes, outputs = start(2, "--steps", "12", QD_RESUME_FROM=str(folder)).finish()
    assert codes == [2, 2]
    for output in outputs:
        assert f"{folder} is torn: " in output
        assert message in output
        assert "Traceback" not in output


def test_damaged_weights_are_refused(start, tmp_path):
    start(1, "--steps", "10", "--save-every", "10").finish()
    shard = tmp_path / "checkpoints" / "step-10" / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[5000] ^= 1
    shard.write_bytes(content)
    codes, outputs = start(1, "--steps", "12", "--resume", str(shard.parent)).finish()
    assert codes == [2]
    assert "__0_0.distcp fails its checksum" in outputs[0]


def test_sigterm_saves_and_ends_with_143(start, tmp_path):
    ranks = start(4, "--steps", "500", "--save-every", "1000", "--step-seconds", "0.05")
    wait_for(
        lambda: not list(tmp_path.glob(".charlm-*")) and ranks.processes[0].stdout.readline().startswith('{"step"')
    )
    ranks.processes[1].send_signal(signal.SIGTERM)  # one is enough: the ranks agree
    codes, outputs = ranks.finish()
    assert codes == [143] * 4, outputs
    saved = list((tmp_path / "checkpoints").glob("step-*/.metadata"))
    assert len(saved) == 1
    assert saved[0].parent.name == f"step-{max(losses(outputs[0]))}"


def test_a_rank_that_never_comes_is_named(start):
    ranks = start(3, "--steps", "5", "--peer-timeout", "1")
    ranks.processes[2].kill()
    codes, outputs = ranks.finish()
    assert codes[0] == 1
    assert codes[1] == 1
    assert "rank(s) [2] did not come within 1 s" in outputs[0] or "lost rank 2" in outputs[0]


def test_a_meeting_file_left_behind_does_no_harm(start, tmp_path):
    stale = {"host": "127.0.0.1", "port": 9, "secret": "old", "machine": os.uname().nodename}
    (tmp_path / ".charlm-1-0-0").write_text(json.dumps(stale))
    codes, outputs = start(3, "--steps", "3").finish()
    assert codes == [0, 0, 0], outputs


def test_an_unwritable_checkpoint_folder_ends_all_ranks_with_the_reason(start, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-5").write_text("in the way")
    codes, outputs = start(2, "--steps", "10", "--save-every", "5").finish()
    assert codes == [2, 2]
    assert "cannot save checkpoints/step-5" in outputs[0]
    assert "other rank(s) could not save" in outputs[1]


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--batch", "-3"], ["--steps", "many"], ["--batch", "1"]])
def test_bad_arguments_are_said(start, arguments):
    codes, outputs = start(2, *arguments).finish()
    assert codes == [2, 2]
    assert "Traceback" not in outputs[0]
    assert arguments[0] in outputs[0]


def test_the_job_scripts_parse_and_name_what_exists():
    for name in ("charlm", "torch_ddp"):
        script = EXAMPLE.parent / name / "job.sbatch"
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
        text = script.read_text()
        assert text.startswith("#!/bin/bash\n#SBATCH ")
        assert f"$EXAMPLES/{name}/train.py" in text


def test_the_charlm_script_runs_with_a_one_task_srun(tmp_path):
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"
    srun.write_text('#!/bin/sh\nexec "$@" --steps 2 --step-seconds 0\n')
    srun.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "QD_"))}
    environment |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "QD_EXAMPLES": str(EXAMPLE.parent)}
    done = subprocess.run(
        ["bash", str(EXAMPLE / "job.sbatch")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(losses(done.stdout)) == [1, 2]
