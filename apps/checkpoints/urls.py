"""Addresses of the pages of checkpoints."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.checkpoints import views

urlpatterns: list[URLPattern] = [
    path("checkpoints", views.CheckpointsByJob.as_view(), name="checkpoints"),
    path("checkpoints/all", views.CheckpointList.as_view(), name="checkpoints-all"),
    path("checkpoints/<str:uid>", views.CheckpointPage.as_view(), name="checkpoint"),
]
