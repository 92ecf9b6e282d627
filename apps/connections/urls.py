"""Addresses of the pages of connections."""

from __future__ import annotations

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
