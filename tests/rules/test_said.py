"""Stored sentences: kept as template and facts, read in the reader's language, harmless whatever is in them."""

from __future__ import annotations

import json
import pickle

import pytest
from django.utils import translation

from apps.core.said import Said, SaidField, SaidJSONField, brief, pack, said, told, unpack


def test_it_is_english_text_that_renders_in_the_language_in_force() -> None:
    text = said("%(n)s of %(all)s machines run", n=3, all=4)
    assert text == "3 of 4 machines run"
    assert text.partition(" of ")[0] == "3"
    with translation.override("ko"):
        assert str(text) == "머신 4대 중 3대 실행 중"
        assert f"{text}!" == "머신 4대 중 3대 실행 중!"
        assert "%s" % text == str(text)  # noqa: UP031
        # What is compared, searched and logged stays English.
        assert text == "3 of 4 machines run"


def test_a_fact_may_be_said_itself() -> None:
    with translation.override("ko"):
        text = said("it was complete and now: %(reason)s", reason=said(".metadata is empty"))
        assert text == "it was complete and now: .metadata is empty"
        assert str(text) == "완료였으나 지금은: .metadata가 비어 있음"


def test_it_survives_its_column_pickle_and_json() -> None:
    text = said("%(one)s is part of %(other)s", one=said("GPU missing from the bus"), other="XID 79")
    field = SaidField()
    stored = field.get_prep_value(text)
    assert type(stored) is str
    for back in (field.from_db_value(stored, None, None), pickle.loads(pickle.dumps(text)), unpack(pack(text))):  # noqa: S301
        assert isinstance(back, Said)
        assert back == text
        with translation.override("ko"):
            assert str(back) == "다음 이상에 합침: 버스에서 GPU가 보이지 않음 → XID 79"
    assert unpack(json.loads(json.dumps(pack({"checks": [{"detail": text}]}))))["checks"][0]["detail"] == text
    with translation.override("ko"):
        assert "XID 79" in told({"a": [text]})["a"][0]
    assert SaidJSONField().description


@pytest.mark.parametrize("plain", ["", "AWS said no", '{"say":', '{"say": 1}', '{"say":"x"}', '{"say":"x","with":[]}'])
def test_plain_text_goes_through(plain: str) -> None:
    field = SaidField()
    assert field.from_db_value(field.get_prep_value(plain), None, None) == plain


def test_no_stored_template_can_raise_or_grow() -> None:
    assert said("%(n)09999999d %(gone)s 100% %%", n=1) == "%(n)09999999d %(gone)s 100% %"
    assert said("") == ""
    assert str(said("")) == ""


def test_only_plain_text_is_cut() -> None:
    long = said("%(error)s; trying with a new token", error="x" * 900)
    assert brief(long, 500) is long
    assert brief("x" * 900, 500) == "x" * 500
