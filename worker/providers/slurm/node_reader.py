"""Reading all nodes: in full where something changed, and with a small answer where nothing did."""

from __future__ import annotations

import time

from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import decode
from worker.providers.slurm import errors as se
from worker.providers.slurm.rest import Rest

#: Slurm's clock has whole seconds, and a change may come in the second of the read.
_OVERLAP_S = 2
_UNSPECIFIED = "-1"


class NodeReader:
    """Reads the nodes of one cluster and remembers them; one thread at a time."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._nodes: tuple[v.SchedulerNode, ...] = ()
        self._as_of = 0
        self._always_full = False

    def read(self) -> v.NodeRead:
        """All nodes. The instant from which changes are asked for is the server's own, so clocks need not agree."""
        began = time.monotonic()
        params = {"update_time": self._rest.instant(self._as_of)} if self._as_of and not self._always_full else None
        try:
            answer = self._rest.call("GET", "/slurm/{v}/nodes", about="queue", params=params)
        except e.Unavailable as error:
            if params is None or error.code != _UNSPECIFIED:
                raise
            # 24.11 calls it an unspecified error when nothing changed, as it does when anything is wrong.
            self._always_full, params = True, None
            answer = self._rest.call("GET", "/slurm/{v}/nodes", about="queue")
        records = answer.body.get("nodes")
        same = not answer.changed or (
            bool(params) and not records and se.unchanged(se.entries_of(answer.body, "warnings"))
        )
        if not same:
            if not isinstance(records, list):
                raise e.Unavailable("the answer has no list 'nodes'", source=se.SOURCE, code="shape")
            self._nodes = tuple(decode.guarded(decode.node, record, "node") for record in records)
            updated = decode.number(answer.body.get("last_update"))
            self._as_of = max(0, (updated or 0) - _OVERLAP_S) if updated else 0
        return v.NodeRead(self._nodes, time.monotonic() - began, answer.size_bytes)
