"""Names, labels and quantities."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.providers.kubernetes import quantities
from worker.providers.kubernetes.names import NAME_MAX, is_dns_label, label_value, object_name


def test_an_attempt_s_name_can_be_read_back():
    assert object_name("att_01jdz8k3v7q4n5t6x8y9z0abcd") == "qd-att-01jdz8k3v7q4n5t6x8y9z0abcd"


@given(st.text(min_size=1, max_size=100))
def test_every_uid_has_a_name_that_leaves_room_for_the_pods(uid):
    name = object_name(uid)

    assert is_dns_label(name)
    assert len(name) <= NAME_MAX
    assert len(f"{name}-node-0-9999-abcde") <= 63
    assert object_name(uid) == name


@given(st.lists(st.text("aA_-.0", min_size=1, max_size=60), unique=True, min_size=2, max_size=20))
def test_two_uids_share_no_name(uids):
    assert len({object_name(uid) for uid in uids}) == len(uids)


def test_no_uid_no_name():
    with pytest.raises(ValueError, match="uid"):
        object_name("")


@given(st.text(max_size=120))
def test_every_text_becomes_a_label(text):
    value = label_value(text)

    assert re.fullmatch(r"|[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?", value)
    assert label_value(value) == value


def test_a_label_that_is_one_stays():
    assert label_value("vision_2.a") == "vision_2.a"
    assert label_value("") == ""
    assert label_value("비전").isalnum()
    assert label_value("a b") != label_value("a_b")


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("1", 1),
        (8, 8),
        ("1500m", Fraction(3, 2)),
        ("2Gi", 2 << 30),
        ("1.5Ki", 1536),
        ("1e3", 1000),
        ("5k", 5000),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        ("-1", -1),
        (0.5, Fraction(1, 2)),
        ("3n", Fraction(3, 10**9)),
    ],
)
def test_quantities(written, number):
    assert quantities.parse(written) == number


@pytest.mark.parametrize("written", ["", "lots", "1 Gi", "1gi", None, True, [], "1e99999", "9" * 60, "1GiB"])
def test_no_quantities(written):
    with pytest.raises(ValueError, match="is no quantity"):
        quantities.parse(written)


def test_amounts_are_compared_and_rounded_up():
    assert quantities.same("1024Mi", "1Gi")
    assert quantities.same("1", 1)
    assert not quantities.same("1", "1k")
    assert quantities.milli(quantities.parse("1.0001")) == 1001
    assert quantities.mib(quantities.parse("1")) == 1
