"""Where the ranks of a job meet on one machine: names of headless services and the ports of each job's own."""

from __future__ import annotations

import re
import socket
import threading
from typing import Final

from sandbox.kubernetes.status import Object
from sandbox.kubernetes.store import Key, Store

_HERE: Final = "127.0.0.1"
_PORTS: Final = ("MASTER_PORT", "PET_MASTER_PORT")
#: Variables whose whole value may be the bare name of a service; elsewhere it may be any word.
_HOSTS: Final = re.compile(r"ADDR|HOST|ENDPOINT|SERVER|MASTER|URL")
_MOST_OWNERS: Final = 8


class Meetings:
    """Leads names and ports of a gang to this machine: all pods run on it, and two jobs want the same port."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ports: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def gang_of(self, pod: Object) -> str:
        """The uid of what owns the pod in the end: the job as a whole, the same for all its ranks."""
        thing, uid = pod, str(pod["metadata"]["uid"])
        for _ in range(_MOST_OWNERS):
            owners = thing["metadata"].get("ownerReferences") or []
            owner = next((one for one in owners if one.get("controller")), None)
            if owner is None:
                return uid
            uid = str(owner["uid"])
            key = self._store.by_uid(uid)
            found = None if key is None else self._store.get(key)
            if found is None:
                return uid
            thing = found
        return uid

    def port(self, gang: str, wanted: int) -> int:
        """The port of this machine that stands for a gang's."""
        with self._lock:
            at = (gang, wanted)
            if at not in self._ports:
                with socket.socket() as probe:
                    probe.bind((_HERE, 0))
                    self._ports[at] = int(probe.getsockname()[1])
            return self._ports[at]

    def led(self, pod: Object, environment: dict[str, str]) -> dict[str, str]:
        """The environment with names and ports of the gang as they are on this machine."""
        gang, namespace = self.gang_of(pod), str(pod["metadata"]["namespace"])
        names = self._services(pod, namespace)
        made = {}
        for name, value in environment.items():
            if name in _PORTS and value.isdigit() and 0 < int(value) < 65_536:
                made[name] = str(self.port(gang, int(value)))
            else:
                made[name] = self._text(value, names, namespace, gang, may_be_bare=bool(_HOSTS.search(name)))
        return made

    def text(self, pod: Object, value: str) -> str:
        """A part of a command with the names of pods led here."""
        namespace = str(pod["metadata"]["namespace"])
        return self._text(value, self._services(pod, namespace), namespace, self.gang_of(pod), may_be_bare=False)

    def _services(self, pod: Object, namespace: str) -> list[str]:
        found = {
            str(one["metadata"]["name"])
            for one in self._store.scan("services", namespace)
            if (one.get("spec") or {}).get("clusterIP") == "None"
        }
        if own := pod["spec"].get("subdomain"):
            found.add(str(own))
        return sorted(found, key=len, reverse=True)

    def _text(self, value: str, names: list[str], namespace: str, gang: str, *, may_be_bare: bool) -> str:
        if not names:
            return value
        service = "(?:" + "|".join(re.escape(name) for name in names) + ")"
        rest = rf"(?:\.{re.escape(namespace)}(?:\.svc(?:\.cluster\.local)?)?)?"
        port = r"(?::(\d{1,5}))?(?![\w.-])"
        forms = [rf"[a-z0-9][a-z0-9-]*\.{service}{rest}{port}"]
        if may_be_bare:
            forms.append(rf"{service}{rest}{port}")

        def here(found: re.Match[str]) -> str:
            wanted = next((one for one in found.groups() if one), None)
            return _HERE if wanted is None else f"{_HERE}:{self.port(gang, int(wanted))}"

        return re.sub(r"(?<![\w.-])(?:" + "|".join(forms) + ")", here, value)

    def forget(self) -> None:
        """Let go of the ports of what is gone."""
        with self._lock:
            for at in [one for one in self._ports if self._store.by_uid(one[0]) is None]:
                del self._ports[at]


def service_of(namespace: str, name: str, owner: list[Object], selector: dict[str, str]) -> Object:
    """A headless Service as controllers make them for the names of their pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": owner},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector},
    }


def has_service(store: Store, namespace: str, name: str) -> bool:
    """Whether there is a Service of this name."""
    return store.get(Key("services", namespace, name)) is not None
