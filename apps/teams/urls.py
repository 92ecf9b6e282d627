"""Addresses of the pages of teams."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.teams.view_pages import ColumnsChoose, ViewChange, ViewList, ViewMenu, ViewSave
from apps.teams.views import TokenEnd, TokenList

urlpatterns: list[URLPattern] = [
    path("tokens", TokenList.as_view(), name="tokens"),
    path("tokens/<str:uid>/revoke", TokenEnd.as_view(), name="token-revoke"),
    path("views", ViewList.as_view(), name="views"),
    path("views/menu", ViewMenu.as_view(), name="views-menu"),
    path("views/save", ViewSave.as_view(), name="view-save"),
    path("views/columns", ColumnsChoose.as_view(), name="view-columns"),
    path("views/<str:uid>/change", ViewChange.as_view(), name="view-change"),
]
