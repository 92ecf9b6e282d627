"""ResourceQuotas of a namespace: what its living pods use, and whether one more fits."""

from __future__ import annotations

from decimal import Decimal

from sandbox.kubernetes.placing import requests_of
from sandbox.kubernetes.quantities import quantity, written
from sandbox.kubernetes.status import ApiError, Object, forbidden
from sandbox.kubernetes.store import Store


def use_of(pod: Object) -> dict[str, Decimal]:
    """What a pod counts for, under the names that quotas use."""
    told = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for name, value in requests_of(pod["spec"]).items():
        told[f"requests.{name}"] = value
        if name in ("cpu", "memory"):
            told[name] = value
    return told


def used_in(store: Store, namespace: str) -> dict[str, Decimal]:
    """What the namespace's living pods use."""
    total: dict[str, Decimal] = {}
    for pod in store.scan("pods", namespace):
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            for name, value in use_of(pod).items():
                total[name] = total.get(name, Decimal(0)) + value
    return total


def refusal_of(store: Store, namespace: str, pod: Object) -> ApiError | None:
    """Why a new pod is over a quota, None where it is not."""
    quotas = store.scan("resourcequotas", namespace)
    if not quotas:
        return None
    wanted, used = use_of(pod), used_in(store, namespace)
    for quota in quotas:
        for name, most in sorted(((quota.get("spec") or {}).get("hard") or {}).items()):
            asked, now = wanted.get(name, Decimal(0)), used.get(name, Decimal(0))
            if asked and now + asked > quantity(most):
                why = (
                    f"exceeded quota: {quota['metadata']['name']}, requested: {name}={written(asked)}, "
                    f"used: {name}={written(now)}, limited: {name}={most}"
                )
                return forbidden("pods", "", pod["metadata"].get("name", ""), why)
    return None
