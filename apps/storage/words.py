"""The four ways a cluster mounts data, compared in words for checkpoints, datasets and home folders."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _

from apps.core import units
from apps.storage import rules


@dataclass(frozen=True)
class MountWay:
    """One way: its figures, what it is for, and what it does badly. ``verdicts`` pairs a use with good, fair or bad."""

    name: str
    throughput: str
    latency: str
    durability: str
    price: str
    badly: str
    verdicts: tuple[tuple[str, str, str], ...]


def mount_ways() -> tuple[MountWay, ...]:
    """Lustre, EFS, Mountpoint for S3 and local NVMe, in the reader's language."""
    cheapest, dearest = min(rules.USD_PER_GIB_MONTH.values()), max(rules.USD_PER_GIB_MONTH.values())
    checkpoints, datasets, home = _("Checkpoints"), _("Datasets"), _("Home folders")
    return (
        MountWay(
            name="FSx for Lustre",
            throughput=_("125 to 1,000 MB/s per TiB provisioned; with EFA and GPUDirect up to 1,200 Gbps a client"),
            latency=_("below a millisecond"),
            durability=_("replicated in one zone; lasting only once it is exported to S3"),
            price=_("%(low)s to %(high)s per GiB a month, provisioned")
            % {"low": units.usd(cheapest, 3), "high": units.usd(dearest, 3)},
            badly=_("millions of small files; it never shrinks; one zone; a full storage target fails writes early"),
            verdicts=(
                (checkpoints, "good", _("parallel writes of large files; export to S3 makes them last")),
                (datasets, "good", _("many readers at once, filled from S3 on first read")),
                (home, "fair", _("works, but costs and wears its metadata servers")),
            ),
        ),
        MountWay(
            name="EFS",
            throughput=_("some GiB/s in all, up to about 1.5 GiB/s a client"),
            latency=_("one to a few milliseconds"),
            durability=_("replicated over zones"),
            price=_("%(usd)s per GiB a month of what is stored") % {"usd": units.usd(rules.EFS_USD_PER_GIB_MONTH)},
            badly=_("the throughput that checkpoints of hundreds of GPUs need"),
            verdicts=(
                (checkpoints, "bad", _("all ranks wait for one NFS server's worth of bandwidth")),
                (datasets, "fair", _("small ones")),
                (home, "good", _("POSIX, shared over zones, grows by itself")),
            ),
        ),
        MountWay(
            name="Mountpoint for S3",
            throughput=_("as much as the node's network, a stream a file"),
            latency=_("tens of milliseconds to the first byte"),
            durability=_("S3's own: eleven nines, over zones"),
            price=_("%(usd)s per GiB a month and a price a request") % {"usd": "$0.023"},
            badly=_("rename, append and in-place writes do not exist; no locks"),
            verdicts=(
                (checkpoints, "fair", _("writers that only create whole files; not those that rename at the end")),
                (datasets, "good", _("sequential reads of large shards")),
                (home, "bad", _("not a POSIX file system")),
            ),
        ),
        MountWay(
            name=_("Local NVMe"),
            throughput=_("tens of GB/s a node"),
            latency=_("some ten microseconds"),
            durability=_("none: gone when the node stops or is replaced"),
            price=_("part of the instance"),
            badly=_("everything that must outlive the node, and everything another node must read"),
            verdicts=(
                (checkpoints, "fair", _("as the first stage of asynchronous saving, copied on at once")),
                (datasets, "fair", _("as a cache")),
                (home, "bad", _("lost with the node")),
            ),
        ),
    )
