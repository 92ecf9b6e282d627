"""Addresses of the pages of audit."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.audit import views

urlpatterns: list[URLPattern] = [
    path("audit", views.AuditPage.as_view(), name="audit"),
    path("audit/chain", views.ChainPage.as_view(), name="audit-chain"),
    path("audit/export.csv", views.AuditCsv.as_view(), name="audit-csv"),
]
