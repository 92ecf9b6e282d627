"""make screenshots: every page in both themes, languages and widths, from the demo rows, into screenshots/.

Prints a line a page that has a console error, scrolls sideways or has an axe violation, and ends
with 1 when there was any. ``--only WORD`` takes the pages whose name has the word, ``--no-axe`` skips axe.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser_kit import axe, browser, chromium, person  # noqa: E402
from tests.services import free_port  # noqa: E402

PASSWORD = "correct horse battery"


def seed(database: Path) -> list[tuple[str, str, str]]:
    """Make the demo site in a database of its own; (name, person, path) of every page."""
    os.environ.update({"QD_ENV": "development", "QD_SQLITE_FILE": str(database), "QD_VAR_DIR": str(database.parent)})
    os.environ["DJANGO_SETTINGS_MODULE"] = "portal.settings"
    import django

    django.setup()
    from django.core.management import call_command

    from apps.capacity.models import OfferingSearch, Purchase, Reservation
    from apps.checkpoints.models import Checkpoint
    from apps.clusters.group_models import NodeGroup
    from apps.clusters.models import Cluster, Fleet, Node
    from apps.connections.models import CloudAccount
    from apps.core import clock
    from apps.core.models import Heartbeat
    from apps.health.models import Finding
    from apps.jobs.models import Job
    from apps.storage.models import FileSystem
    from apps.teams.models import SavedView, User
    from tests.demo_kubernetes import demo_kubernetes
    from tests.demo_more import demo_more
    from tests.demo_rows import demo_rows

    call_command("migrate", verbosity=0)
    demo_kubernetes(demo_more(demo_rows()))
    for number, (name, query) in enumerate(
        (("My running jobs", "phase=RUNNING&sort=name"), ("Failed", "phase=FAILED"))
    ):
        SavedView.objects.create(
            owner=User.objects.get(username="owner"),
            page="/jobs",
            name=name,
            query=query,
            hidden_columns=["cost"] * number,
        )
    Heartbeat.objects.update_or_create(name="housekeeping", defaults={"beat_at": clock.now()})
    for user in User.objects.all():
        user.set_password(PASSWORD)
        user.save()

    def uid(model: Any, **wanted: Any) -> str:
        row = model.objects.filter(**wanted).first()
        if row is None:
            raise SystemExit(f"the demo rows have no {model.__name__} with {wanted}")
        return str(row.uid)

    job, cluster = uid(Job, phase="RUNNING", team__slug="nlp"), uid(Cluster, name="ada")
    pages = [
        ("home", "owner", "/"),
        ("home-operator", "operator", "/"),
        ("jobs", "owner", "/jobs"),
        ("jobs-none-match", "owner", "/jobs?q=nothing-has-this-name"),
        ("job-new", "owner", "/jobs/new"),
        ("job-new-options", "owner", f"/jobs/new?from={uid(Job, name='tokenizer-sweep')}"),
        ("job-new-template", "owner", "/jobs/new?template=pretrain-sweep"),
        ("templates", "lead", "/templates"),
        ("template", "lead", "/templates/pretrain-sweep"),
        ("template-version", "lead", "/templates/pretrain-sweep/versions/3"),
        ("template-edit", "lead", "/templates/pretrain-sweep/edit"),
        ("team-retry", "lead", "/templates/retries/nlp"),
        ("job", "owner", f"/jobs/{job}"),
        *(
            (f"job-{t}", "owner", f"/jobs/{job}/{t}")
            for t in ("logs", "metrics", "checkpoints", "timeline", "events", "config", "cost")
        ),
        *(
            (f"job-{p.lower()}", "owner", f"/jobs/{uid(Job, phase=p, team__slug='nlp')}")
            for p in ("QUEUED", "FAILED", "RECOVERING", "SUCCEEDED")
        ),
        ("job-array-metrics", "owner", f"/jobs/{uid(Job, name='lr-sweep')}/metrics?task=9"),
        ("job-array-tasks", "owner", f"/jobs/{uid(Job, name='lr-sweep')}/tasks"),
        ("job-het-parts", "owner", f"/jobs/{uid(Job, name='actor-learner')}/parts"),
        ("job-new-parts", "owner", f"/jobs/new?from={uid(Job, name='actor-learner')}"),
        ("job-new-kube", "owner", f"/jobs/new?from={uid(Job, name='vit-huge')}"),
        ("job-new-manifest", "owner", f"/jobs/new?from={uid(Job, name='grpo-rollout')}"),
        ("job-new-hyperpod", "owner", "/jobs/new?template=hyperpod-elastic"),
        ("job-kube-manifest", "owner", f"/jobs/{uid(Job, name='grpo-rollout')}/config"),
        ("job-kube-runs", "owner", f"/jobs/{uid(Job, name='vit-huge')}"),
        ("job-kube-waits", "owner", f"/jobs/{uid(Job, name='clip-align')}"),
        ("job-kube-failed", "owner", f"/jobs/{uid(Job, name='dataset-tokenize')}"),
        ("job-kube-pods", "owner", f"/jobs/{uid(Job, name='vit-huge')}/pods"),
        ("job-kube-timeline", "owner", f"/jobs/{uid(Job, name='clip-align')}/timeline"),
        ("job-kube-events", "owner", f"/jobs/{uid(Job, name='clip-align')}/events"),
        ("job-kube-config", "owner", f"/jobs/{uid(Job, name='vit-huge')}/config"),
        ("job-asked", "owner", f"/jobs/{uid(Job, name='tokenizer-sweep')}"),
        ("job-outside", "owner", f"/jobs/{uid(Job, origin='outside', phase='RUNNING')}"),
        ("job-outside-waits", "owner", f"/jobs/{uid(Job, origin='outside', phase='QUEUED')}"),
        ("job-outside-config", "owner", f"/jobs/{uid(Job, origin='outside', phase='RUNNING')}/config"),
        ("checkpoints", "owner", "/checkpoints"),
        ("checkpoints-all", "owner", "/checkpoints/all"),
        ("checkpoint-torn", "owner", f"/checkpoints/{uid(Checkpoint, state='TORN')}"),
        ("clusters", "operator", "/clusters"),
        ("cluster", "operator", f"/clusters/{cluster}"),
        ("cluster-new", "operator", "/clusters/new"),
        ("cluster-edit", "operator", f"/clusters/{cluster}/edit"),
        ("cluster-slurm", "operator", f"/clusters/{cluster}/slurm"),
        ("kubernetes-teams", "operator", f"/clusters/{uid(Cluster, name='babbage')}/kubernetes"),
        ("kubernetes-cluster", "operator", f"/clusters/{uid(Cluster, name='babbage')}"),
        ("kubernetes-let-in", "operator", f"/clusters/{uid(Cluster, name='hamilton')}/kubernetes"),
        ("kubernetes-new", "operator", "/clusters/new/kubernetes"),
        ("kubernetes-node", "operator", f"/nodes/{uid(Node, name='ip-10-2-0-12.ec2.internal')}"),
        *(
            (f"managed-{name}", "operator", f"/clusters/{uid(Cluster, name=name)}")
            for name in ("shannon", "hamilton", "lovelace", "hpc-west", "noether")
        ),
        ("managed-edit", "operator", f"/clusters/{uid(Cluster, name='shannon')}/edit"),
        *(
            (f"managed-new-{kind}", "operator", f"/clusters/new/{kind}")
            for kind in ("pcs", "eks", "hyperpod-slurm", "hyperpod-eks", "parallelcluster")
        ),
        ("managed-adopt", "operator", "/clusters/adopt/parallelcluster"),
        ("managed-group", "operator", f"/groups/{uid(NodeGroup, name='eval')}"),
        ("managed-group-new", "operator", f"/clusters/{uid(Cluster, name='shannon')}/groups/new"),
        ("mount-new", "operator", f"/clusters/{cluster}/mounts/new"),
        ("fleet-new", "operator", f"/clusters/{cluster}/fleets/new"),
        *(
            (f"fleet-{word}", "operator", f"/fleets/{uid(Fleet, name=name)}")
            for word, name in (
                ("ready", "p5-main"),
                ("booting", "p5-burst"),
                ("waiting_capacity", "p5en-sweep"),
                ("failed", "p5en-eval"),
            )
        ),
        ("node", "operator", f"/nodes/{uid(Node, name='p5-main-8')}"),
        ("calendar", "operator", "/calendar"),
        ("reservation", "operator", f"/capacity/reservations/{uid(Reservation, name='pretrain-w48')}"),
        ("purchases", "operator", "/capacity/purchases"),
        ("purchase-asked", "operator", f"/capacity/purchases/{uid(Purchase, name='epoch-2')}"),
        ("purchase-unknown", "operator", f"/capacity/purchases/{uid(Purchase, name='ablations')}"),
        ("offering-search-new", "operator", "/capacity/search"),
        ("offering-search", "operator", f"/capacity/searches/{uid(OfferingSearch, phase='DONE')}"),
        ("odcr-new", "operator", "/capacity/odcr/new"),
        ("orphans", "operator", "/orphans"),
        ("storage", "operator", "/storage"),
        ("storage-compare", "owner", "/storage/compare"),
        ("file-system-new", "operator", "/storage/new"),
        ("file-system", "operator", f"/storage/{uid(FileSystem, name='train-scratch')}"),
        ("file-system-failed", "owner", f"/storage/{uid(FileSystem, phase='FAILED')}"),
        ("catalog", "owner", "/catalog"),
        ("catalog-compare", "owner", "/catalog/compare?type=p5.48xlarge&type=p5en.48xlarge&type=p6-b200.48xlarge"),
        ("health", "operator", "/health"),
        ("gpus", "operator", "/health/gpus"),
        ("xid", "operator", "/health/xid"),
        ("findings", "operator", "/findings"),
        ("finding", "operator", f"/findings/{uid(Finding, source='xid')}"),
        ("costs", "owner", "/costs"),
        ("costs-admin", "admin", "/costs"),
        ("ledger", "owner", "/costs/ledger"),
        ("team-costs", "owner", "/costs/teams/nlp"),
        ("quotas", "owner", "/quotas"),
        ("quotas-admin", "admin", "/quotas"),
        ("quota-history", "admin", "/quotas/nlp/history"),
        ("connections", "operator", "/connections"),
        ("connection", "operator", f"/connections/{uid(CloudAccount)}"),
        ("connection-new", "operator", "/connections/new"),
        ("connection-edit", "operator", f"/connections/{uid(CloudAccount)}/edit"),
        ("views", "owner", "/views"),
        ("tokens", "owner", "/tokens"),
        ("audit", "admin", "/audit"),
        ("admin", "admin", "/admin/"),
        ("admin-quotas", "admin", "/admin/quotas/quota/"),
        ("not-found", "owner", "/no/such/page"),
        ("forbidden", "owner", "/audit"),
        ("login", "", "/accounts/login/"),
    ]
    from django.db import connections

    connections.close_all()
    return pages


@contextmanager
def serve(database: Path) -> Iterator[str]:
    """The portal's own server over that database."""
    port = free_port()
    environment = {
        **os.environ,
        "QD_ENV": "development",
        "QD_SQLITE_FILE": str(database),
        "QD_VAR_DIR": str(database.parent),
        "QD_LOG_LEVEL": "ERROR",
        "QD_THROTTLE_READ": "100000/min",
    }
    command = [sys.executable, "-m", "granian", "--interface", "asginl", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--workers-kill-timeout", "2", "--log-level", "error", "portal.asgi:application"],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(200):
            try:
                opener.open(f"{url}/healthz", timeout=2)
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(15)


def main() -> int:
    """Take them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "screenshots")
    parser.add_argument("--only", default="")
    parser.add_argument("--no-axe", action="store_true")
    parser.add_argument("--languages", default="en,ko")
    parser.add_argument("--themes", default="light,dark")
    parser.add_argument("--widths", default="wide,phone")
    options = parser.parse_args()
    if not chromium():
        print("screenshots need Debian's package chromium")
        return 3
    options.out.mkdir(parents=True, exist_ok=True)
    problems = taken = 0
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "screens.sqlite3"
        pages = [p for p in seed(database) if options.only in p[0]]
        with serve(database) as url, browser() as found:
            for language in options.languages.split(","):
                for theme in options.themes.split(","):
                    for width in options.widths.split(","):
                        windows: dict[str, Any] = {}
                        for name, user, path in pages:
                            if user not in windows:
                                windows[user] = person(
                                    found,
                                    url,
                                    user=user,
                                    password=PASSWORD,
                                    language=language,
                                    theme=theme,
                                    width=width,
                                )
                            window = windows[user]
                            window.complaints.clear()
                            window.open(path)
                            if name == "job-new-kube":
                                window.page.locator("#candidates > summary").click()
                                window.page.wait_for_timeout(1200)
                            window.page.wait_for_timeout(250)
                            shot = options.out / f"{name}.{language}.{theme}.{width}.png"
                            window.page.screenshot(path=str(shot), full_page=True)
                            taken += 1
                            wrong = [c for c in window.complaints if "404" not in c and "403" not in c]
                            if (over := window.sideways()) > 0:
                                wrong.append(f"scrolls {over} px sideways")
                            if not options.no_axe:
                                wrong += [f"axe {v['id']}: {v['nodes'][:2]}" for v in axe_of(window)]
                            for text in wrong:
                                problems += 1
                                print(f"{name} {language} {theme} {width}: {text[:600]}")
                        for window in windows.values():
                            window.context.close()
    print(f"{taken} pictures in {options.out}, {problems} problems")
    return 1 if problems else 0


def axe_of(window: Any) -> list[dict[str, Any]]:
    """axe needs its script in the page, which the strict CSP forbids: it runs in a copy of the window without it."""
    context = window.page.context.browser.new_context(
        bypass_csp=True,
        viewport=window.page.viewport_size,
        color_scheme="dark" if window.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") else "light",
        storage_state=window.context.storage_state(),
        reduced_motion="reduce",
    )
    try:
        page = context.new_page()
        page.goto(window.page.url, wait_until="load")
        page.wait_for_timeout(150)
        return axe(page)
    finally:
        context.close()


if __name__ == "__main__":
    sys.exit(main())
