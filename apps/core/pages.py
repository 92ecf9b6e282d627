"""Base classes of pages: a page without a declared right cannot be written, let alone reached."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import urlsplit

import structlog
from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views import View

from apps.core.actors import actor_of
from apps.core.errors import Elsewhere, Forbidden, NotFound, Refusal
from apps.core.models import IdempotencyRecord

log = structlog.get_logger(__name__)

#: Rights that everyone who is signed in holds, and that nobody needs.
SIGNED_IN = "signed-in"
PUBLIC = "public"


def error_page(request: HttpRequest, status: int, title: str, detail: str) -> HttpResponse:
    """An error as a page, or as an inline notice when htmx asked."""
    template = "error.html#notice" if getattr(request, "htmx", False) else "error.html"
    context = {
        "status": status,
        "title": title,
        "detail": detail,
        "request_id": getattr(request, "request_id", ""),
        # When our side is broken the frame, which reads the database, must not break the answer too.
        "bare": status >= 500,
    }
    response = render(request, template, context, status=status)
    if getattr(request, "htmx", False):
        response["HX-Retarget"] = "#notices"
        response["HX-Reswap"] = "innerHTML"
    return response


def refusal_page(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    """A refusal in a person's words."""
    titles = {
        403: _("You may not do this"),
        404: _("Not found"),
        400: _("The address holds something unknown"),
        409: _("Not possible right now"),
        412: _("Someone else changed this meanwhile"),
        422: _("Please correct the input"),
    }
    return error_page(request, refusal.status, titles.get(refusal.status, _("Declined")), refusal.detail)


def sign_in_first(request: HttpRequest) -> HttpResponse:
    """To the sign-in page and back; a fragment sends the whole page there instead of showing it inside itself."""
    if getattr(request, "htmx", False):
        back = urlsplit(request.headers.get("HX-Current-URL", "")).path or "/"
        response = HttpResponse(status=204)
        response["HX-Redirect"] = redirect_to_login(back).url
        return response
    return redirect_to_login(request.get_full_path())


class Page(View):
    """A page: declares ``right`` (a right's name, SIGNED_IN or PUBLIC) and answers refusals in words."""

    right: ClassVar[str] = ""
    #: A teams.permissions.Actor, which core may not name.
    actor: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse at import time to define a page that forgot its right."""
        super().__init_subclass__(**kwargs)
        if not cls.right and not cls.__dict__.get("abstract", False):
            raise TypeError(f"{cls.__module__}.{cls.__qualname__} declares no right")

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Check the right, answer, and turn refusals into pages."""
        self.actor = actor_of(request)
        if self.right != PUBLIC:
            if not self.actor.is_known:
                return sign_in_first(request)
            if self.right != SIGNED_IN and not self.actor.holds(self.right):
                return refusal_page(request, Forbidden(_("Your roles do not include this. A team lead or admin can.")))
        try:
            return super().dispatch(request, *args, **kwargs)
        except Elsewhere as found:
            return HttpResponseRedirect(found.address)
        except Refusal as refusal:
            log.info("refused", code=refusal.code, detail=refusal.detail, status=refusal.status)
            return refusal_page(request, refusal)

    def say(self, text: str) -> None:
        """Leave a short confirmation for the next page."""
        messages.success(self.request, text)


def once(request: HttpRequest, key: str, effect: Callable[[], str]) -> str:
    """Run ``effect`` once for a form that carries ``key``; it returns the address to go to.

    A second click sends the same key and the same input and gets the first one's address. The same
    key with other input (back, edit, send) is a new request. The record is written in the effect's
    own transaction; a refusal leaves nothing behind.
    """
    body = {name: request.POST.getlist(name) for name in sorted(request.POST) if name != "csrfmiddlewaretoken"}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    where = {
        "actor": actor_of(request).key,
        "method": request.method or "",
        "path": request.path[:300],
        "key": f"{key[:64]}:{digest[:32]}",
    }
    try:
        with transaction.atomic():
            record = IdempotencyRecord.objects.create(**where, body_digest=digest)
            location = effect()
            IdempotencyRecord.objects.filter(pk=record.pk).update(status=303, location=location)
        return location
    except IntegrityError:
        found = IdempotencyRecord.objects.filter(**where).first()
        if found is None:
            raise
        return found.location or "/"


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """The page for a form that was too old or came from elsewhere."""
    return error_page(
        request, 403, _("The form has expired"), _("Reload the page and send it again; nothing was changed.")
    )


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """400 for a request that cannot be read, such as a form of many megabytes; it reads nothing more of it."""
    return error_page(
        request, 400, _("The request cannot be read"), _("It is too large or malformed; nothing was changed.")
    )


def page_not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """404 for addresses that no page answers."""
    return refusal_page(request, NotFound(_("There is no such page.")))


def server_error(request: HttpRequest) -> HttpResponse:
    """500: the request id leads operators to the log line."""
    return error_page(
        request, 500, _("Something broke on our side"), _("Nothing you sent is lost in a half-done state. Try again.")
    )
