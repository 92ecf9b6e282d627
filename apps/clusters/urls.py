"""Addresses of the pages of clusters."""

from __future__ import annotations

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
