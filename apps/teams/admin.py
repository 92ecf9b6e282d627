"""People, teams, memberships and robots in the admin console; every change is recorded in the audit trail."""

from __future__ import annotations

from typing import Any

from allauth.account.models import EmailAddress
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from apps.audit.services import record
from apps.audit.staff import RecordedAdmin
from apps.core.actors import actor_of
from apps.core.staff import ReadOnlyAdmin
from apps.teams.models import ApiToken, Membership, ServiceAccount, Team, User

# Rights come from roles, and nobody signs in by mail: Django's groups and allauth's addresses would only mislead.
admin.site.unregister([Group, EmailAddress])


class MembershipInline(admin.TabularInline):  # type: ignore[type-arg]
    """The teams of a person, or the people of a team."""

    model = Membership
    extra = 0

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """As the page around it."""
        return actor_of(request).everywhere("teams.manage")

    has_add_permission = has_change_permission = has_delete_permission = has_view_permission  # type: ignore[assignment]


def _memberships(obj: User | Team) -> list[str]:
    """Who is what where, as text."""
    rows = obj.memberships.select_related("user", "team")
    return sorted(f"{m.user.username} {m.role} of {m.team.slug}" for m in rows)


class _WithMemberships(RecordedAdmin):
    """Records what changed among the memberships too."""

    inlines = (MembershipInline,)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Save the memberships and record the difference, in the form's own transaction."""
        before = _memberships(form.instance)
        super().save_related(request, form, formsets, change)
        after = _memberships(form.instance)
        if before != after:
            uid = str(getattr(form.instance, "uid", f"user:{form.instance.pk}"))
            record(
                actor_of(request),
                "membership.change",
                self.kind,
                uid,
                before={"memberships": before},
                after={"memberships": after},
            )


@admin.register(User)
class PersonAdmin(_WithMemberships, UserAdmin):  # type: ignore[type-arg]
    """A person: sign-in, platform role, teams."""

    kind = "user"
    recorded = ("username", "platform_role", "is_active", "is_staff", "is_superuser")
    list_display = ("username", "get_full_name", "platform_role", "is_active", "is_staff", "last_login")
    list_filter = ("platform_role", "is_active", "is_staff")
    search_fields = ("username", "first_name", "last_name", "email")
    ordering = ("username",)
    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        (_("Person"), {"fields": ("first_name", "last_name", "email")}),
        (_("Rights"), {"fields": ("is_active", "platform_role", "is_staff", "is_superuser")}),
        (_("Dates"), {"fields": ("last_login", "date_joined")}),
    )
    add_fieldsets = (
        (None, {"classes": ("wide",), "fields": ("username", "usable_password", "password1", "password2")}),
        (_("Rights"), {"fields": ("platform_role", "is_staff")}),
    )
    readonly_fields = ("last_login", "date_joined")


@admin.register(Team)
class TeamAdmin(_WithMemberships):
    """A team and its people."""

    kind = "team"
    recorded = ("slug", "name")
    list_display = ("slug", "name", "uid", "created_at")
    search_fields = ("slug", "name")


@admin.register(ServiceAccount)
class ServiceAccountAdmin(RecordedAdmin):
    """A robot of one team."""

    kind = "service-account"
    recorded = ("team", "name", "role", "is_enabled")
    list_display = ("name", "team", "role", "is_enabled", "created_at")
    list_filter = ("team", "role", "is_enabled")
    search_fields = ("name", "team__slug")


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    """Tokens, never their secrets; they are made and revoked on the page of API tokens."""

    right = "tokens.manage"
    list_display = ("label", "key_id", "user", "service_account", "expires_at", "revoked_at", "last_used_at")
    search_fields = ("label", "key_id", "user__username")
    exclude = ("digest",)
