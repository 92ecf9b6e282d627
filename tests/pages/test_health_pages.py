"""GPU health: the drawing, the node, the inbox of findings, the XID catalogue; and checkpoints."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Callable

import pytest
from django.test import Client

from apps.checkpoints.models import Checkpoint
from apps.clusters.models import Cluster, Node
from apps.health.heatmap import Block, draw, state_levels, step_of
from apps.health.models import Finding, Gpu, XidCode
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]


@pytest.mark.parametrize(
    ("used", "takes", "off", "findings", "expected"),
    [
        (0, True, set(), {}, ["free"] * 4),
        (4, True, set(), {}, ["used"] * 4),
        (1, True, set(), {}, ["free", "free", "used", "free"]),
        (0, False, set(), {}, ["out"] * 4),
        (2, False, set(), {1: "bad"}, ["used", "bad", "used", "out"]),
        (0, True, {3}, {3: "bad"}, ["free", "free", "free", "off"]),
        (0, True, set(), {None: "warn"}, ["warn"] * 4),
        (4, True, set(), {None: "warn"}, ["used"] * 4),
        (0, True, {0}, {None: "warn"}, ["off", "free", "free", "free"]),
    ],
)
def test_the_state_of_each_gpu(
    used: int, takes: bool, off: set[int], findings: dict[int | None, str], expected: list[str]
) -> None:
    levels = state_levels(
        gpus=4,
        used=used,
        takes_jobs=takes,
        on_bus={i: i not in off for i in range(4)},
        activity={0: 0.2, 1: 0.1, 2: 0.9, 3: 0.0},
        findings=findings,
    )
    assert levels == expected


@pytest.mark.parametrize(
    ("value", "level"), [(None, "hx"), (0, "h0"), (40, "h0"), (40.1, "h1"), (65, "h3"), (80.5, "h5")]
)
def test_steps_of_temperature(value: float | None, level: str) -> None:
    assert step_of("temperature", value) == level


def test_every_gpu_is_drawn_once_and_every_node_can_be_pointed_at() -> None:
    drawn = draw([Block(str(n), ["used"] * 7 + ["bad"], f"node {n}") for n in range(30)])
    assert drawn.squares["used"].count("M") == 210
    assert drawn.squares["bad"].count("M") == drawn.marks["bad"].count("M") == 30
    assert "used" not in drawn.marks
    assert len({(s.x, s.y) for s in drawn.spots}) == 30
    assert all(s.x + s.width <= drawn.width + 1 and s.y + s.height <= drawn.height + 1 for s in drawn.spots)
    assert draw([]).spots == []


def test_sixteen_thousand_gpus_stay_one_light_page(sign_in: SignIn, more: DemoRows) -> None:
    cluster = Cluster.objects.create(name="giant", api_url="http://x", user_name="u", token_ref="", working_root="/x")
    Node.objects.bulk_create(
        Node(uid=f"node_giant{n:04d}", cluster=cluster, name=f"giant-{n:04d}", gpus=8, gpu_type="h100", phase="READY")
        for n in range(2048)
    )
    nodes = Node.objects.filter(cluster=cluster)
    Gpu.objects.bulk_create(
        (
            Gpu(node=n, index=i, uuid=f"G-{n.pk}-{i}", temperature_c=30 + (n.pk + i) % 60)
            for n in nodes
            for i in range(8)
        ),
        batch_size=2000,
    )
    client = sign_in("member")
    began = time.perf_counter()
    answer = client.get("/health?cluster=giant&metric=temperature")
    took = time.perf_counter() - began
    text = answer.content.decode()
    squares = sum(d.count("M") for d in re.findall(r'class="sq-h\d"\s+d="([^"]+)"', text))
    assert squares == 16_384
    assert text.count('class="spot"') == 2048
    assert len(text) < 1_500_000
    assert took < 10
    assert 'tabindex="-1"' in text, "two thousand stops would lock the keyboard in"
    grid = client.get(f"/health/nodes-of/{cluster.uid}").content.decode()
    assert "node-cards" not in grid.replace('id="node-cards"', "")
    assert grid.count('class="spot"') == 2048


def test_the_map_has_a_legend_in_words_and_a_table(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("member")
    text = client.get("/health?metric=temperature&cluster=ada").content.decode()
    assert "70–80 °C" in text
    assert "No reading" in text
    assert "Temperature" in text
    table = client.get("/health/gpus?cluster=ada&sort=-temperature").content.decode()
    figures = [float(f) for f in re.findall(r'data-label="Temperature">\s*([\d.]+) °C', table)]
    assert len(figures) > 40
    assert figures == sorted(figures, reverse=True)
    off = client.get("/health/gpus?on_bus=False").content.decode()
    assert off.count("<tr>") == 2, "a head and the one GPU that fell off"
    rows = list(csv.DictReader(io.StringIO(client.get("/health/gpus.csv?cluster=ada").content.decode())))
    assert len(rows) == 64
    assert {r["on_bus"] for r in rows} == {"True", "False"}


def test_a_node_shows_gpus_findings_and_what_is_missing(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("member")
    text = client.get(f"/nodes/{more.nodes['p5-main-8'].uid}").content.decode()
    assert "Takes no new jobs" in text
    assert "GPU_HAS_FALLEN_OFF_THE_BUS" in text
    assert "Off the bus" in text
    assert "Drain…" not in text, "a viewer may not"
    blind = client.get(f"/nodes/{more.nodes['p5-main-7'].uid}").content.decode()
    assert "faults that log an XID stay unseen" in blind
    assert "HTTP 503" in blind
    assert "from dcgm" in blind
    running = client.get(f"/jobs/on-node/{more.nodes['p5-main-1'].uid}").content.decode()
    assert "llama-70b-pretrain" in running
    hidden = sign_in("outsider").get(f"/jobs/on-node/{more.nodes['p5-main-1'].uid}").content.decode()
    assert "llama" not in hidden
    assert "2 more jobs of other teams." in hidden


def test_a_drain_needs_a_reason_and_a_right(sign_in: SignIn, more: DemoRows) -> None:
    node = more.nodes["p5-main-1"]
    assert sign_in("lead").post(f"/nodes/{node.uid}/drain", {"reason": "x"}).status_code == 403
    client = sign_in("operator")
    assert client.post(f"/nodes/{node.uid}/drain", {"reason": " "}).status_code == 422
    assert client.post(f"/nodes/{node.uid}/drain", {"reason": "noisy <fan>"}).status_code == 302
    assert Node.objects.get(pk=node.pk).drain_reason == "noisy <fan>"
    text = client.get(f"/nodes/{node.uid}").content.decode()
    assert "noisy &lt;fan&gt;" in text
    assert "noisy <fan>" not in text
    assert client.post(f"/nodes/{node.uid}/resume").status_code == 302
    assert Node.objects.get(pk=node.pk).drain_requested_at is None
    assert sign_in("member").post(f"/nodes/{node.uid}/resume").status_code == 403


def test_findings_are_an_inbox(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("operator")
    text = client.get("/findings?phase=OPEN").content.decode()
    assert text.count("Acknowledge XID") == 2
    assert "drained p5-main-8, restarting llama-70b-pretrain" in text
    assert "MMU_ERR_FLT" not in text, "resolved"
    assert 'hx-trigger="every 10s"' in text
    assert 'hx-trigger="every 10s"' not in client.get("/findings?phase=RESOLVED").content.decode()
    assert "Acknowledge XID" not in sign_in("member").get("/findings").content.decode()
    by_node = client.get("/findings?sort=node").content.decode()
    names = re.findall(r'data-label="Node">\s*<a href="[^"]+">([^<]+)<', by_node)
    assert names == sorted(names)


def test_a_finding_shows_its_evidence_and_nvidias_name(sign_in: SignIn, more: DemoRows) -> None:
    finding = more.findings["xid79"]
    client = sign_in("operator")
    text = client.get(f"/findings/{finding.uid}").content.decode()
    assert "DCGM_FI_DEV_XID_ERRORS" in text
    assert "GPU_HAS_FALLEN_OFF_THE_BUS" in text
    assert "RESTART_BM" in text
    assert sign_in("owner").post(f"/findings/{finding.uid}/acknowledge").status_code == 403
    answer = client.post(f"/findings/{finding.uid}/acknowledge", {"back": "list"})
    assert answer["Location"] == "/findings"
    assert Finding.objects.get(pk=finding.pk).phase == "ACKNOWLEDGED"
    assert client.post(f"/findings/{finding.uid}/acknowledge").status_code == 409
    assert client.post(f"/findings/{finding.uid}/resolve").status_code == 302
    done = Finding.objects.get(pk=finding.pk)
    assert (done.phase, done.resolved_by) == ("RESOLVED", "operator")
    assert client.post(f"/findings/{finding.uid}/resolve").status_code == 409


def test_the_xid_catalogue_is_searched_by_number_and_word(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("member")
    assert client.get("/health/xid").content.decode().count('id="xid-') == XidCode.objects.count()
    one = client.get("/health/xid?code=79").content.decode()
    assert one.count('id="xid-') == 1
    assert "GPU_HAS_FALLEN_OFF_THE_BUS" in one
    assert "docs.nvidia.com" in one
    assert 'id="xid-79"' in client.get("/health/xid?q=fallen").content.decode()
    assert "admin console" not in one
    assert "Edit in the admin console" in sign_in("admin").get("/health/xid").content.decode()


def test_checkpoints_by_job_tell_where_a_resume_would_start(sign_in: SignIn, more: DemoRows) -> None:
    text = sign_in("member").get("/checkpoints").content.decode()
    row = text[text.index("llama-70b-pretrain") : text.index("moe-8x7b-ablation")]
    assert "step 18,000" in row
    assert row.count('class="st st-') >= 8
    assert 'hx-trigger="every 5s"' in text, "one is being written"
    assert "llama" not in sign_in("outsider").get("/checkpoints").content.decode()


def test_checkpoints_are_filtered_by_state_and_job(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("member")
    torn = client.get("/checkpoints/all?state=TORN").content.decode()
    assert torn.count("Torn") >= 2
    assert "step 18,000" not in torn
    assert 'hx-trigger="every 5s"' not in torn, "settled rows are not asked for again"
    job = more.jobs["baseline-1b"].uid
    assert client.get(f"/checkpoints/all?job={job}").content.decode().count('class="main-cell"') == 4
    assert "No checkpoint matches" in client.get("/checkpoints/all?q=zzz").content.decode()


def test_a_checkpoint_lists_its_files_and_whether_to_trust_it(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("member")
    torn = Checkpoint.objects.get(state="TORN", series__name="sft-instruct-v3")
    text = client.get(f"/checkpoints/{torn.uid}").content.decode()
    assert "Do not resume from it" in text
    assert "__4_0.distcp" in text
    assert "step 1,500" in text, "what a resume would take instead"
    assert client.get("/checkpoints/ckp_nothing").status_code == 404
    whole = Checkpoint.objects.get(series__name="sft-instruct-v3", state="COMPLETE")
    assert "a next attempt resumes here" in client.get(f"/checkpoints/{whole.uid}").content.decode()
