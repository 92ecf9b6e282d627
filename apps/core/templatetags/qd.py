"""Filters that print figures with their units."""

from __future__ import annotations

from django import template

register = template.Library()
