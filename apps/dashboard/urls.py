"""Addresses of the pages of dashboard."""

from __future__ import annotations

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
