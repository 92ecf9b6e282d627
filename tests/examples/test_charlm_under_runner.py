"""The two together: the training example under the runner, with its ranks, as a job has it."""

from __future__ import annotations

import sys

from tests.runner.conftest import bench, recorder  # noqa: F401  (fixtures)

from .test_charlm import EXAMPLE

FOUR_RANKS = f"""
for rank in 0 1 2 3; do
  SLURM_PROCID=$rank SLURM_NTASKS=4 CHARLM_HOST=127.0.0.1 \
    {sys.executable} {EXAMPLE}/train.py --steps 30 --save-every 10 --step-seconds 0.06 &
  pids="$pids $!"
done
for pid in $pids; do wait $pid || exit 1; done
"""


def test_progress_and_checkpoints_of_a_whole_run(bench, recorder):  # noqa: F811
    code, stdout, stderr = bench.run("bash", "-c", FOUR_RANKS)
    assert (code, stderr) == (0, b"")
    assert recorder.text("stdout").encode() == stdout
    progress = recorder.kind("progress")
    assert progress[-1]["step"] == 30
    assert progress[-1]["total_steps"] == 30
    assert progress[-1]["loss"] < progress[0]["loss"]
    last = {data["step"]: data for data in recorder.kind("checkpoint")}
    assert sorted(last) == [10, 20, 30]
    for data in last.values():
        assert data["facts"]["dcp_metadata_ok"] is True
        assert data["facts"]["dcp_shards"] == 4
        assert data["facts"]["settled"] is True
        assert len(data["files"]) == 5
    assert recorder.kind("exit")[0]["code"] == 0
