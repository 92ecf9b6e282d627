"""The audit chain shows edits and removals."""

from __future__ import annotations

from typing import Any

import pytest

from apps.audit import observations
from apps.audit.models import ChainMark, Entry
from apps.audit.observations import WHOLE_EVERY, chain_observe
from apps.audit.selectors import chain_check, chain_standing, entries_visible_to
from apps.audit.services import record, seal
from apps.core import clock
from apps.teams.permissions import system_actor
from tests.conftest import actor_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def chain(db: None) -> list[Entry]:
    for number in range(5):
        record(
            system_actor(), "thing.change", "thing", f"thing_{number}", before={"n": number}, after={"n": number + 1}
        )
    seal(limit=2)
    seal()
    return list(Entry.objects.order_by("sequence"))


def test_a_whole_chain(chain: list[Entry]) -> None:
    report = chain_check()
    assert (report.is_whole, report.checked) == (True, 5)
    assert seal() == 0


def test_an_edited_entry_breaks_it(chain: list[Entry]) -> None:
    Entry.objects.filter(pk=chain[2].pk).update(after={"n": 99})
    assert chain_check().broken_uid == chain[2].uid


def test_a_removed_entry_breaks_it(chain: list[Entry]) -> None:
    chain[2].delete()
    assert chain_check().broken_uid == chain[3].uid


def test_only_administrators_read_it(chain: list[Entry], admin: Any, operator: Any, owner: Any) -> None:
    assert entries_visible_to(actor_of(admin)).count() >= 5
    assert entries_visible_to(actor_of(operator)).count() == 0
    assert entries_visible_to(actor_of(owner)).count() == 0


def test_a_submit_leaves_who_and_the_request(job: Any) -> None:
    entry = Entry.objects.get(verb="job.submit")
    assert (entry.actor_name, entry.object_uid) == ("owner", job.uid)
    assert entry.after["usd_held"] == "110.080000"


def a_day_later() -> None:
    ChainMark.objects.filter(name=ChainMark.WHOLE).update(ended_at=clock.now() - WHOLE_EVERY)


def more(number: int) -> None:
    for each in range(number):
        record(system_actor(), "thing.change", "thing", f"more_{each}", after={"n": each})
    seal()


def test_the_end_is_followed_without_looking_back(
    chain: list[Entry], django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chain_standing().checked_at is None
    chain_observe()
    more(2)
    seen: list[int] = []
    real = observations.chain_walk
    monkeypatch.setattr(observations, "chain_walk", lambda at, digest, most: seen.append(at) or real(at, digest, most))
    with django_assert_max_num_queries(6):
        chain_observe()
    assert seen == [5], "only from the last mark, and nothing whole before a day has passed"
    standing = chain_standing()
    assert (standing.is_whole, standing.checked, standing.whole_checked) == (True, 7, 5)


def test_the_daily_walk_finds_what_was_edited_long_ago(chain: list[Entry]) -> None:
    chain_observe()
    Entry.objects.filter(pk=chain[1].pk).update(after={"n": 99})
    more(1)
    chain_observe()
    assert chain_standing().is_whole, "the walk along the end does not look back"
    a_day_later()
    chain_observe()
    standing = chain_standing()
    assert (standing.is_whole, standing.broken_sequence, standing.broken_uid) == (False, 2, chain[1].uid)
    more(1)
    chain_observe()
    assert not chain_standing().is_whole, "what is new does not clear it"
    Entry.objects.filter(pk=chain[1].pk).update(after={"n": 2})
    a_day_later()
    chain_observe()
    assert chain_standing().is_whole


def test_the_end_finds_what_was_edited_behind_its_mark(chain: list[Entry]) -> None:
    chain_observe()
    more(2)
    late = Entry.objects.get(sequence=7)
    Entry.objects.filter(pk=late.pk).update(actor_name="nobody")
    chain_observe()
    standing = chain_standing()
    assert (standing.is_whole, standing.broken_uid, standing.checked) == (False, late.uid, 6)


def test_a_chain_cut_off_at_its_end_shows(chain: list[Entry]) -> None:
    chain_observe()
    chain[4].delete()
    chain_observe()
    standing = chain_standing()
    assert (standing.is_whole, standing.broken_sequence, standing.broken_uid) == (False, 5, "")


def test_a_chain_computed_anew_from_an_edited_entry_shows(chain: list[Entry]) -> None:
    chain_observe()
    Entry.objects.filter(pk=chain[1].pk).update(after={"n": 99})
    Entry.objects.update(sequence=None, digest="")
    seal()
    assert chain_check().is_whole
    chain_observe()
    assert not chain_standing().is_whole, "the mark remembers the digest that was there"


def test_a_long_walk_goes_on_where_it_stopped(chain: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observations, "MOST", 2)
    for expected in (None, None, 5):
        chain_observe()
        assert chain_standing().whole_checked == (expected or 0)
    assert chain_standing().checked == 5
    Entry.objects.filter(pk=chain[3].pk).update(verb="thing.other")
    a_day_later()
    chain_observe()
    assert chain_standing().is_whole
    chain_observe()
    assert chain_standing().broken_uid == chain[3].uid
