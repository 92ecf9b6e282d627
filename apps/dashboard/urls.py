"""Addresses of home, search and the language button."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.dashboard.calendar_views import CalendarPage
from apps.dashboard.views import HomePage, Language, Search

urlpatterns: list[URLPattern] = [
    path("", HomePage.as_view(), name="home"),
    path("calendar", CalendarPage.as_view(), name="calendar"),
    path("search", Search.as_view(), name="search"),
    path("language", Language.as_view(), name="language"),
]
