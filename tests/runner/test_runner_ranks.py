"""One runner a rank: each rank's output in its own file and its own log, rank 0's in the job's output as ever."""

from __future__ import annotations

import pytest

CHATTER = (
    "import os, sys\nprint('rank', os.environ['SLURM_PROCID'])\nprint('step 3 loss=2.5')\nprint('odd', file=sys.stderr)"
)
SAID = "rank 3\nstep 3 loss=2.5\n"


@pytest.fixture
def ranked(bench, tmp_path):
    """Run the chatter as a rank: (code, stdout, the rank's own file or None)."""

    def run(rank: str, **environment: str) -> tuple[int, str, str | None]:
        folder = tmp_path / "ranks"
        told = {"SLURM_PROCID": rank, "QD_RANK_DIR": str(folder), **environment}
        code, stdout, _stderr = bench.python(CHATTER, role="rank", env=told)
        path = folder / f"rank-{int(rank):05d}.out"
        return code, stdout.decode(), path.read_text() if path.exists() else None

    return run


def test_a_rank_has_its_own_file_and_its_own_log(ranked, recorder):
    code, stdout, own = ranked("3")
    assert (code, stdout) == (0, "")
    assert own is not None
    # Two streams go into one file, and neither waits for the other's line to end.
    assert own.replace("odd", "", 1).replace("\n", "") == SAID.replace("\n", "")
    assert recorder.text("stdout") == SAID
    assert recorder.text("stderr") == "odd\n"
    assert {post["runner"]["rank"] for post in recorder.posts} == {3}
    assert {post["runner"]["role"] for post in recorder.posts} == {"rank"}
    # The curve of the job is rank 0's.
    assert recorder.kind("progress") == []
    assert recorder.kind("exit")[0]["code"] == 0


def test_rank_0_speaks_as_the_job(ranked, recorder):
    code, stdout, own = ranked("0")
    assert (code, own) == (0, None)
    assert stdout.startswith("rank 0\n")
    assert recorder.posts == []


@pytest.mark.parametrize(("ranks", "reported"), [("1-2", False), ("1-2,3", True), ("", True), ("2-9", True)])
def test_only_the_ranks_asked_for_are_reported(ranked, recorder, ranks, reported):
    _code, stdout, own = ranked("3", QD_RANKS=ranks)
    assert stdout == ""
    assert own is not None
    assert own.replace("odd", "", 1).replace("\n", "") == SAID.replace("\n", "")
    assert bool(recorder.posts) is reported


def test_without_a_folder_the_output_stays_in_the_jobs(ranked, recorder, tmp_path):
    (tmp_path / "ranks").write_text("a file where the folder should be")
    bad = tmp_path / "ranks" / "inside"
    code, stdout, _own = ranked("3", QD_RANK_DIR=str(bad))
    assert (code, stdout) == (0, SAID)
    assert recorder.posts == []


def test_the_portal_says_how_often(bench, recorder):
    recorder.next_post_s = 1.2
    code, _stdout, _stderr = bench.python(
        "import time\nfor i in range(40): print(i, flush=True); time.sleep(0.05)",
        env={"QD_POST_INTERVAL_S": "0.05"},
    )
    assert code == 0
    # 2 s of output: the first post, one or two more, and what is left at the end, instead of forty.
    assert len(recorder.posts) <= 6
    assert recorder.text("stdout") == "".join(f"{i}\n" for i in range(40))
