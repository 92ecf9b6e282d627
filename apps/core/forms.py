"""What forms of pages share: refusals at the fields they name, the version seen, the typed name, htmx."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.http import HttpRequest
from django.utils.translation import gettext as _

from apps.core.errors import InvalidInput, Refusal, field_refusal

#: Django's errors that speak of "this value" without saying which.
_NAMELESS = frozenset({"min_value", "max_value", "min_length", "max_length"})


class NamingForm(forms.Form):
    """A form whose errors name their field, so that they can be read away from it."""

    def add_error(self, field: str | None, error: Any) -> None:
        """Put the field's label before Django's words that do not name it."""
        if field in self.fields and isinstance(error, forms.ValidationError):
            label = self.fields[str(field)].label or str(field)
            # Only an error of one message has a code; a list of them is looked at one by one.
            error = [
                forms.ValidationError(f"{label}: {one.messages[0]}", code=one.code) if one.code in _NAMELESS else one
                for one in (error.error_list if hasattr(error, "error_list") else [])
            ] or error
        super().add_error(field, error)


class PortalForm(NamingForm):
    """A form whose problems may come from a service. ``field_of`` maps a pointer to a field of another name."""

    field_of: ClassVar[dict[str, str]] = {}

    def show(self, refusal: Refusal) -> None:
        """Put a refusal's problems at their fields; what has no field goes to the whole form."""
        for problem in refusal.problems:
            name = self.field_of.get(problem.pointer, problem.pointer.strip("/"))
            self.add_error(name if name in self.fields else None, problem.detail)
        if not refusal.problems:
            self.add_error(None, refusal.detail)


def is_htmx(request: HttpRequest) -> bool:
    """Whether only a part of the page is wanted."""
    return bool(getattr(request, "htmx", False))


def typed_name(request: HttpRequest, name: str) -> None:
    """Refuse a destruction whose name was not typed. Raises InvalidInput."""
    if request.POST.get("typed", "") != name:
        raise field_refusal("/typed", _("Type %(name)s to confirm.") % {"name": name})


def posted_version(request: HttpRequest, name: str = "version") -> int:
    """The version of the object that the form was drawn with. Raises InvalidInput."""
    text = request.POST.get(name, "")
    if not text.isdecimal() or len(text) > 9:
        raise InvalidInput(_("The form is incomplete; reload the page."))
    return int(text)
