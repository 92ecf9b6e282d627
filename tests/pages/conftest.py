"""One demo site for all tests of a module, rolled back afterwards; signed-in clients by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client

from tests.demo_rows import DemoRows, demo_rows


@pytest.fixture(scope="module")
def site(django_db_setup: None, django_db_blocker: Any) -> Iterator[DemoRows]:
    """The demo rows, inside a transaction around the whole module: every test's own is a savepoint in it."""
    from django.db import transaction

    with django_db_blocker.unblock():
        whole = transaction.atomic()
        whole.__enter__()
        try:
            yield demo_rows()
        finally:
            transaction.set_rollback(True)
            whole.__exit__(None, None, None)


@pytest.fixture
def sign_in(site: DemoRows, db: None) -> Callable[[str], Client]:
    """A client signed in as one of the site's people; ``anonymous`` is nobody."""

    def make(name: str, language: str = "en") -> Client:
        client = Client()
        client.cookies["django_language"] = language
        if name != "anonymous":
            client.force_login(site.users[name], backend="django.contrib.auth.backends.ModelBackend")
        return client

    return make


@pytest.fixture(scope="module")
def more(site: DemoRows, django_db_blocker: Any) -> DemoRows:
    """The demo site with what the pages of capacity, health, money and admin show besides."""
    from tests.demo_more import demo_more

    with django_db_blocker.unblock():
        return demo_more(site)
