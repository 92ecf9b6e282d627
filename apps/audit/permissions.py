"""Who may read the audit trail."""

from __future__ import annotations

from apps.core.actors import Actor


def can_view_audit(actor: Actor) -> bool:
    """Administrators read everything."""
    return actor.everywhere("audit.view")
