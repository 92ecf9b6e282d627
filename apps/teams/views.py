"""The page of API tokens: make one, see it once, end it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from apps.core.errors import BadQuery, FieldProblem, Refusal
from apps.core.pages import SIGNED_IN, Page
from apps.teams.forms import TokenForm
from apps.teams.selectors import service_accounts_visible_to, token_for, tokens_visible_to
from apps.teams.services import grantable_scopes, token_create, token_revoke


class TokenList(Page):
    """One's tokens and those of service accounts one manages."""

    right = SIGNED_IN

    def _form(self, request: HttpRequest) -> TokenForm:
        return TokenForm(
            request.POST if request.method == "POST" else None,
            scopes=grantable_scopes(self.actor),
            accounts=list(service_accounts_visible_to(self.actor)[:100]),
            name=self.actor.name,
        )

    def _page(self, request: HttpRequest, form: TokenForm, bearer: str = "", status: int = 200) -> HttpResponse:
        rows = list(tokens_visible_to(self.actor).order_by("-created_at", "-id")[:200])
        context = {"form": form, "tokens": rows, "bearer": bearer, "origin": request.build_absolute_uri("/")}
        response = render(request, "teams/tokens.html", context, status=status)
        if bearer:
            # The text of a token must not wait in a cache or in the browser's history.
            response["Cache-Control"] = "no-store"
        return response

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page."""
        if request.GET:
            raise BadQuery(
                _("unknown query parameter %(names)s; this page takes none") % {"names": ", ".join(sorted(request.GET))}
            )
        return self._page(request, self._form(request))

    def post(self, request: HttpRequest) -> HttpResponse:
        """Make a token and show its text, this once."""
        form = self._form(request)
        if not form.is_valid():
            return self._page(request, form, status=422)
        data = form.cleaned_data
        try:
            _token, bearer = token_create(
                actor=self.actor,
                label=data["label"],
                scopes=data["scopes"],
                days=data["days"],
                service_account=form.account,
            )
        except Refusal as refusal:
            for problem in refusal.problems or (FieldProblem("", refusal.code, refusal.detail),):
                name = problem.pointer.removeprefix("/")
                form.add_error(name if name in form.fields else None, problem.detail)
            return self._page(request, form, status=refusal.status)
        fresh = TokenForm(
            None,
            scopes=grantable_scopes(self.actor),
            accounts=list(form.accounts.values()),
            name=self.actor.name,
        )
        return self._page(request, fresh, bearer)


class TokenEnd(Page):
    """Revoke one token."""

    right = SIGNED_IN

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """End it now."""
        token = token_for(actor=self.actor, uid=uid)
        token_revoke(actor=self.actor, token=token)
        self.say(_("Token %(label)s is revoked.") % {"label": token.label})
        return HttpResponseRedirect(reverse("tokens"))
