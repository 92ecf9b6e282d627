"""Node lists: ours and the sandbox's agree with each other and with Slurm's own examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.slurm import hostlists
from worker.providers.slurm import expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        (None, ()),
        ("(null)", ()),
        ("None assigned", ()),
        ("p5-1", ("p5-1",)),
        ("p5-[1-3]", ("p5-1", "p5-2", "p5-3")),
        ("p5-[1-2,7]", ("p5-1", "p5-2", "p5-7")),
        ("p5-[08-11]", ("p5-08", "p5-09", "p5-10", "p5-11")),
        ("a,b[1-2],c", ("a", "b1", "b2", "c")),
        ("rack[0-1]node[1-2]", ("rack0node1", "rack0node2", "rack1node1", "rack1node2")),
        ("rack[0,2]-x", ("rack0-x", "rack2-x")),
        ("ip-10-0-0-[12-13]", ("ip-10-0-0-12", "ip-10-0-0-13")),
    ],
)
def test_lists_are_expanded(text: str | None, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["p[1-", "p]1[", "p[3-1]", "p[a-c]", "p[1-99999999]", "p[[1]]", "a,,b", "p[]", "r[1-300]n[1-300]", ","]
)
def test_broken_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        expand(text)


name = st.builds(
    lambda prefix, number, width: f"{prefix}{str(number).zfill(width)}",
    st.from_regex(r"[a-z][a-z-]{0,5}", fullmatch=True),
    st.integers(0, 300),
    st.integers(0, 4),
)


@given(st.lists(name, min_size=1, max_size=40, unique=True))
def test_what_is_compressed_expands_to_the_same_names(names: list[str]) -> None:
    short = hostlists.compress(names)
    assert sorted(expand(short)) == sorted(names)
    assert sorted(hostlists.expand(short)) == sorted(names)


@given(st.text(alphabet="ab[],-019", max_size=30))
def test_any_text_gives_names_or_a_refusal(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert all(names)
    assert not any(character in one for one in names for character in "[],")


def test_neighbours_are_written_as_a_range() -> None:
    assert hostlists.compress(["p5-1", "p5-2", "p5-3", "p5-7"]) == "p5-[1-3,7]"
    assert hostlists.compress(["p5-2"]) == "p5-2"
    assert hostlists.compress(["x", "p09", "p10"]) == "x,p09,p10"
