"""Options of sbatch on real Slurm: what one does to a job sent by REST is what sbatch itself makes of it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.jobs.sbatch import NAMES, kept_options, read_sbatch
from tests.contract.scheduler_site import until
from tests.contract.test_scheduler_real import needs
from tests.labs import RealSlurm, real_slurm_lab
from worker.providers import errors
from worker.providers import values as v

pytestmark = [pytest.mark.contract, pytest.mark.real_slurm]

#: What differs between any two jobs.
DIFFERS = frozenset(
    """JobId SubmitTime EligibleTime AccrueTime StartTime EndTime LastSchedEval Priority SubmitLine RunTime
    Scheduler StdErr StdOut Command""".split()  # noqa: SIM905
)
OPTIONS = (
    "--account=default",
    "--constraint=p5",
    "--contiguous",
    "--cores-per-socket=8",
    "--cpus-per-gpu=4",
    "--dependency=singleton",
    "--distribution=cyclic",
    "--exclude=p5-2",
    "--exclusive",
    "--exclusive=user",
    "--extra-node-info=2:8",
    "--gpu-bind=closest",
    "--hint=nomultithread",
    "--input=/dev/null",
    "--kill-on-invalid-dep=yes",
    "--licenses=",
    "--mail-type=END,FAIL --mail-user=member@example.org",
    "--mem-per-cpu=1G",
    "--mem-per-gpu=16G",
    "--mincpus=8",
    "--nice=50",
    "--no-kill",
    "--nodelist=p5-1",
    "--ntasks-per-socket=2",
    "--overcommit",
    "--oversubscribe",
    "--prefer=p5",
    "--signal=B:USR1@120",
    "--signal=TERM",
    "--sockets-per-node=2",
    "--spread-job",
    "--switches=1@30",
    "--threads-per-core=1",
    "--time-min=5",
    "--tmp=100",
    "--tres-per-task=cpu:2",
    "--use-min-nodes",
    "--wait-all-nodes=1",
    "--wckey=k",
)


class OptionsContract:
    """Told for each release: what its REST has no member for."""

    cannot: frozenset[str] = frozenset()
    #: What its REST has no member for and the script or its environment does: held by tests of their own.
    by_script: frozenset[str] = frozenset()
    #: What its sbatch does not know yet.
    unknown: frozenset[str] = frozenset()

    @pytest.fixture(scope="class")
    @classmethod
    def plain(cls, lab: RealSlurm) -> tuple[dict[str, str], dict[str, str]]:
        """The same job without any option, by sbatch and by REST."""
        return by_sbatch(lab, ""), by_rest(lab, "")

    @pytest.mark.parametrize("option", [o for o in OPTIONS if not o.endswith("=")])
    def test_an_option_does_what_it_does_in_sbatch(
        self, lab: RealSlurm, plain: tuple[dict[str, str], dict[str, str]], option: str
    ) -> None:
        name = option.partition("=")[0].split()[0]
        if name in self.unknown:
            with pytest.raises(errors.InvalidRequest, match=f"cannot do {name}"):
                by_rest(lab, option)
            return
        wanted = changes(plain[0], by_sbatch(lab, option))
        if option in self.by_script:
            assert changes(plain[1], by_rest(lab, option)) == {}
            return
        if {name, option} & self.cannot:
            with pytest.raises(errors.InvalidRequest, match=f"cannot do {name}"):
                by_rest(lab, option)
            return
        assert changes(plain[1], by_rest(lab, option)) == wanted

    def test_a_warning_reaches_the_batch_script(self, lab: RealSlurm) -> None:
        """By Slurm where REST has the member, by the script itself where it has not."""
        work = Path(str(lab.description["work_dir"]))
        script = "#!/bin/bash\ntrap 'echo warned > warned.txt' USR1\nfor i in $(seq 40); do sleep 1; done\n"
        scheduler = lab.scheduler()
        request = request_of(work, script, "--signal=B:USR1@55")
        job = scheduler.submit(request).scheduler_id
        until("the warning", (work / "warned.txt").exists, 40)
        assert scheduler.job(job).state == "RUNNING"
        scheduler.cancel(job)
        (work / "warned.txt").unlink()

    def test_every_option_that_sbatch_tells_of_is_known(self, lab: RealSlurm) -> None:
        text = sbatch(lab, "--help")
        told = set(re.findall(r"^\s+(?:-\w, |\s+)--([a-z][a-z-]+)", text, re.MULTILINE))
        assert len(told) > 60
        assert told - NAMES == set()


def request_of(work: Path, script: str, option: str) -> v.SubmitRequest:
    """A job of one task on one CPU of one node."""
    return v.SubmitRequest(
        script=script,
        name="option",
        comment="",
        partition="",
        nodes=1,
        gpus_per_node=1,
        gpu_type="",
        tasks_per_node=1,
        cpus_per_task=1,
        memory_per_node_mib=0,
        time_limit_min=1,
        working_directory=str(work),
        environment={"PATH": "/usr/bin:/bin"},
        options=(option,) if option else (),
    )


def script_of(option: str) -> str:
    head = "#!/bin/sh\n#SBATCH -N1 --ntasks-per-node=1 -t 10 --gpus-per-node=8 -H\n"
    return f"{head}#SBATCH {option}\nsleep 1\n" if option else f"{head}sleep 1\n"


def by_sbatch(lab: RealSlurm, option: str) -> dict[str, str]:
    path = Path(str(lab.description["work_dir"]), "options.sh")
    path.write_text(script_of(option))
    return shown(lab, sbatch(lab, "--parsable", "-D", str(path.parent), str(path)))


def by_rest(lab: RealSlurm, option: str) -> dict[str, str]:
    reading = read_sbatch(script_of(option))
    assert reading.problems == []
    request = v.SubmitRequest(
        script=script_of(option),
        name="options.sh",
        comment="",
        partition="",
        nodes=reading.fields["nodes"],
        gpus_per_node=reading.fields["gpus_per_node"],
        gpu_type="",
        tasks_per_node=1,
        cpus_per_task=1,
        memory_per_node_mib=0,
        time_limit_min=reading.fields["time_limit_min"],
        working_directory=str(lab.description["work_dir"]),
        environment={},
        options=tuple(o.plain for o in kept_options(reading.options)),
    )
    return shown(lab, lab.scheduler().submit(request).scheduler_id)


def changes(plain: dict[str, str], other: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    names = plain.keys() | other.keys()
    return {n: (plain.get(n), other.get(n)) for n in sorted(names) if plain.get(n) != other.get(n)}


def sbatch(lab: RealSlurm, *words: str) -> str:
    user = lab.description["user"]
    # Root submits for somebody; a release of its own folder has no other way in.
    command = [*lab.description["sbatch"], f"--uid={user}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def shown(lab: RealSlurm, job: str) -> dict[str, str]:
    """What scontrol says of a job, which then goes."""
    words = [*lab.scontrol, "-o", "show", "job", job]
    text = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
    lab.scheduler().cancel(job)
    pairs = (word.partition("=") for word in text.split())
    return {name: value for name, _equals, value in pairs if name not in DIFFERS}


@needs("22.05")
class TestOptions2205(OptionsContract):
    cannot = frozenset({"--switches", "--contiguous"})
    by_script = frozenset({"--signal=B:USR1@120", "--overcommit"})
    unknown = frozenset({"--tres-per-task"})

    @pytest.fixture(scope="class")
    @classmethod
    def lab(cls) -> Iterator[RealSlurm]:
        with real_slurm_lab(nodes=2) as lab:
            yield lab

    def test_more_tasks_than_cpus_run_in_a_step(self, lab: RealSlurm) -> None:
        """What REST has no member for here reaches the steps by their environment; without it they are refused."""
        work, scheduler = Path(str(lab.description["work_dir"])), lab.scheduler()
        told = {}
        for option in ("", "--overcommit"):
            script = "#!/bin/bash\nsrun --immediate=5 -n 3 echo ran > over.out 2>&1\nmv over.out over.txt\nsleep 60\n"
            job = scheduler.submit(request_of(work, script, option)).scheduler_id
            until("the step to end", (work / "over.txt").exists, 40)
            told[option] = (work / "over.txt").read_text().splitlines().count("ran")
            scheduler.cancel(job)
            (work / "over.txt").unlink()
        assert told == {"": 0, "--overcommit": 3}


@needs("24.11")
class TestOptions2411(OptionsContract):
    cannot = frozenset({"--cores-per-socket", "--extra-node-info"})

    @pytest.fixture(scope="class")
    @classmethod
    def lab(cls) -> Iterator[RealSlurm]:
        with real_slurm_lab(nodes=2, release="24.11") as lab:
            yield lab


@needs("26.05")
class TestOptions2605(OptionsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def lab(cls) -> Iterator[RealSlurm]:
        with real_slurm_lab(nodes=2, release="26.05", user="games") as lab:
            yield lab
