"""Scripts of heterogeneous jobs: their parts, what a part takes over from the one before, what is refused by line."""

from __future__ import annotations

from typing import Any

import pytest

from apps.jobs.part_rules import Part, part_of, words_of_part
from apps.jobs.sbatch import SbatchReading, read_sbatch
from apps.jobs.sbatch_parts import read_part
from apps.jobs.sbatch_shape import completed


def read(*lines: str) -> SbatchReading:
    return read_sbatch("\n".join(["#!/bin/bash", *lines, "srun ./learn : ./act", "#SBATCH --nodes=99", ""]))


def parts(*lines: str) -> list[Part]:
    found = read(*lines)
    assert found.problems == []
    return [part_of(row) for row in found.fields["parts"]]


def test_each_part_has_its_own_size() -> None:
    found = read(
        "#SBATCH --job-name=rl --time=30 --nodes=2 --gpus-per-node=h100:8 --ntasks-per-node=8",
        "#SBATCH hetjob",
        "#SBATCH --nodes=1 --ntasks-per-node=16 --cpus-per-task=4 --gres=gpu:1 --partition=small --mem=64G",
        "#SBATCH hetjob",
        "#SBATCH -N3 --constraint=fast",
    )
    assert found.problems == []
    assert (found.fields["nodes"], found.fields["gpus_per_node"], found.fields["tasks_per_node"]) == (2, 8, 8)
    first, second = (part_of(row) for row in found.fields["parts"])
    assert first == Part(
        nodes=1,
        gpus_per_node=1,
        tasks_per_node=16,
        cpus_per_task=4,
        memory_per_node_mib=65_536,
        partition="small",
    )
    assert (second.nodes, second.gpus_per_node, second.slurm_options) == (3, 0, ("--constraint=fast",))
    assert second.memory_per_node_mib == 65_536, "memory is taken over from the part before"


def test_what_a_part_takes_over_and_what_begins_anew() -> None:
    (part,) = parts(
        "#SBATCH --nodes=2 --gres=gpu:8 --cpus-per-task=3 --partition=big --mem=32G --exclusive",
        "#SBATCH --time=30 --nice=7 --exclude=p5-4 --qos=fast --reservation=mine --signal=B:USR1@60 --mail-type=END",
        "#SBATCH hetjob",
        "#SBATCH --ntasks=1",
    )
    assert (part.nodes, part.gpus_per_node, part.cpus_per_task, part.partition) == (1, 0, 1, "")
    assert part.memory_per_node_mib == 32_768
    assert part.time_limit_min == 0, "the job's limit"
    assert sorted(part.slurm_options) == [
        "--exclude=p5-4",
        "--nice=7",
        "--ntasks=1",
        "--qos=fast",
        "--reservation=mine",
    ]


@pytest.mark.parametrize("word", ["#SBATCH hetjob", "#SBATCH packjob", "#SBATCH\thetjob", "#SBATCH   hetjob  # next"])
def test_the_words_that_part_them(word: str) -> None:
    assert len(parts("#SBATCH -N1 -t5", word, "#SBATCH -N2")) == 1


def test_a_part_without_a_line_is_a_part_all_the_same() -> None:
    assert parts("#SBATCH -N2 -t5", "#SBATCH hetjob", "#SBATCH hetjob") == [Part(), Part()]


def test_own_limits_and_names_are_kept() -> None:
    first, second = parts("#SBATCH -N1 -t30 -Ja", "#SBATCH hetjob", "#SBATCH -t10 -Jb", "#SBATCH hetjob", "#SBATCH -n1")
    assert (first.time_limit_min, first.name) == (10, "b")
    assert (second.time_limit_min, second.name) == (10, "b"), "taken over from the part before, not from the first"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["#SBATCH -N1", "#SBATCH hetjob", "#SBATCH --gres=gpu:many"], "line 4"),
        (["#SBATCH -N1", "#SBATCH hetjob", "#SBATCH --nodes=none"], "line 4"),
        (["#SBATCH -N1", "#SBATCH hetjobs"], "line 3"),
        (["#SBATCH -N1 --array=0-3", "#SBATCH hetjob", "#SBATCH -N1"], "line 2"),
        (["#SBATCH -N1", "#SBATCH hetjob", "#SBATCH --array=0-3"], "line 4"),
        (["#SBATCH -N1", *(["#SBATCH hetjob"] * 128)], "129 parts"),
    ],
)
def test_what_cannot_be_read_is_refused_by_line(lines: list[str], words: str) -> None:
    found = read(*lines)
    assert words in " ".join(p.detail for p in found.problems)


def test_what_stands_behind_the_word_is_said_not_to_be_read() -> None:
    found = read("#SBATCH -N1", "#SBATCH hetjob --nodes=9", "#SBATCH -n1")
    assert [p for p in found.remarks if "--nodes=9" in p and p.startswith("line 3")]
    assert part_of(found.fields["parts"][0]).nodes == 1


def test_variables_of_a_further_part_are_spoken_of() -> None:
    found = read("#SBATCH -N1", "#SBATCH hetjob", "#SBATCH --export=A=1")
    assert any("part 1" in remark for remark in found.remarks)
    assert "environment" not in found.fields


@pytest.mark.parametrize(
    "part",
    [
        Part(),
        Part(nodes=3, gpus_per_node=8, gpu_type="h100", tasks_per_node=8, cpus_per_task=12, partition="big"),
        Part(
            memory_per_node_mib=1000, time_limit_min=90, name="a b's", slurm_options=("--constraint='a&b'", "--nice=3")
        ),
    ],
)
def test_a_part_as_one_line_reads_back(part: Part) -> None:
    assert read_part(words_of_part(part)) == part


@pytest.mark.parametrize("text", ["--nodes=0", "nodes=1", "--array=0-3", "--uid=0", "--gres=gpu:x:y:z", '--comment="'])
def test_a_line_that_is_no_part(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        read_part(text)


def test_an_ordinary_script_has_no_parts() -> None:
    found: dict[str, Any] = completed(read("#SBATCH -N1 --gres=gpu:8")).fields
    assert "parts" not in found
