"""States of things in the cloud that carry our tag and belong to nothing:

FOUND ▶ REMOVAL_ASKED      FOUND ◀▶ KEPT ◀▶ REMOVAL_ASKED      any ▶ GONE (AWS no longer lists it, or it has an owner)
"""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class OrphanKind(TextChoices):
    """What was found, by the word of the provider."""

    INSTANCE = "instance", _("Machine")
    NETWORK_INTERFACE = "network-interface", _("Network interface")
    LAUNCH_TEMPLATE = "launch-template", _("Launch template")
    PLACEMENT_GROUP = "placement-group", _("Placement group")
    FILE_SYSTEM = "file-system", _("File system")
    PCS_CLUSTER = "pcs-cluster", _("PCS cluster")
    PCS_GROUP = "pcs-group", _("PCS node group")
    EKS_CLUSTER = "eks-cluster", _("EKS cluster")
    EKS_GROUP = "eks-group", _("EKS node group")
    HYPERPOD = "hyperpod-cluster", _("HyperPod cluster")


class OrphanPhase(TextChoices):
    """Where an orphan is."""

    FOUND = "FOUND", _("Found")
    REMOVAL_ASKED = "REMOVAL_ASKED", _("Being removed")
    KEPT = "KEPT", _("Kept")
    GONE = "GONE", _("Gone")


#: Clusters hold what people made in them: they go by a person's word alone, as file systems do.
CLUSTERS = frozenset({OrphanKind.PCS_CLUSTER, OrphanKind.EKS_CLUSTER, OrphanKind.HYPERPOD})
GROUPS = frozenset({OrphanKind.PCS_GROUP, OrphanKind.EKS_GROUP})
BY_PERSON_ALONE = CLUSTERS | {OrphanKind.FILE_SYSTEM}
P = OrphanPhase

ORPHAN_TRANSITIONS: dict[str, frozenset[str]] = {
    P.FOUND: frozenset({P.REMOVAL_ASKED, P.KEPT, P.GONE}),
    P.REMOVAL_ASKED: frozenset({P.KEPT, P.GONE}),
    P.KEPT: frozenset({P.FOUND, P.REMOVAL_ASKED, P.GONE}),
    # Seen again after AWS had stopped listing it.
    P.GONE: frozenset({P.FOUND}),
}
ORPHAN_LIVE = frozenset({P.FOUND, P.REMOVAL_ASKED, P.KEPT})
ORPHAN_COLOURS: dict[str, str] = {P.FOUND: "warn", P.REMOVAL_ASKED: "busy", P.KEPT: "off", P.GONE: "off"}
