"""Addresses of the pages of storage."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.storage import views

urlpatterns: list[URLPattern] = [
    path("storage", views.FileSystemList.as_view(), name="storage"),
    path("storage/compare", views.Compare.as_view(), name="storage-compare"),
    path("storage/new", views.FileSystemNew.as_view(), name="file-system-new"),
    path("storage/plan", views.FileSystemPlan.as_view(), name="file-system-plan"),
    path("storage/<str:uid>", views.FileSystemPage.as_view(), name="file-system"),
    path("storage/<str:uid>/grow", views.FileSystemGrow.as_view(), name="file-system-grow"),
    path("storage/<str:uid>/delete", views.FileSystemDelete.as_view(), name="file-system-delete"),
    path("storage/<str:uid>/associations", views.AssociationNew.as_view(), name="association-new"),
    path("storage/<str:uid>/exports", views.ExportNew.as_view(), name="export-new"),
    path("storage/associations/<str:uid>/delete", views.AssociationDelete.as_view(), name="association-delete"),
]
