"""What the frame of every page needs."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest


def frame(request: HttpRequest) -> dict[str, Any]:
    """Context of the frame."""
    return {}
