"""What else works in a pretend cluster: claims that get their volume, accounts and claims of new namespaces."""

from __future__ import annotations

from collections.abc import Sequence

from sandbox.kubernetes.actors import Actor
from sandbox.kubernetes.server import ClusterApi
from sandbox.kubernetes.store import Key

_OWN = ("kube-system", "kube-public", "kube-node-lease")


class Housekeeper(Actor):
    """Binds claims, gives namespaces their default account and, where asked for, claims that the pods share."""

    name = "housekeeper"

    def __init__(self, cluster: ClusterApi, claims: Sequence[str] = ()) -> None:
        super().__init__(cluster)
        self._claims = tuple(claims)

    def tick(self) -> None:
        """Lay down what is missing."""
        for namespace in self.store.scan("namespaces"):
            name = namespace["metadata"]["name"]
            if namespace["metadata"].get("deletionTimestamp"):
                continue
            if self.store.get(Key("serviceaccounts", name, "default")) is None:
                metadata = {"name": "default", "namespace": name}
                self.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
            for wanted in self._claims if name not in _OWN else ():
                if self.store.get(Key("persistentvolumeclaims", name, wanted)) is None:
                    self._make(name, wanted)
        for claim in self.store.scan("persistentvolumeclaims"):
            if (claim.get("status") or {}).get("phase") != "Bound":
                size = (claim["spec"].get("resources") or {}).get("requests") or {}
                status = {"phase": "Bound", "accessModes": claim["spec"].get("accessModes") or [], "capacity": size}
                self.status("persistentvolumeclaims", claim, status)

    def _make(self, namespace: str, name: str) -> None:
        self.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "accessModes": ["ReadWriteMany"],
                    "storageClassName": "sandbox",
                    "resources": {"requests": {"storage": "1200Gi"}},
                },
            }
        )
