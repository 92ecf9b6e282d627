"""Addresses of the pages of quotas."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.quotas import views

urlpatterns: list[URLPattern] = [
    path("quotas", views.QuotasPage.as_view(), name="quotas"),
    path("quotas/<str:slug>", views.LimitsSave.as_view(), name="quota-save"),
    path("quotas/<str:slug>/history", views.QuotaHistory.as_view(), name="quota-history"),
]
