"""#SBATCH lines as people write them: every directive ends in a field, a kept option, a remark or a problem."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from apps.jobs.option_rules import hosts_in
from apps.jobs.sbatch import (
    CLIENT,
    NAMES,
    OURS,
    SHORT,
    check_options,
    kept_options,
    read_sbatch,
    refused_by_release,
    words_of,
)
from apps.jobs.sbatch_shape import completed


def read(*lines: str) -> Any:
    return read_sbatch("#!/bin/bash\n" + "\n".join(f"#SBATCH {line}" for line in lines) + "\nsrun true\n")


@pytest.mark.parametrize(
    ("lines", "fields", "options"),
    [
        (["-N2 -n16"], {"nodes": 2, "tasks_per_node": 8}, []),
        (["-N 3", "-n 16"], {"nodes": 3, "tasks_per_node": 6}, ["--ntasks=16"]),
        (["--ntasks=4"], {"tasks_per_node": 4}, ["--ntasks=4"]),
        (["-N4", "-G 32"], {"nodes": 4, "gpus_per_node": 8, "gpu_type": ""}, []),
        (["-N2 --ntasks-per-node=8 --gpus-per-task=1"], None, ["--gpu-bind=per_task:1"]),
        (["--gres=gpu:h100:8,nvme:2"], {"gpu_type": "h100", "gpus_per_node": 8}, ["--gres=nvme:2"]),
        (["-C h100&ib", "--dependency afterok:12"], {}, ["--constraint='h100&ib'", "--dependency=afterok:12"]),
        (["-HO"], {}, ["--hold", "--overcommit"]),
        (["--exclusive", "--exclusive=user"], {}, ["--exclusive=user"]),
        (["-k --nice"], {}, ["--no-kill", "--nice"]),
        (["--export=ALL,A=1,B=x=y"], {"environment": {"A": "1", "B": "x=y"}}, []),
        (["--nodes=2-2"], {"nodes": 2}, []),
        (["--ntasks-per-nod=4"], {"tasks_per_node": 4}, []),
        (["--tasks-per-node=4"], {"tasks_per_node": 4}, []),
        (["--signal=B:USR1@120  # a minute"], {}, ["--signal=B:USR1@120"]),
        (['--comment="a # b" --mail-user=member@example.org'], {}, ["--mail-user=member@example.org"]),
    ],
)
def test_what_lines_become(lines: list[str], fields: dict[str, Any] | None, options: list[str]) -> None:
    found = read(*lines)
    assert found.problems == []
    assert found.options == options
    if fields is not None:
        assert {k: value for k, value in found.fields.items() if value != ""} == {
            k: value for k, value in fields.items() if value != ""
        }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-N3 -G 16", "does not divide by 3 nodes"),
        ("-a 9-0", "is no array"),
        ("--uid=0", "only root"),
        ("--nonsense", "Slurm has no option --nonsense"),
        ("-Z", "Slurm has no option -Z"),
        ("--ntasks-per=4", "can be several"),
        ("--hold=yes", "takes no value"),
        ("--wrap=true", "a script already"),
        ("--gpus-per-socket=4", "--gpus-per-node"),
    ],
)
def test_what_cannot_be_is_refused_by_line(line: str, words: str) -> None:
    found = read(line)
    assert len(found.problems) == 1
    assert found.problems[0].detail.startswith("line 2: ")
    assert words in found.problems[0].detail


def test_no_option_is_dropped_silently() -> None:
    for name in sorted(NAMES):
        found = read(f"--{name}=2") if name not in ("hold",) else read(f"--{name}")
        if found.problems and "takes no value" in found.problems[0].detail:
            found = read(f"--{name}")
        told = [*found.fields, *found.options, *found.remarks, *[p.detail for p in found.problems]]
        assert told, name
        if name in OURS | CLIENT:
            assert any(f"--{name} " in text for text in found.remarks), name


def test_every_letter_stands_for_an_option() -> None:
    assert set(SHORT.values()) <= NAMES


@pytest.mark.parametrize(
    ("script", "nodes"),
    [
        ("#!/bin/bash\r\n#SBATCH -N 2\r\ntrue\r\n", 2),
        ("\ufeff#!/bin/bash\n#SBATCH -N 2\n", 2),
        ("#SBATCH -N 2\n", 2),
        ("#!/bin/bash\n\n  # words\n#SBATCH -N 2\n", 2),
        ("#!/bin/bash\necho\n#SBATCH -N 2\n", None),
        ("#!/bin/bash\n ##SBATCH -N 2\n##SBATCH -N 3\n", None),
        ("#!/bin/bash\n  #SBATCH -N 2\n", None),
    ],
)
def test_which_lines_are_read(script: str, nodes: int | None) -> None:
    assert read_sbatch(script).fields.get("nodes") == nodes


def test_words() -> None:
    assert words_of("""-J "a b" --x='c d'e f\\ g # rest""") == ["-J", "a b", "--x=c de", "f g"]
    assert words_of('--comment=a#b ""') == ["--comment=a#b", ""]
    with pytest.raises(ValueError, match="quote"):
        words_of('-J "open')


def test_options_that_a_person_types() -> None:
    options, problems = check_options(["-C h100", "--qos high", "--qos=low", "--exclusive"])
    assert (options, problems) == (["--constraint=h100", "--qos=low", "--exclusive"], [])
    _options, problems = check_options(["--nodes=64", "--gres=gpu:8", "--tres-per-task=gres/gpu:1", "--output=x", "x"])
    assert [p.pointer for p in problems] == [f"/slurm_options/{i}" for i in range(5)]
    assert "field of its own" in problems[0].detail


@pytest.mark.parametrize(("text", "count"), [("", 0), ("a", 1), ("p5-[1-4,7],gpu3", 6), ("r[1-2]n[1-3]", 6)])
def test_hosts_are_counted(text: str, count: int) -> None:
    assert hosts_in(text) == count


@pytest.mark.parametrize("value", ['{"a": 1}', "a b", "it's", "a#b", "#c", "back\\slash", "h100&ib"])
def test_a_value_stays_as_it_is_however_often_it_is_read(value: str) -> None:
    once = read(f"--extra={shlex.quote(value)}").options
    again, problems = check_options(once)
    assert problems == []
    assert check_options(again)[0] == again == once
    assert [o.plain for o in kept_options(again)] == [f"--extra={value}"]


@pytest.mark.parametrize(
    ("lines", "nodes", "gpus"),
    [
        (["-G 16"], 2, 8),
        (["-G 12"], 2, 6),
        (["-G 8"], 1, 8),
        (["-n 16 --gpus-per-task=1"], 2, 8),
        (["-n 24 --ntasks-per-node=8", "--gpus-per-node=8"], 3, 8),
        (["--gpus=32 --gpus-per-node=4"], 8, 4),
        (["--nodes=2-4", "--gpus-per-node=8"], 4, 8),
        (["--exclusive -N2"], 2, 0),
        (["-c 32"], 1, 0),
    ],
)
def test_what_is_left_unsaid_is_told_from_the_rest(lines: list[str], nodes: int, gpus: int) -> None:
    script = "#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines)
    reading = completed(read_sbatch(script))
    assert reading.problems == []
    assert (reading.fields["nodes"], reading.fields["gpus_per_node"]) == (nodes, gpus)
    assert reading.fields["time_limit_min"] == 24 * 60
    assert any("time limit" in remark for remark in reading.remarks)


def test_gpus_by_socket_count_by_node() -> None:
    reading = read_sbatch("#!/bin/bash\n#SBATCH --sockets-per-node=2 --gpus-per-socket=h100:4 -N1\n")
    assert (reading.fields["gpu_type"], reading.fields["gpus_per_node"]) == ("h100", 8)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["--mem=1G", "--mem-per-cpu=1G"], "line 3: --mem-per-cpu and --mem exclude each other"),
        (["--mem-per-gpu=1G", "-G 8", "--mem=0"], "line 4: --mem and --mem-per-gpu exclude each other"),
        (["--ntasks-per-node=2", "--ntasks-per-gpu=1", "--gres=gpu:2"], "exclude each other"),
        (["-c 4", "--cpus-per-gpu=8", "-G 8"], "--cpus-per-gpu and --cpus-per-task exclude each other"),
        (["--gpus-per-task=2"], "line 2: --gpus-per-task counts by tasks"),
        (["--gpus-per-task=2", "-N 1-2"], "line 2: --gpus-per-task counts by tasks"),
        (["--tres-per-task=gres/gpu:2"], "line 2: --tres-per-task counts by tasks"),
        (["--gres=gpu:h100:4", "-G 8"], "line 3: --gres and --gpus: one names a type of GPU, the other none"),
        (["--gres=gpu:4", "--gpus-per-node=h100:4"], "--gres and --gpus-per-node: one names a type"),
    ],
)
def test_options_that_exclude_each_other(lines: list[str], words: str) -> None:
    problems = read(*lines).problems
    assert any(words in problem.detail for problem in problems), problems


@pytest.mark.parametrize(
    "lines",
    [
        ["--gpus-per-task=1", "-n 8"],
        ["--gres=gpu:h100:8", "--gpus=h100:8"],
        ["--gres=gpu:8,nvme:1", "-G 8"],
        ["--gres=nvme:1", "--gpus-per-node=h100:8"],
        ["--mem=0", "-c 4"],
    ],
)
def test_options_that_go_together(lines: list[str]) -> None:
    assert read(*lines).problems == []


def test_what_only_some_releases_refuse() -> None:
    both = "#!/bin/sh\n#SBATCH --gres=gpu:8\n#SBATCH --gpus-per-node=8\n"
    (problem,) = refused_by_release(both, "26.05.5")
    assert "line 3: Slurm 26.05.5 takes --gpus-per-node or --gres=gpu, not both" in problem.detail
    assert not refused_by_release(both, "24.11.5")
    assert not refused_by_release(both, "")
    by_task = "#!/bin/sh\n#SBATCH --ntasks-per-node=4 --gpus-per-task=2\n"
    assert read_sbatch(by_task).problems == refused_by_release(by_task, "22.05.8") == []
    (problem,) = refused_by_release(by_task, "24.11.5")
    assert "--gpus-per-task counts by tasks" in problem.detail
    for lines, release, words in (
        ("--exclusive --oversubscribe", "24.11.5", "--oversubscribe and --exclusive exclude each other"),
        ("--ntasks-per-node=2 -G 16", "26.05.5", "looks for these GPUs on one node"),
    ):
        script = f"#!/bin/sh\n#SBATCH {lines}\n"
        assert not refused_by_release(script, "22.05.8")
        (problem,) = refused_by_release(script, release)
        assert words in problem.detail
    (problem,) = refused_by_release("#!/bin/sh\n#SBATCH -n 2 --tres-per-task=gres/gpu:1\n", "22.05.8")
    assert "has no option --tres-per-task" in problem.detail


def test_a_batch_script_begins_with_its_interpreter() -> None:
    (problem,) = read_sbatch("# first\n#!/bin/bash\n#SBATCH -N 2\n").problems
    assert "line 1: a batch script begins with #!" in problem.detail
    assert read_sbatch("# first\nsrun x\n").problems == [], "lines of a shell are no batch script"


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        (["-n 8", "--ntasks-per-gpu=1"], {"nodes": 1, "gpus_per_node": 8}),
        (["-n 16", "--ntasks-per-gpu=1"], {"nodes": 2, "gpus_per_node": 8}),
        (
            ["-n 4", "--tres-per-task=cpu:8,gres/gpu:h100:2"],
            {"gpus_per_node": 8, "gpu_type": "h100"},
        ),
        (["-n 400"], {"nodes": 3}),
        (["-n 400", "--ntasks-per-core=1"], {"nodes": 5}),
        (["-n 384", "--gpus-per-node=8"], {"nodes": 2, "gpus_per_node": 8}),
        (["-n 4", "--ntasks-per-socket=1"], {"nodes": 2}),
        (["-n 40", "-c 10"], {"nodes": 3}),
    ],
)
def test_tasks_tell_nodes_and_gpus(lines: list[str], fields: dict[str, Any]) -> None:
    reading = read(*lines)
    assert reading.problems == []
    got = {"nodes": 1, **reading.fields}
    assert {name: got.get(name) for name in fields} == fields
