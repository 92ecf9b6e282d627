"""Nothing is lost while the portal is away, and nothing arrives twice."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
import time

import pytest

TICKER = "import time\nfor i in range(30): print('line', i, flush=True); time.sleep(0.05)"
TICKED = "".join(f"line {i}\n" for i in range(30))


def sequence(recorder):
    return [event["seq"] for event in recorder.events]


def spooled(bench):
    """(kind, data) of what lies in the spools on disk, in order."""
    lines = [line for path in sorted(bench.spool.glob("*/events-*.jsonl")) for line in path.read_bytes().splitlines()]
    return [(event["kind"], event["data"]) for event in map(json.loads, lines)]


@pytest.mark.parametrize("mode", ["500", "429", "html", "503", "redirect", "lose-answer", "204"])
def test_an_absent_portal_delays_and_loses_nothing(bench, recorder, mode):
    recorder.mode = mode
    timer = threading.Timer(1.0, lambda: setattr(recorder, "mode", "ok"))
    timer.start()
    code, stdout, _ = bench.python(TICKER)
    assert (code, stdout.decode()) == (0, TICKED)
    assert recorder.text("stdout") == TICKED
    assert sequence(recorder) == list(range(1, len(recorder.events) + 1))
    assert recorder.events[-1]["kind"] == "exit"
    assert recorder.strays == [], "the token follows no redirect"


def test_nobody_listens_at_first(bench, recorder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = bench.start(sys.executable, "-c", TICKER, env={"QD_INGEST_URL": f"http://127.0.0.1:{port}/x"})
    assert process.stdout.read().decode() == TICKED
    # The portal starts on that port only after the command's end, within the flush time.
    forward = socket.create_server(("127.0.0.1", port))
    relay = threading.Thread(target=relay_to, args=(forward, recorder.server.server_port), daemon=True)
    relay.start()
    assert process.wait(timeout=30) == 0
    forward.close()
    assert recorder.text("stdout") == TICKED


def relay_to(listener, port):
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        far = socket.create_connection(("127.0.0.1", port))
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=copy, args=(source, target), daemon=True).start()


def copy(source, target):
    while True:
        data = source.recv(65536)
        if not data:
            target.shutdown(socket.SHUT_WR)
            return
        target.sendall(data)


def test_a_hanging_portal_neither_slows_nor_stops_the_command(bench, recorder):
    recorder.mode = "hang"
    began = time.monotonic()
    process = bench.start(sys.executable, "-c", "for i in range(1000): print(i)", env={"QD_FLUSH_S": "1"})
    assert process.stdout.read().split()[-1] == b"999"
    assert time.monotonic() - began < 2
    assert process.wait(timeout=10) == 0
    assert time.monotonic() - began < 4, "waited longer than the flush time"
    assert [kind for kind, _ in spooled(bench)][-1] == "exit", "what was not posted stays in the spool"


@pytest.mark.parametrize("status", ["401", "403", "404", "410"])
def test_a_refused_token_stops_posting_and_keeps_the_spool(bench, recorder, status):
    recorder.mode = status
    began = time.monotonic()
    code, stdout, _ = bench.python(TICKER)
    assert (code, stdout.decode()) == (0, TICKED)
    assert time.monotonic() - began < 8, "no flush time is spent on a portal that refuses for good"
    assert recorder.attempts == 1
    kinds = [kind for kind, _ in spooled(bench)]
    assert kinds[0] == "start"
    assert kinds[-1] == "exit"
    log = next(bench.spool.glob("*/runner.log")).read_text()
    assert f"the portal answered {status}" in log
    assert "job-token" not in "".join(p.read_text() for p in bench.spool.glob("*/*")), "the token is never on disk"


def test_too_large_a_post_is_halved(bench, recorder):
    recorder.limit_events = 3
    recorder.mode = "500"
    threading.Timer(1.2, lambda: setattr(recorder, "mode", "ok")).start()
    code, _, _ = bench.python(TICKER, env={"QD_HEARTBEAT_S": "0.05"})
    assert code == 0
    assert recorder.text("stdout") == TICKED
    assert max(len(post["events"]) for post in recorder.posts) <= 3
    assert sequence(recorder) == list(range(1, len(recorder.events) + 1))


def test_refused_events_are_dropped_and_the_rest_goes_on(bench, recorder):
    recorder.mode = "422"
    recorder.poison = {"stderr"}
    code, _, stderr = bench.python(
        "import os, time\nfor i in range(5): os.write(2, b'x'); print(i, flush=True); time.sleep(.5)"
    )
    assert code == 0
    assert stderr == b"xxxxx"
    assert recorder.text("stdout") == "0\n1\n2\n3\n4\n"
    assert recorder.text("stderr") == ""
    assert recorder.events[-1]["kind"] == "exit"


def test_an_event_too_large_by_itself_is_dropped(bench, recorder):
    recorder.limit_events = 0
    code, _, _ = bench.python("print(1)")
    assert code == 0
    assert recorder.events == []
    assert recorder.attempts < 20
    assert "dropped" in next(bench.spool.glob("*/runner.log")).read_text()


def test_killed_runner_leaves_the_command_alive_and_the_spool_to_drain(bench, recorder, tmp_path):
    recorder.mode = "500"
    program = (
        "import os, time\nprint('before', flush=True)\ntime.sleep(2.5)\n"
        "print('after', flush=True)\nopen('finished', 'w').write('yes')"
    )
    process = bench.start(sys.executable, "-c", program)
    deadline = time.monotonic() + 10
    while not any(kind == "log" for kind, _ in spooled(bench)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    refused = bench.drain(QD_FLUSH_S="1")
    assert refused.returncode == 1
    assert b"still alive" in refused.stdout
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert process.stdout.read() == b"before\nafter\n", "the guardian passes the output through"
    assert (tmp_path / "finished").read_text() == "yes"
    torn = sorted(bench.spool.glob("*/events-*.jsonl"))[-1]
    with torn.open("ab") as file:
        file.write(b'{"seq":99,"at":"2026-01')  # as a crash within a write would leave it
    unfinished = bench.drain(QD_FLUSH_S="1")
    assert unfinished.returncode == 1
    assert b"no answer in time" in unfinished.stdout
    recorder.mode = "ok"
    done = bench.drain()
    assert (done.returncode, done.stderr) == (0, b"")
    assert recorder.text("stdout") == "before\n"
    assert [event["kind"] for event in recorder.events] == ["start", "log"]
    assert recorder.posts[0]["runner"]["role"] == "batch"
    again = bench.drain()
    assert again.returncode == 0
    assert b"nothing to post" in again.stdout


def test_drain_goes_on_from_the_acknowledged_position(bench, recorder):
    process = bench.start(sys.executable, "-c", TICKER, env={"QD_FLUSH_S": "0"})
    recorder.wait(lambda: "line 5" in recorder.text("stdout"))
    recorder.mode = "503"
    assert process.wait(timeout=20) == 0
    before = len(recorder.events)
    recorder.mode = "ok"
    assert bench.drain().returncode == 0
    assert len(recorder.events) > before
    assert recorder.text("stdout") == TICKED
    assert recorder.posts[-1]["events"][0]["seq"] > 1
    assert recorder.events[-1]["kind"] == "exit"


def test_drain_without_a_token_says_what_it_needs(bench, recorder):
    bench.python("print(1)", env={"QD_INGEST_TOKEN": ""})
    assert recorder.attempts == 0
    done = bench.drain(QD_INGEST_TOKEN="")
    assert done.returncode == 2
    assert b"--drain needs QD_INGEST_TOKEN" in done.stderr
    assert bench.drain().returncode == 0
    assert recorder.text("stdout") == "1\n"


NOISE = """
import json, os, time
os.makedirs("checkpoints/step-1"); open("checkpoints/step-1/.metadata", "w").write("x")
for i in range(40):
    os.write(1, (("%06d" % i) + "n" * 58 + "\\n").encode() * 500)
    if i % 10 == 0:
        os.write(1, json.dumps({"step": i, "loss": 1.5}).encode() + b"\\n")
        time.sleep(0.6)
"""


def test_a_full_spool_drops_the_oldest_logs_counted_and_nothing_else(bench, recorder):
    recorder.mode = "500"
    process = bench.start(sys.executable, "-c", NOISE, env={"QD_SPOOL_MAX_BYTES": "400000"})
    stdout = process.stdout.read()
    time.sleep(1)
    assert sum(path.stat().st_size for path in bench.spool.glob("*/events-*")) < 500_000
    recorder.mode = "ok"
    assert process.wait(timeout=30) == 0
    gaps = recorder.kind("gap")
    logs = recorder.kind("log")
    assert gaps
    assert gaps[0]["reason"] == "spool_full"
    kept = sum(log["size"] for log in logs)
    assert kept + sum(gap["dropped_bytes"] for gap in gaps) == len(stdout), "every byte is kept or counted"
    assert 0 < kept < 400_000
    assert sum(gap["dropped_events"] for gap in gaps) > 10
    assert logs[-1]["offset"] + logs[-1]["size"] == len(stdout), "the newest are kept"
    assert gaps[0]["streams"]["stdout"]["offset"] == 0
    assert gaps[-1]["streams"]["stdout"]["end"] == logs[0]["offset"]
    assert [progress["step"] for progress in recorder.kind("progress")] == [0, 10, 20, 30]
    assert recorder.kind("checkpoint")
    assert recorder.events[-1]["kind"] == "exit"
    seqs = sequence(recorder)
    assert seqs == sorted(set(seqs))


def limited(bytes_):
    """A disk that takes no file beyond so many bytes, for the runner and its command."""
    import resource

    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))


def test_a_full_disk_does_not_touch_the_command_and_the_events_still_flow(bench, recorder):
    code, stdout, _ = bench.python(TICKER, preexec_fn=limited(900))
    assert (code, stdout.decode()) == (0, TICKED)
    assert recorder.text("stdout") == TICKED
    assert recorder.events[-1]["kind"] == "exit"


def test_a_full_disk_and_no_portal_drop_counted(bench, recorder):
    recorder.mode = "500"
    size = 12 * 1024 * 1024
    program = (
        f"import os, json, time\nos.write(1, json.dumps(dict(step=5, loss=2)).encode() + b'\\n'); time.sleep(1)\n"
        f"for i in range({size} // 65536): os.write(1, b'm' * 65535 + b'\\n'); time.sleep(0.004)"
    )
    process = bench.start(sys.executable, "-c", program, preexec_fn=limited(500))
    total = len(process.stdout.read())
    time.sleep(1.5)
    recorder.mode = "ok"
    assert process.wait(timeout=30) == 0
    gaps = recorder.kind("gap")
    kept = sum(log["size"] for log in recorder.kind("log"))
    assert gaps
    assert kept + sum(gap["dropped_bytes"] for gap in gaps) == total
    assert [progress["step"] for progress in recorder.kind("progress")] == [5]
    assert recorder.events[-1]["kind"] == "exit"
    assert recorder.kind("start")


def test_an_unwritable_spool_folder_falls_back(bench, recorder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    env = {"QD_SPOOL_DIR": str(tmp_path / "file" / "spool"), "TMPDIR": str(tmp_path)}
    code, stdout, _ = bench.python("print('hello')", env=env)
    assert (code, stdout) == (0, b"hello\n")
    assert recorder.text("stdout") == "hello\n"


def test_the_default_spool_is_below_the_submit_folder(bench, recorder, tmp_path):
    recorder.mode = "401"
    bench.python("print(1)", env={"QD_SPOOL_DIR": "", "SLURM_SUBMIT_DIR": str(tmp_path)})
    spools = list((tmp_path / ".quarterdeck" / "a1" / "spool").iterdir())
    assert len(spools) == 1
    assert spools[0].stat().st_mode & 0o077 == 0, "output may hold secrets: only its owner may read it"
    assert re.fullmatch(r"[0-9a-f-]{36}", spools[0].name)


def test_a_proxy_is_not_asked_for_loopback(bench, recorder):
    code, _, _ = bench.python("print(1)", env={"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"})
    assert code == 0
    assert recorder.text("stdout") == "1\n"


def test_asked_to_end_while_flushing_it_soon_ends(bench, recorder):
    recorder.mode = "500"
    process = bench.start("sh", "-c", "echo done")
    assert process.stdout.read() == b"done\n"
    time.sleep(0.8)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
    assert time.monotonic() - began < 5
