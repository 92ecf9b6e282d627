"""The pretend controller that tells in each ResourceQuota what is used of it."""

from __future__ import annotations

from decimal import Decimal

from sandbox.kubernetes.actors import Actor
from sandbox.kubernetes.limits import used_in
from sandbox.kubernetes.quantities import written


class QuotaController(Actor):
    """Tells in each ResourceQuota what is used of it."""

    name = "resourcequota-controller"

    def tick(self) -> None:
        """Bring every status up to date."""
        for quota in self.store.scan("resourcequotas"):
            hard = (quota.get("spec") or {}).get("hard") or {}
            used = used_in(self.store, quota["metadata"]["namespace"])
            told = {"hard": hard, "used": {name: written(used.get(name, Decimal(0))) for name in hard}}
            if told != (quota.get("status") or {}):
                self.status("resourcequotas", quota, told)
