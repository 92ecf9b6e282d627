"""Request id, language and request metrics for every request."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextvars import ContextVar

import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils import translation
from django.utils.cache import patch_vary_headers
from django.utils.translation.trans_real import parse_accept_lang_header
from prometheus_client import Counter, Histogram

from apps.core import ids

GetResponse = Callable[[HttpRequest], HttpResponseBase]
#: The id of the request in hand; intents carry it to the worker's log lines.
request_id_var: ContextVar[str] = ContextVar("request_id", default="")
_CLEAN = re.compile(r"^[A-Za-z0-9._-]{1,64}$")

REQUESTS = Counter("qd_http_requests_total", "Requests answered.", ["view", "method", "status"])
REQUEST_SECONDS = Histogram("qd_http_request_duration_seconds", "Time to answer a request.", ["view"])


class RequestIdMiddleware:
    """Takes X-Request-Id from the client or makes one, and echoes it."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer with X-Request-Id set."""
        given = request.headers.get("X-Request-Id", "")
        request_id = given if _CLEAN.match(given) else ids.new_uid("req")
        request.request_id = request_id  # type: ignore[attr-defined]
        request.META["HTTP_X_REQUEST_ID"] = request_id
        token = request_id_var.set(request_id)
        structlog.contextvars.bind_contextvars(request_id=request_id)
        try:
            response = self.get_response(request)
        finally:
            request_id_var.reset(token)
        response["X-Request-Id"] = request_id
        response["Permissions-Policy"] = "camera=(), microphone=(), geolocation=(), payment=()"
        return response


class LanguageMiddleware:
    """The person's choice (cookie, set by the language button), then Accept-Language."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer in the chosen language; the API in the one its caller names, else in English."""
        known = {code for code, _name in settings.LANGUAGES}
        if request.path.startswith("/api/"):
            # A script's sentences must not change with a cookie of whoever wrote it.
            asked = parse_accept_lang_header(request.headers.get("Accept-Language", "").lower())
            language = next((found for code, _q in asked if (found := code.partition("-")[0]) in known), "en")
        else:
            chosen = request.COOKIES.get(settings.LANGUAGE_COOKIE_NAME, "")
            language = chosen if chosen in known else translation.get_language_from_request(request)
        with translation.override(language):
            request.LANGUAGE_CODE = language  # type: ignore[attr-defined]
            response = self.get_response(request)
        response.headers.setdefault("Content-Language", language)
        patch_vary_headers(response, ("Accept-Language",))
        return response


class MetricsMiddleware:
    """Counts answers and their time by view name."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer and count."""
        began = time.perf_counter()
        response = self.get_response(request)
        match = request.resolver_match
        view = (match.view_name or "unnamed") if match else "none"
        REQUESTS.labels(view, request.method or "", response.status_code).inc()
        REQUEST_SECONDS.labels(view).observe(time.perf_counter() - began)
        return response
