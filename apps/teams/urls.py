"""Addresses of the pages of teams."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.teams.views import TokenEnd, TokenList

urlpatterns: list[URLPattern] = [
    path("tokens", TokenList.as_view(), name="tokens"),
    path("tokens/<str:uid>/revoke", TokenEnd.as_view(), name="token-revoke"),
]
