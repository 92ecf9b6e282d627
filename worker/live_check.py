"""``manage.py live-check ACCOUNT``: what a connected account lets the worker do, by describes and dry runs only."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence

from django import setup


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line a call; the exit status is 0 when everything the portal always needs works, else 1."""
    parser = argparse.ArgumentParser(prog="manage.py live-check", description=__doc__)
    parser.add_argument("account", help="name or uid of a connected account")
    options = parser.parse_args(arguments)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    setup()
    from django.db.models import Q

    from apps.connections.models import CloudAccount
    from worker import doors
    from worker.providers.aws import probes
    from worker.providers.errors import ProviderError

    account = CloudAccount.objects.filter(Q(name=options.account) | Q(uid=options.account)).first()
    if account is None:
        print(f"there is no account {options.account}", file=sys.stderr)
        return 2
    try:
        access = doors.access_of(account)
    except ProviderError as error:
        print(f"FAIL credentials: {error}")
        return 1
    counts: Counter[str] = Counter()
    for finding in probes.run(access):
        counts[finding.verdict] += 1
        mark = "ok  " if finding.verdict == "works" else "    "
        print(f"{mark} {finding.verdict:<8} {finding.action:<38} {finding.purpose:<28} {finding.detail}", flush=True)
    print(", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())) + "; nothing was made or changed.")
    return 0 if not counts["unclear"] and counts["works"] else 1


if __name__ == "__main__":
    sys.exit(main())
