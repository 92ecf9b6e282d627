"""Roles in a team and on the platform."""

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class TeamRole(TextChoices):
    """What a member may do in one team."""

    VIEWER = "viewer", _("Viewer")
    RESEARCHER = "researcher", _("Researcher")
    LEAD = "lead", _("Lead")


class PlatformRole(TextChoices):
    """What a person may do on the whole platform."""

    NONE = "", _("None")
    OPERATOR = "operator", _("Operator")
    ADMIN = "admin", _("Administrator")
