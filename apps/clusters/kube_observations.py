"""What the worker writes about a cluster's Kubernetes: what the server is, Kueue's queues, and how they drifted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.audit.services import event
from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.models import Cluster
from apps.core import clock
from apps.core.said import Said, said


def kubernetes_observed(settings: KubernetesSettings, observed: Mapping[str, Any]) -> bool:
    """Store what the server says of itself, where it differs; True when it did."""
    if settings.observed == dict(observed):
        return False
    KubernetesSettings.objects.filter(pk=settings.pk).update(observed=dict(observed))
    settings.observed = dict(observed)
    return True


def queues_observed(settings: KubernetesSettings, queues: Sequence[Mapping[str, Any]]) -> None:
    """Store Kueue's queues with quota and use, as they were read now."""
    rows = [dict(row) for row in queues]
    KubernetesSettings.objects.filter(pk=settings.pk).update(observed_queues=rows, queues_read_at=clock.now())
    settings.observed_queues = rows


def queues_message(settings: KubernetesSettings, words: Said | str) -> None:
    """Say how keeping the queues goes, where it is said otherwise now."""
    if settings.queues_message != words:
        KubernetesSettings.objects.filter(pk=settings.pk).update(queues_message=words)
        settings.queues_message = words


def drift_observed(
    cluster: Cluster, settings: KubernetesSettings, drift: Sequence[Mapping[str, Any]], *, repairs: bool
) -> bool:
    """Store what differs from what is wanted, and tell of it once when it begins; True when it changed.

    ``drift`` are ``{kind, object, path, text}`` with a said text. ``repairs``: it is about to be put right.
    """
    rows = [dict(row) for row in drift]
    if settings.drift == rows:
        return False
    begins = bool(rows) and settings.drift_since is None
    since = settings.drift_since or clock.now() if rows else None
    with transaction.atomic():
        KubernetesSettings.objects.filter(pk=settings.pk).update(drift=rows, drift_since=since)
        if begins and any(row["kind"] != "missing" for row in rows) and settings.queues_written_at is not None:
            text = _("Kueue differs from what is wanted in %(n)s places; put right")
            if not repairs:
                text = _("Kueue differs from what is wanted in %(n)s places; nothing is written")
            event(
                "cluster",
                cluster.uid,
                "QueuesRepaired" if repairs else "QueuesDiffer",
                said(text, n=len(rows)),
                data={"places": [row["object"] for row in rows][:20]},
            )
    settings.drift, settings.drift_since = rows, since
    return True


def queues_written(settings: KubernetesSettings) -> None:
    """All that is wanted was sent now; the next comparison tells whether it is there."""
    now = clock.now()
    KubernetesSettings.objects.filter(pk=settings.pk).update(queues_written_at=now)
    settings.queues_written_at = now
