"""Faults of the pretend API server: refusals, slowness, cut watches, lost history; put in force by the world."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from sandbox.kubernetes.status import ApiError, forbidden, gone, internal, too_many_requests, unauthorized
from sandbox.world import Fault, World

SERVICE: Final = "kubernetes"


@dataclass(eq=False)
class Broken(Exception):
    """An answer that is no Status: raw bytes under a code, or nothing at all where ``cut``."""

    code: int = 502
    body: bytes = b"<html><body>502 Bad Gateway</body></html>"
    cut: bool = False
    #: The request is done all the same, only its answer is lost.
    after: bool = False


class Faults:
    """Asks the world what is to go wrong with a request. Operations are called ``list-pods``, ``list`` or ``pods``."""

    def __init__(self, world: World, cluster: str = "") -> None:
        self._world = world
        self._cluster = cluster

    def is_away(self) -> bool:
        """Whether nothing is to be answered now."""
        return self._world.fault_holds("api-away", cluster=self._cluster) is not None

    def skew_s(self) -> float:
        """How many seconds the cluster's clock is ahead."""
        fault = self._world.fault_holds("clock-skew", cluster=self._cluster)
        return 0.0 if fault is None else _number(fault, "ahead", 300.0)

    def _use(self, kind: str, verb: str, plural: str) -> Fault | None:
        for operation in (f"{verb}-{plural}", verb, plural):
            found = self._world.fault_use(kind, service=SERVICE, operation=operation)
            if found is not None:
                return found
        return None

    def strike(self, verb: str, plural: str, group: str, name: str) -> Broken | None:
        """Sleep, or raise ApiError or Broken, as the faults in force have it; a Broken to answer with afterwards."""
        if self.is_away():
            raise Broken(cut=True)
        if late := self._use("slow-api", verb, plural):
            time.sleep(_number(late, "delay", 5.0))
        if self._use("unauthorized", verb, plural):
            raise unauthorized()
        if self._use("access-denied", verb, plural):
            raise forbidden(plural, group, name, f'User "kubernetes-admin" cannot {verb} resource "{plural}"')
        if busy := self._use("throttling", verb, plural):
            raise too_many_requests(int(_number(busy, "retry_after", 1)))
        if verb in ("list", "watch") and self._use("history-lost", verb, plural):
            raise self.lost()
        broken = self._use("server-error", verb, plural)
        shape = str(broken.parameters.get("shape") or "error") if broken else ""
        if shape == "error":
            raise internal("etcdserver: request timed out")
        if shape == "unavailable":
            raise ApiError(503, "ServiceUnavailable", "the server is currently unable to handle the request")
        if shape == "html":
            raise Broken()
        if shape == "cut":
            raise Broken(cut=True)
        return Broken(cut=True, after=True) if shape == "lost-reply" else None

    @staticmethod
    def lost() -> ApiError:
        """What a reader of old history is told."""
        return gone("The resourceVersion for the provided watch is too old.")

    def watch_lasts_s(self, plural: str) -> float | None:
        """After how many seconds a watch that begins now is cut, None for never."""
        fault = self._use("watch-cut", "watch", plural)
        return None if fault is None else _number(fault, "every", 5.0)


def _number(fault: Fault, key: str, default: float) -> float:
    value = fault.parameters.get(key)
    return float(value) if isinstance(value, (int, float, str)) and value != "" else default
