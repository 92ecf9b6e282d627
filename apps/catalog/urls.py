"""Addresses of the pages of the catalog."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.catalog import views

urlpatterns: list[URLPattern] = [
    path("catalog", views.CatalogPage.as_view(), name="catalog"),
    path("catalog/compare", views.ComparePage.as_view(), name="catalog-compare"),
]
