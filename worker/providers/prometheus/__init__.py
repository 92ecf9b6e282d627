"""Pages in the Prometheus exposition format."""

from worker.providers.prometheus.exporter import DcgmExporter

__all__ = ["DcgmExporter"]
