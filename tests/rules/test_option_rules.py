"""Options with a field of their own: what each may be, and that field and option are the same thing."""

from __future__ import annotations

import pytest

from apps.jobs.option_rules import FIELDS, check_value, fields_of, pyxis_environment, with_fields
from apps.jobs.sbatch import check_options, kept_options, read_sbatch


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("begin", text) for text in ("now", "now+1hour", "now+30", "16:00", "4:30 PM", "tomorrow", "2030-01-31")),
        *(("begin", text) for text in ("2030-01-31T08:00", "01/31/30", "0131", "01/31-08:00", "now+2weeks")),
        *(("constraint", text) for text in ("h100", "h100&ib", "[rack1|rack2]", "[a*2&b*4]", "a,b", "(a|b)&c")),
        *(("licenses", text) for text in ("matlab", "matlab:2", "a@b:3,c", "a:1|b:2")),
        *(("nodelist", text) for text in ("p5-1", "p5-[1-4,7],gpu3", "r[1-2]n[1-3]")),
        *(("exclusive", text) for text in ("", "user", "topo")),
        ("reservation", "maint,maint2"),
        ("container-mounts", "/fsx:/fsx,/data:/data:ro"),
    ],
)
def test_what_slurm_takes_is_taken(name: str, value: str) -> None:
    check_value(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("begin", text) for text in ("later", "25:00", "2030-13-31", "now+2moons", "16:75")),
        *(("constraint", text) for text in ("[a", "a b", "h100;rm")),
        *(("licenses", text) for text in ("matlab:x", ",a")),
        *(("nodelist", text) for text in ("a,,b", "a[1", "/tmp/x", "a b")),
        ("exclusive", "all"),
        ("qos", "a b"),
        ("container-image", "a b"),
    ],
)
def test_what_it_does_not_take_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="."):
        check_value(name, value)


def test_a_field_is_another_way_to_write_its_option() -> None:
    lines = "#SBATCH -C 'a&b' -q high --begin=16:00 --exclusive=user -w p5-[1-2] -x p5-7 -L m:2 --reservation=r\n"
    lines += "#SBATCH --container-image=nvcr.io#nvidia/pytorch:25.10-py3 --container-mounts=/fsx:/fsx --wckey=k\n"
    reading = read_sbatch(f"#!/bin/bash\n{lines}true\n")
    assert reading.problems == []
    fields, others = fields_of(reading.options)
    assert set(fields) == set(FIELDS)
    assert (fields["constraint"], fields["exclusive"], others) == ("a&b", "user", ["--wckey=k"])
    back, problems = with_fields(others, fields)
    assert problems == {}
    assert sorted(back) == sorted(reading.options)
    assert check_options(back)[1] == []
    # The same said twice is one; another value is a problem at the field.
    assert with_fields(reading.options, fields) == (reading.options, {})
    assert list(with_fields(reading.options, {"qos": "low"})[1]) == ["qos"]


def test_whole_nodes_have_a_word() -> None:
    assert with_fields([], {"exclusive": "node"}) == (["--exclusive"], {})
    assert fields_of(["--exclusive"]) == ({"exclusive": "node"}, [])


def test_the_container_of_pyxis_is_told_by_its_variables() -> None:
    options, problems = check_options(
        ["--container-image=docker://a", "--no-container-mount-home", "--container-readonly"]
    )
    assert problems == []
    assert pyxis_environment([(o.name, o.value) for o in kept_options(options)]) == {
        "PYXIS_CONTAINER_IMAGE": "docker://a",
        "PYXIS_CONTAINER_MOUNT_HOME": "0",
        "PYXIS_CONTAINER_READONLY": "1",
    }
