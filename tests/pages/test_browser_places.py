"""Capacity, health, money and admin in a real browser: the strict policy, axe, phone width, and their live parts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser_kit import axe, browser, chromium, person
from tests.demo_more import demo_more
from tests.demo_rows import PASSWORD, demo_rows
from tests.pages.places import FILES, FRAGMENTS, PLACES, address

pytestmark = [pytest.mark.browser, pytest.mark.skipif(not chromium(), reason="needs Chromium")]
# Playwright keeps an event loop in this thread; Django would take our plain ORM calls for async ones.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    with browser() as found:
        yield found


def paths(rows: Any) -> list[str]:
    # The forms of adoption differ in one field's help.
    alike = {("cluster-adopt", about) for name, about, _who in PLACES if name == "cluster-adopt"}
    alike -= {("cluster-adopt", "kind:pcs")}
    wanted = [(name, about) for name, about, _who in PLACES if name not in FRAGMENTS | FILES]
    pages = [address(rows, name, about) for name, about in wanted if (name, about) not in alike]
    more = ["/quotas?edit=nlp", "/health?metric=temperature", "/catalog/compare?type=p5.48xlarge&type=p6-b300.48xlarge"]
    return [*pages, *more, f"/fleets/{rows.fleets['p5-burst'].uid}", "/admin/", "/admin/quotas/quota/"]


@pytest.mark.django_db(transaction=True)
def test_places_in_a_browser(window: Any, live_server: Any) -> None:
    """One seeded site, walked by an administrator and an operator; the parts stand below as functions."""
    rows = demo_more(demo_rows())
    every_page_is_sound(window, live_server.url, rows)
    tiles_fill_their_rows(window, live_server.url, rows)
    parts_of_upper_floors_arrive(window, live_server.url, rows)
    a_fleet_is_launched_with_its_price_on_the_button(window, live_server.url, rows)
    plans_follow_what_is_typed(window, live_server.url, rows)
    nodes_are_chosen_and_replaced(window, live_server.url, rows)
    destruction_takes_the_typed_name(window, live_server.url, rows)
    steps_move_without_a_reload(window, live_server.url, rows)


def every_page_is_sound(window: Any, origin: str, rows: Any) -> None:
    """No complaint, no sideways scroll, nothing for axe; each page is opened once a view."""
    for width, theme in (("wide", "light"), ("wide", "dark"), ("phone", "light")):
        visitor = person(window, origin, user="admin", password=PASSWORD, width=width, theme=theme)
        for path in paths(rows):
            visitor.open(path)
            visitor.page.wait_for_timeout(300)
            assert visitor.complaints == [], f"{path}, {width}, {theme}"
            assert visitor.sideways() <= 0, f"{path}, {width}, {theme}"
            if width == "wide":
                assert axe(visitor.page) == [], f"{path}, {theme}"
                visitor.complaints.clear()  # of axe's own script, which the policy does not know
        visitor.context.close()


#: Of each row of tiles: how many, and how far the row is from the frame's width.
ROWS = """() => {
    const frame = document.querySelector(".stats"), rows = new Map();
    for (const tile of frame.children) {
        const at = tile.getBoundingClientRect();
        rows.set(at.top, [...(rows.get(at.top) || []), at.width]);
    }
    const sum = (widths) => widths.reduce((a, b) => a + b, 0);
    return [...rows.values()].map((widths) => [widths.length, Math.abs(sum(widths) - frame.clientWidth)]);
}"""


def tiles_fill_their_rows(window: Any, origin: str, rows: Any) -> None:
    visitor = person(window, origin, user="admin", password=PASSWORD)
    for path in ("/costs", f"/jobs/{rows.jobs['llama-70b-pretrain'].uid}"):
        for width in (1024, 1152, 1280, 1366, 1440):
            visitor.page.set_viewport_size({"width": width, "height": 900})
            visitor.open(path)
            found = visitor.page.evaluate(ROWS)
            assert found, path
            for number, gap in found:
                assert number > 1, f"{path}, {width}: a tile stands alone in {found}"
                assert gap < 12, f"{path}, {width}: a row does not fill the frame in {found}"
    visitor.context.close()


def parts_of_upper_floors_arrive(window: Any, origin: str, rows: Any) -> None:
    visitor = person(window, origin, user="operator", password=PASSWORD)
    page = visitor.page
    visitor.open(f"/clusters/{rows.clusters['ada'].uid}")
    page.wait_for_selector("#node-cards >> text=p5-main-8")
    page.wait_for_selector("#live-jobs >> text=llama-70b-pretrain")
    page.locator("#node-cards").get_by_text("p5-main-8").click()
    page.wait_for_url(f"{origin}/nodes/{rows.nodes['p5-main-8'].uid}")
    visitor.open("/health")
    page.locator(".heat a").first.click()
    page.wait_for_url(f"{origin}/nodes/*")
    assert visitor.complaints == []
    visitor.context.close()


def a_fleet_is_launched_with_its_price_on_the_button(window: Any, origin: str, rows: Any) -> None:
    from apps.clusters.models import Fleet

    visitor = person(window, origin, user="operator", password=PASSWORD)
    page = visitor.page
    visitor.open(f"/clusters/{rows.clusters['ada'].uid}/fleets/new")
    page.fill("#id_name", "p5-new")
    page.select_option("#id_instance_type", "p5.48xlarge")
    page.fill("#id_nodes", "3")
    page.wait_for_selector("#plan >> text=Launch for $165.12/h")
    page.get_by_role("button", name="Launch for").dblclick()
    page.wait_for_url(f"{origin}/fleets/*")
    assert Fleet.objects.filter(name="p5-new").count() == 1
    assert "3 × p5.48xlarge" in page.inner_text(".sentence")
    assert visitor.complaints == []
    visitor.context.close()


def plans_follow_what_is_typed(window: Any, origin: str, rows: Any) -> None:
    """Also while fields that must be filled in are still empty."""
    page = person(window, origin, user="operator", password=PASSWORD)
    for where, field, value, words in (
        (f"/clusters/{rows.clusters['ada'].uid}/fleets/new", "#id_nodes", "24", "192 (24"),
        ("/clusters/new/pcs", "#id_group-nodes", "64", "the smallest that fits is MEDIUM"),
        (f"/clusters/{rows.clusters['shannon'].uid}/groups/new", "#id_nodes", "24", "24 × g6e.48xlarge"),
        ("/storage/new", "#id_capacity_gib", "38400", "38,400 GiB"),
    ):
        page.open(where)
        page.page.fill(field, value)
        page.page.wait_for_function("words => document.querySelector('#plan').innerText.includes(words)", arg=words)
        assert page.complaints == [], where
    page.context.close()


def nodes_are_chosen_and_replaced(window: Any, origin: str, rows: Any) -> None:
    """Ticked on the cluster's page, explained, asked for with a reason, seen among the requests."""
    visitor = person(window, origin, user="operator", password=PASSWORD)
    visitor.open(f"/clusters/{rows.clusters['lovelace'].uid}")
    page = visitor.page
    page.locator("input[name=node]").nth(2).check()
    page.locator("input[name=node]").nth(3).check()
    page.locator("button[value=reboot]").click()
    page.wait_for_selector("h1:has-text('Reboot nodes')")
    page.fill("#id_reason", "stuck on NFS")
    page.click("button:has-text('Reboot 2 nodes')")
    page.wait_for_selector("#cluster-live td:has-text('stuck on NFS')")
    assert page.locator("#cluster-live td:has-text('stuck on NFS')").count() == 2
    assert visitor.complaints == []
    visitor.context.close()


def destruction_takes_the_typed_name(window: Any, origin: str, rows: Any) -> None:
    from apps.clusters.models import Fleet

    visitor = person(window, origin, user="operator", password=PASSWORD, width="phone")
    page = visitor.page
    visitor.open(f"/fleets/{rows.fleets['p5en-eval'].uid}")
    page.get_by_role("button", name="Delete…").click()
    button = page.get_by_role("button", name="Delete the fleet")
    assert button.is_disabled()
    page.fill("#typed", "p5en")
    assert button.is_disabled()
    page.fill("#typed", "p5en-eval")
    button.click()
    page.wait_for_selector("text=p5en-eval is being deleted.")
    assert Fleet.objects.get(name="p5en-eval").delete_requested_at is not None
    assert visitor.complaints == []
    visitor.context.close()


def steps_move_without_a_reload(window: Any, origin: str, rows: Any) -> None:
    from apps.clusters.models import Fleet
    from apps.clusters.observations import fleet_move

    visitor = person(window, origin, user="operator", password=PASSWORD)
    page = visitor.page
    fleet = Fleet.objects.get(name="p5-new")
    visitor.open(f"/fleets/{fleet.uid}")
    fleet_move(fleet, "PREFLIGHT", "looking at the subnet")
    page.wait_for_selector("text=looking at the subnet", timeout=10_000)
    assert visitor.complaints == []
    visitor.context.close()
