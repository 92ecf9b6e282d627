"""Chromium as a person uses it: signed in, in a language, a theme and a width; what it complains about is kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = {"wide": (1440, 1000), "phone": (390, 844)}


def chromium() -> str:
    """Debian's Chromium, or empty."""
    return os.environ.get("QD_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""


@contextmanager
def browser() -> Iterator[Browser]:
    """One headless Chromium with a fresh profile."""
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium(), headless=True, args=FLAGS)
        try:
            yield found
        finally:
            found.close()


@dataclass
class Person:
    """A signed-in person's window. ``complaints`` collects console errors and failed requests."""

    context: BrowserContext
    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        """Go to a page of the portal and wait until it is quiet."""
        self.page.goto(f"{self.url}{path}", wait_until="load")

    def sideways(self) -> int:
        """How many pixels the page scrolls sideways: 0 on a page that fits."""
        return int(
            self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") or 0
        )


def person(
    found: Browser,
    url: str,
    *,
    user: str = "",
    password: str = "",
    language: str = "en",
    theme: str = "light",
    width: str = "wide",
) -> Person:
    """Open a window and sign in through the form."""
    size = WIDTHS[width]
    context = found.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if theme == "dark" else "light",
        locale="ko-KR" if language == "ko" else "en-US",
        bypass_csp=False,
        reduced_motion="reduce",
    )
    context.add_cookies([{"name": "django_language", "value": language, "url": url}])
    page = context.new_page()
    one = Person(context, page, url)
    page.on("console", lambda message: one.complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: one.complaints.append(str(error)))
    if user:
        sign_in(one, user, password)
    return one


def sign_in(one: Person, user: str, password: str) -> None:
    """Through the sign-in page."""
    one.open("/accounts/login/")
    one.page.fill("input[name=login]", user)
    one.page.fill("input[name=password]", password)
    one.page.click("form[action*=login] button[type=submit], main button[type=submit]")
    one.page.wait_for_load_state("load")


def axe(page: Page) -> list[dict[str, Any]]:
    """axe-core's violations on the page as it stands."""
    from axe_playwright_python.sync_playwright import Axe

    results = Axe().run(page, options={"resultTypes": ["violations"]})
    return [
        {"id": v["id"], "impact": v["impact"], "nodes": [n["html"][:160] for n in v["nodes"]][:5]}
        for v in results.response["violations"]
    ]
