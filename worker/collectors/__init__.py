"""Bulk reads: one call a source a tick, compared with what is known, written only where it differs."""

from __future__ import annotations

from prometheus_client import Counter

#: Rows a collector looked at and rows it wrote: the proof that "no change" writes nothing.
READ = Counter("qd_collector_rows_read_total", "Rows read by collectors.", ["collector"])
WRITTEN = Counter("qd_collector_rows_written_total", "Rows changed by collectors.", ["collector"])
