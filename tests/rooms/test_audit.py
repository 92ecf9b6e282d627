"""The audit chain shows edits and removals."""

from __future__ import annotations

from typing import Any

import pytest

from apps.audit.models import Entry
from apps.audit.selectors import chain_check, entries_visible_to
from apps.audit.services import record, seal
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
