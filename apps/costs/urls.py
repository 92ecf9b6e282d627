"""Addresses of the pages of costs."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.costs import views

urlpatterns: list[URLPattern] = [
    path("costs", views.CostsPage.as_view(), name="costs"),
    path("costs/ledger", views.LedgerPage.as_view(), name="ledger"),
    path("costs/ledger.csv", views.LedgerCsv.as_view(), name="ledger-csv"),
    path("costs/teams/<str:slug>", views.TeamCosts.as_view(), name="team-costs"),
]
