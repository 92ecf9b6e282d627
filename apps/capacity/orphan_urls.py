"""Addresses of the pages of orphans."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.capacity import orphan_views as views

urlpatterns: list[URLPattern] = [
    path("orphans", views.OrphanList.as_view(), name="orphans"),
    path("orphans/<str:uid>/remove", views.OrphanRemove.as_view(), name="orphan-remove"),
    path("orphans/<str:uid>/keep", views.OrphanKeep.as_view(), name="orphan-keep"),
    path("orphans/<str:uid>/release", views.OrphanRelease.as_view(), name="orphan-release"),
]
