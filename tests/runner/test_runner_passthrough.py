"""The command runs as if the runner were not there: output, exit codes, signals, and every fault of the runner."""

from __future__ import annotations

import ast
import hashlib
import os
import signal
import subprocess
import sys
import time
from datetime import datetime

import pytest

from .conftest import PYTHON, RUNNER


def test_output_passes_byte_for_byte_and_is_reported(bench, recorder):
    code, stdout, stderr = bench.python(
        "import os; os.write(1, 'one\\nzwei ü 三\\n'.encode()); os.write(2, b'warn\\n'); os.write(1, b'no newline')"
    )
    assert (code, stdout, stderr) == (0, "one\nzwei ü 三\nno newline".encode(), b"warn\n")
    assert recorder.text("stdout") == "one\nzwei ü 三\nno newline"
    assert recorder.text("stderr") == "warn\n"
    kinds = [event["kind"] for event in recorder.events]
    assert kinds[0] == "start"
    assert kinds[-1] == "exit"
    assert [event["seq"] for event in recorder.events] == list(range(1, len(kinds) + 1))
    assert recorder.kind("exit")[0]["code"] == 0
    assert recorder.kind("exit")[0]["signal"] is None
    assert recorder.headers[0]["Authorization"] == "Bearer job-token"
    assert list(bench.spool.iterdir()) == [], "a spool with nothing left and nothing to tell is removed"


def test_binary_output_is_unharmed_and_its_text_has_no_nul(bench, recorder):
    code, stdout, _ = bench.python("import os\nfor _ in range(8): os.write(1, bytes(range(256)) * 64)")
    assert code == 0
    assert stdout == bytes(range(256)) * 512
    assert sum(log["size"] for log in recorder.kind("log")) == 256 * 512
    assert "\0" not in recorder.text("stdout")


def test_huge_lines_are_split_and_characters_are_not(bench, recorder):
    text = "三" * 350_000  # 1.05 MB without one newline, no character starts at a multiple of 32 KiB
    code, stdout, _ = bench.python(f"print('a' + '三' * {len(text)}, end='')")
    assert code == 0
    assert stdout == ("a" + text).encode()
    assert recorder.text("stdout") == "a" + text
    assert max(log["size"] for log in recorder.kind("log")) <= 32 * 1024
    assert max(len(body) for body in recorder.bodies) <= 256 * 1024
    assert max(len(post["events"]) for post in recorder.posts) <= 500


def test_a_character_written_in_two_halves_arrives_whole(bench, recorder):
    code, stdout, _ = bench.python(
        "import os, time; b = '한'.encode(); os.write(1, b'x' + b[:1]); time.sleep(1.2); os.write(1, b[1:])"
    )
    assert (code, stdout) == (0, "x한".encode())
    assert [log["text"] for log in recorder.kind("log")] == ["x", "한"]


def test_markup_and_escape_bombs_stay_text(bench, recorder):
    bomb = "\x1b[2J\x1b]0;title\x07<script>alert(1)</script>\x1b[31m" + "<b>" * 5000 + "\x1b" * 50_000
    (bench.folder / "bomb").write_text(bomb)
    code, stdout, _ = bench.run("cat", "bomb")
    assert (code, stdout) == (0, bomb.encode())
    assert recorder.text("stdout") == bomb
    assert max(len(body) for body in recorder.bodies) <= 256 * 1024


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
def test_exit_code_is_the_commands(bench, recorder, code):
    assert bench.run("sh", "-c", f"exit {code}")[0] == code
    assert recorder.kind("exit")[0]["code"] == code


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR1])
def test_death_by_signal_is_repeated(bench, recorder, signum):
    code, _, _ = bench.run("sh", "-c", f"kill -{int(signum)} $$")
    assert code == -signum
    assert recorder.kind("exit")[0]["code"] == 128 + signum
    assert recorder.kind("exit")[0]["signal"] == signum


def test_a_shell_sees_128_plus_the_signal(bench):
    command = [PYTHON, str(RUNNER), "--", "sh", "-c", "kill -TERM $$"]
    line = " ".join(f"'{part}'" for part in command)
    shell = subprocess.run(["bash", "-c", f"{line}; exit $?"], env=bench.environment, cwd=bench.folder, check=False)
    assert shell.returncode == 143


COUNTER = """
import os, signal, sys, time
got = []
names = {getattr(signal, "SIG" + name): name for name in ("TERM", "INT", "USR1", "USR2", "CONT")}
for number in names:
    signal.signal(number, lambda n, f: got.append(names[n]))
print("ready", flush=True)
deadline = time.time() + 20
while "TERM" not in got and time.time() < deadline:
    time.sleep(0.01)
time.sleep(0.5)
print(",".join(got), flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("whole_group", [False, True])
def test_signals_reach_the_command_exactly_once(bench, recorder, whole_group):
    process = bench.start(sys.executable, "-c", COUNTER)
    recorder.wait(lambda: "ready" in recorder.text("stdout"))
    # Several times the same: a second copy can come so soon after the first that the two count as one.
    for signum in (*[signal.SIGUSR1] * 8, signal.SIGINT, signal.SIGUSR2, signal.SIGCONT, signal.SIGTERM):
        if whole_group:
            os.killpg(process.pid, signum)
        else:
            os.kill(process.pid, signum)
        time.sleep(0.3)
    stdout, _ = process.communicate(timeout=20)
    assert stdout.decode().split()[1] == "USR1," * 8 + "INT,USR2,CONT,TERM"
    assert process.returncode == 7


def test_an_ignored_signal_stays_ignored(bench):
    command = f"trap '' HUP; exec {PYTHON} {RUNNER} -- sh -c 'kill -HUP $PPID; kill -HUP $$; echo alive'"
    shell = subprocess.run(
        ["bash", "-c", command], env=bench.environment, cwd=bench.folder, capture_output=True, check=False
    )
    assert (shell.returncode, shell.stdout) == (0, b"alive\n")


def test_the_command_gets_the_default_sigpipe_back(bench):
    code, stdout, _ = bench.run("bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}")
    assert (code, stdout) == (0, b"y\n141\n")


def test_a_missing_command_reads_as_in_a_shell(bench):
    code, _, stderr = bench.run("/no/such/program")
    assert code == 127
    assert b"cannot run /no/such/program: No such file or directory" in stderr


def test_standard_input_and_other_descriptors_are_the_commands(bench):
    reading, writing = os.pipe()
    process = bench.start("bash", "-c", f"cat; echo extra >&{writing}", stdin=subprocess.PIPE, pass_fds=[writing])
    stdout, _ = process.communicate(b"from stdin", timeout=20)
    os.close(writing)
    assert stdout == b"from stdin"
    assert os.read(reading, 100) == b"extra\n"
    os.close(reading)


def test_without_a_url_the_command_replaces_the_runner(bench):
    process = bench.start("sh", "-c", "echo $$", env={"QD_INGEST_URL": ""})
    stdout, _ = process.communicate(timeout=20)
    assert int(stdout) == process.pid


def test_without_threads_the_command_replaces_the_runner(bench, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\n"
        'def no_more(self):\n    raise RuntimeError("can\'t start new thread")\n'
        "threading.Thread.start = no_more\n"
    )
    process = bench.start("sh", "-c", "echo $$; exit 5", env={"PYTHONPATH": str(tmp_path)})
    stdout, _ = process.communicate(timeout=20)
    assert int(stdout) == process.pid
    assert process.returncode == 5


def test_a_background_process_does_not_hold_the_job(bench, recorder):
    began = time.monotonic()
    process = bench.start("bash", "-c", "(sleep 2; echo late) & echo now")
    assert process.wait(timeout=20) == 0
    assert time.monotonic() - began < 2.0, "the runner waited for the background process"
    assert recorder.kind("exit")[0]["code"] == 0
    assert process.stdout.read() == b"now\nlate\n", "the guardian passes through what comes later"


def test_output_goes_on_when_its_own_reader_is_gone(bench, recorder):
    process = bench.start("sh", "-c", "sleep 0.5; echo one; sleep 0.3; echo two; exit 9")
    process.stdout.close()
    assert process.wait(timeout=20) == 9
    assert recorder.text("stdout") == "one\ntwo\n"


def test_large_output_is_not_slowed_to_a_crawl_and_not_lost(bench, recorder):
    size = 6 * 1024 * 1024
    code, stdout, _ = bench.python(
        f"import os\nfor _ in range({size} // 65536): os.write(1, b'0123456789abcde\\n' * 4096)"
    )
    assert code == 0
    assert hashlib.sha256(stdout).digest() == hashlib.sha256(b"0123456789abcde\n" * (size // 16)).digest()
    assert len(recorder.text("stdout")) == size


def test_node_role_reports_only_start_heartbeat_and_exit(bench, recorder):
    code, stdout, stderr = bench.run(
        "sh", "-c", "echo out; echo err >&2; sleep 0.9; exit 4", role="node", env={"QD_HEARTBEAT_S": "0.2"}
    )
    assert (code, stdout, stderr) == (4, b"out\n", b"err\n")
    kinds = [event["kind"] for event in recorder.events]
    assert kinds[0] == "start"
    assert kinds[-1] == "exit"
    assert set(kinds[1:-1]) == {"heartbeat"}
    assert recorder.posts[0]["runner"]["role"] == "node"


def test_start_heartbeat_and_clock_have_their_fields(bench, recorder):
    env = {"QD_HEARTBEAT_S": "0.2", "SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "4", "SLURMD_NODENAME": "p5-3"}
    bench.python("x = bytearray(30 << 20); import time; time.sleep(1)", env=env)
    start = recorder.kind("start")[0]
    assert start["slurm_job_id"] == "77"
    assert start["nodes"] == 4
    assert start["cwd"] == str(bench.folder)
    assert start["pid"] > 1
    assert start["hostname"]
    assert start["python"][0] == "3"
    beat = recorder.kind("heartbeat")[-1]
    assert 0 < beat["elapsed_s"] < 20
    assert beat["rss_mib"] > 25
    assert beat["load1"] >= 0
    runner = recorder.posts[0]["runner"]
    assert runner["node"] == "p5-3"
    assert abs(time.time() - seconds(runner["clock"])) < 30
    assert recorder.events[0]["at"] <= recorder.events[-1]["at"]


def seconds(text):
    assert text.endswith("Z")
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize("arguments", [[], ["--"], ["--role", "boss", "--", "true"], ["true"]])
def test_bad_usage_is_said(bench, arguments):
    done = subprocess.run([PYTHON, str(RUNNER), *arguments], env=bench.environment, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: quarterdeck_runner.py")


def test_the_file_is_python_3_8_and_standard_library_only():
    tree = ast.parse(RUNNER.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"removeprefix", "removesuffix", "bit_count", "walrus", "is_relative_to"}


def test_a_jobs_python_path_cannot_break_the_runner(bench, recorder, tmp_path):
    for name in ("json", "socket", "urllib", "subprocess"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)\n")
    done = subprocess.run(
        [PYTHON, "-I", str(RUNNER), "--", "sh", "-c", "echo $PYTHONPATH; exit 3"],
        env={**bench.environment, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout.decode()) == (3, f"{tmp_path}\n")
    assert recorder.kind("exit")[0]["code"] == 3


def test_asked_to_go_while_nobody_reads_its_output(bench, recorder):
    reading, writing = os.pipe()  # a pipe that is never read: the last bytes stay stuck in it
    process = bench.start("head", "-c", "100000", "/dev/zero", stdout=writing, env={"QD_FLUSH_S": "1"})
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=10)
    os.close(reading)
    os.close(writing)
