"""Addresses of the pages of audit."""

from __future__ import annotations

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
