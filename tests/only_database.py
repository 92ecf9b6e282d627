"""A pytest plugin for the run on PostgreSQL: keeps the tests that use the database, leaves the others out."""

from __future__ import annotations

import pytest

_FIXTURES = {"db", "transactional_db", "django_db_setup", "live_server", "django_db_serialized_rollback"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left = [], []
    for item in items:
        uses = item.get_closest_marker("django_db") or _FIXTURES & set(getattr(item, "fixturenames", ()))
        (kept if uses and not item.get_closest_marker("any_database") else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept
