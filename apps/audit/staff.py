"""The base of admin pages whose every change goes into the audit trail."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models, transaction
from django.http import HttpRequest

from apps.audit.services import record
from apps.core.actors import actor_of
from apps.core.staff import StaffAdmin


class RecordedAdmin(StaffAdmin):
    """Records who changed what: ``recorded`` names the fields, ``kind`` is the object's name in the trail."""

    kind: ClassVar[str] = ""
    recorded: ClassVar[tuple[str, ...]] = ()

    def values(self, obj: models.Model | None) -> dict[str, Any]:
        """The recorded fields as plain text."""
        return {} if obj is None else {name: str(getattr(obj, name)) for name in self.recorded}

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save and record in one commit."""
        with transaction.atomic():
            before = self.values(type(obj)._default_manager.filter(pk=obj.pk).first()) if change else {}
            self.store(request, obj, change=change)
            record(
                actor_of(request),
                f"{self.kind}.{'change' if change else 'create'}",
                self.kind,
                str(getattr(obj, "uid", obj.pk)),
                before=before,
                after=self.values(obj),
            )

    def store(self, request: HttpRequest, obj: Any, *, change: bool) -> None:
        """Write the row; an admin whose domain has a service for it calls that instead."""
        if change and hasattr(obj, "version"):
            obj.version += 1
        obj.save()

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete and record in one commit."""
        with transaction.atomic():
            uid, before = str(getattr(obj, "uid", obj.pk)), self.values(obj)
            obj.delete()
            record(actor_of(request), f"{self.kind}.delete", self.kind, uid, before=before)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        """One by one, so that each is recorded."""
        for obj in queryset:
            self.delete_model(request, obj)
