"""Everything that must hold before a change goes in: checks, then tests on each database, Slurm and browser."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sandbox.lab.roots import RELEASES, why_not_here  # noqa: E402
from tests import machine, services  # noqa: E402

RESULTS = ROOT / "test-results"
BIN = Path(sys.executable).parent
TORCH_VERSION = "2.13.0"
LAB = ("-m", "sandbox.lab")
PYTHON_PATHS = ("portal", "apps", "worker", "sandbox", "runner")
#: Folders whose tests start many processes or measure time: never beside other tests.
ALONE = ("tests/stress", "tests/tooling")
#: Long tests that mostly wait: they start first, so that none of them goes on alone at the end.
FIRST = (
    "tests/flows/test_tutorial.py",
    "tests/worker/test_fleet_chaos.py",
    "tests/contract/test_broker.py",
    "tests/worker/test_managed_chaos.py",
)
#: A test belongs to the first of these markers that it bears; what bears none runs in parallel.
ORDER = ("torch", "real_slurm", "browser")


def marked(wanted: str | None) -> str:
    """The -m expression of the tests that belong to one marker (or, with None, to none of them)."""
    before = ORDER if wanted is None else ORDER[: ORDER.index(wanted)]
    return " and ".join([*([wanted] if wanted else []), *(f"not {name}" for name in before)])


@dataclass
class Result:
    """How one stage ended."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    note: str = ""
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass
class Run:
    """What the stages share: a temporary folder, the environment, the addresses of services."""

    tmp: Path
    environment: dict[str, str]
    workers: int = 2
    database_url: str = ""
    torch: threading.Thread | None = None
    torch_note: str = ""
    groups: set[int] = field(default_factory=set)

    def command(self, name: str, words: Sequence[str], *, limit_s: int = 900, **environment: str) -> int:
        """Run into the stage's log; the return code, or 124 when it took too long. Leaves no process behind."""
        with (RESULTS / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                list(words),
                cwd=ROOT,
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.groups.add(process.pid)
            try:
                return process.wait(limit_s)
            except subprocess.TimeoutExpired:
                log.write(f"\nnot done after {limit_s} s: killed\n".encode())
                return 124
            finally:
                self.end(process.pid)
                process.wait()

    def end(self, *groups: int) -> None:
        """Kill what is left of process groups; all of them when none is named."""
        for group in groups or tuple(self.groups):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            self.groups.discard(group)


Stage = Callable[[str, Run], Result]


def check(*words: str, environment: Callable[[Run], Mapping[str, str]] = lambda run: {}) -> Stage:
    """A stage that is one command: it holds or it does not."""

    def run_it(name: str, run: Run) -> Result:
        code = run.command(name, words, **environment(run))
        return Result(passed=int(code == 0), failed=int(code != 0), note="" if code == 0 else f"code {code}")

    return run_it


def tool(name: str, *words: str) -> Stage:
    """A check by a program of the virtualenv."""
    return check(str(BIN / name), *words)


def manage(*words: str, production: bool = False) -> Stage:
    """A check by a management command, in development or with a production site's settings."""
    return check(
        sys.executable, "manage.py", *words, environment=lambda run: production_environment(run) if production else {}
    )


def production_environment(run: Run) -> dict[str, str]:
    """Settings as a production site has them; nothing is connected to."""
    return {
        "QD_ENV": "production",
        "QD_SECRET_KEY": secrets.token_urlsafe(50),
        "QD_TOKEN_PEPPERS": json.dumps([secrets.token_urlsafe(32)]),
        "QD_METRICS_TOKEN": secrets.token_urlsafe(32),
        "QD_DATABASE_URL": "postgresql://qd@127.0.0.1:1/qd",
        "QD_REDIS_URL": "redis://127.0.0.1:1/0",
        "QD_ALLOWED_HOSTS": '["portal.example.org"]',
        "QD_BASE_URL": "https://portal.example.org",
        "QD_STATIC_ROOT": str(run.tmp / "static"),
    }


def pytest_run(name: str, run: Run, words: Sequence[str], *, limit_s: int = 1500, **environment: str) -> Result:
    """pytest on some of the tests, counted from its own report; no test at all is no failure."""
    report = RESULTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    basetemp = run.tmp / f"pytest-{name}"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", f"--basetemp={basetemp}", *words]
    var = run.tmp / f"var-{name}"
    var.mkdir(exist_ok=True)
    code = run.command(name, command, limit_s=limit_s, QD_VAR_DIR=str(var), **environment)
    found = counted(report)
    if code not in (0, 1, 5) or (code == 1 and not found.failed):
        found.failed += 1
        found.note = f"pytest ended with code {code}"
    shutil.rmtree(basetemp, ignore_errors=True)
    return found


def counted(report: Path) -> Result:
    """Passed, failed and skipped of a JUnit report; nothing when there is none."""
    found = Result()
    if not report.exists():
        return found
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = {child.tag: child for child in case}
        if "failure" in kinds or "error" in kinds:
            found.failed += 1
        elif "skipped" in kinds:
            found.skipped += 1
            reason = kinds["skipped"].get("message", "").strip() or "no reason given"
            found.reasons[reason] = found.reasons.get(reason, 0) + 1
        else:
            found.passed += 1
    return found


def parallel(run: Run) -> list[str]:
    """Files are spread over the cores; a file's tests stay together, with the servers they share."""
    ignored = [f"--ignore={folder}" for folder in ALONE]
    return [*spread(run.workers), *ignored, "-m", marked(None), *FIRST, "tests"]


def spread(workers: int) -> list[str]:
    """So many processes, files in the order they are named."""
    return ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]


def on_sqlite(name: str, run: Run) -> Result:
    """All that can run side by side."""
    return pytest_run(name, run, parallel(run))


def alone(name: str, run: Run) -> Result:
    """Stress and tooling tests, one after the other."""
    return _alone(name, run, [])


def _alone(name: str, run: Run, words: Sequence[str], **environment: str) -> Result:
    folders = [folder for folder in ALONE if (ROOT / folder).is_dir()]
    return pytest_run(f"{name}-alone" if words else name, run, [*words, "-m", marked(None), *folders], **environment)


def add(*results: Result) -> Result:
    """Results of one stage's parts together."""
    total = Result()
    for each in results:
        total.passed += each.passed
        total.failed += each.failed
        total.skipped += each.skipped
        total.note = "; ".join(filter(None, (total.note, each.note)))
        for reason, count in each.reasons.items():
            total.reasons[reason] = total.reasons.get(reason, 0) + count
    return total


def on_postgres(name: str, run: Run) -> Result:
    """Everything that uses the database once more, on PostgreSQL."""
    if not run.database_url:
        return Result(skipped=1, note="skipped: no PostgreSQL here")
    only = ["-p", "tests.only_database"]
    url = {"QD_DATABASE_URL": run.database_url}
    side_by_side = pytest_run(f"{name}-parallel", run, [*only, *parallel(run)], **url)
    return add(side_by_side, _alone(name, run, only, **url))


def on_real_slurm(name: str, run: Run) -> Result:
    """The contract on every release that can be had here; each has its own Slurm and mostly waits for it."""
    notes = []
    for release in sorted(RELEASES):
        if why_not_here(release) and run.command(f"slurm-{release}", [sys.executable, *LAB, "root", release]) != 0:
            notes.append(f"Slurm {release} cannot be fetched here (test-results/slurm-{release}.log)")
    found = pytest_run(name, run, ["-n", "3", "--dist", "loadscope", "-m", marked("real_slurm"), "tests"])
    found.note = "; ".join([*notes, *filter(None, [found.note])])
    return found


def in_browser(name: str, run: Run) -> Result:
    """Two windows at once: each waits for its page most of the time."""
    return pytest_run(name, run, [*spread(2), "-m", marked("browser"), "tests"])


def with_torch(name: str, run: Run) -> Result:
    """The tests of the PyTorch examples, with a Python of their own that has it."""
    if run.torch is not None:
        run.torch.join()
    if run.torch_note:
        return Result(skipped=1, note=f"skipped: {run.torch_note}")
    python = torch_home(run) / "bin" / "python"
    return pytest_run(name, run, ["-m", marked("torch"), "tests"], QD_TORCH_PYTHON=str(python))


def open_to_jobs(*words: str) -> bool:
    """Whether the user that Slurm's jobs run as can do this; without root there are no such jobs."""
    if os.geteuid() != 0:
        return True
    return subprocess.run(["runuser", "-u", "nobody", "--", *words], capture_output=True, cwd="/").returncode == 0


def torch_home(run: Run) -> Path:
    """Where PyTorch's virtualenv is: in the tree, or, where jobs cannot read the tree, in the temporary folder."""
    return ROOT / ".venv-torch" if open_to_jobs("test", "-r", str(ROOT / "Makefile")) else run.tmp / "venv-torch"


def install_torch(run: Run) -> None:
    """Make PyTorch's virtualenv where the small CPU build can be had; otherwise note why not."""
    home, wanted = torch_home(run), f"torch=={TORCH_VERSION}"
    python = home / "bin" / "python"
    test = ["-c", f"import torch; assert torch.__version__.startswith({TORCH_VERSION!r})"]
    if python.exists() and open_to_jobs(str(python), *test) and run.command("torch-install", [str(python), *test]) == 0:
        return
    shutil.rmtree(home, ignore_errors=True)
    # A Python below a closed home folder would do for us, but not for the jobs.
    enough = ["-c", "import sys, venv; assert sys.version_info >= (3, 11)"]
    candidates = [str(getattr(sys, "_base_executable", sys.executable)), "/usr/bin/python3"]
    base = next((each for each in candidates if Path(each).exists() and open_to_jobs(each, *enough)), candidates[0])
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "-q"]
    plan = RESULTS / "torch-plan.json"
    steps = (
        [base, "-m", "venv", "--without-pip", str(home)],
        [*pip, "--retries", "1", "--dry-run", f"--report={plan}", wanted],
    )
    if any(run.command("torch-install", words) != 0 for words in steps):
        run.torch_note = f"{wanted} cannot be installed here (test-results/torch-install.log)"
    else:
        names = [each["metadata"]["name"] for each in json.loads(plan.read_text())["install"]]
        large = any(each.startswith(("nvidia-", "cuda-", "triton")) for each in names)
        if large and not os.environ.get("QD_TORCH_CUDA"):
            run.torch_note = f"{wanted} would be the CUDA build of several GB here (QD_TORCH_CUDA=1 takes it)"
        elif run.command("torch-install", [*pip, wanted, "numpy"]) != 0:
            run.torch_note = f"{wanted} could not be installed (test-results/torch-install.log)"
    if run.torch_note:
        shutil.rmtree(home, ignore_errors=True)


STAGES: dict[str, tuple[str, Stage]] = {
    "ruff": ("lint", tool("ruff", "check", ".")),
    "format": ("code format", tool("ruff", "format", "--check", ".")),
    "contracts": ("import contracts", tool("lint-imports", "--no-cache")),
    "mypy": ("types, strict", tool("mypy", *PYTHON_PATHS, "deploy", "manage.py")),
    "djlint": ("templates", tool("djlint", "templates", "--lint", "--quiet")),
    "deploy": (
        "Django's deployment checks",
        manage("check", "--deploy", "--fail-level", "WARNING", production=True),
    ),
    "static": ("static files of production", manage("collectstatic", "--noinput", "-v0", production=True)),
    "migrations": ("no migration is missing", manage("makemigrations", "--check", "--dry-run")),
    "schema": ("OpenAPI document", manage("spectacular", "--validate", "--fail-on-warn", "--file", os.devnull)),
    "sqlite": ("tests on SQLite", on_sqlite),
    "alone": ("stress and tooling", alone),
    "postgres": ("tests on PostgreSQL", on_postgres),
    "slurm": ("contract on real Slurm", on_real_slurm),
    "browser": ("browser flows", in_browser),
    "torch": ("PyTorch examples", with_torch),
}
#: A real Slurm mostly waits (for its sweep of old jobs, for nodes to answer): it starts beside another stage and may go
#: on beside the next ones.
BESIDE = {"postgres": "slurm"}
CHECKS = tuple(STAGES)[: tuple(STAGES).index("sqlite")]


def tail(name: str, lines: int) -> str:
    """The end of a stage's logs."""
    found = []
    for path in sorted(RESULTS.glob(f"{name}*.log")):
        found += path.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(f"      | {line}" for line in found)


def show(name: str, result: Result, seconds: float) -> None:
    """One line a stage; a failure with the end of its log."""
    state = "FAILED" if result.failed else "ok" if result.passed else "skipped" if result.skipped else "empty"
    counts = f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped"
    print(f"  {state:<8}{name:<12}{seconds:7.1f} s  {counts}  {result.note}".rstrip(), flush=True)
    if result.failed:
        print(tail(name, 200 if os.environ.get("CI") else 60), flush=True)


def prepare(stages: Sequence[str], *, may_install: bool) -> None:
    """Install what the stages need and tell what stays missing, a line each."""
    if not set(stages) - set(CHECKS):
        return
    missing = [need for need in machine.NEEDS if not need.is_here()]
    if missing and may_install:
        began = time.monotonic()
        root = machine.how_to_install()
        if root is not None:
            print(f"  installing Debian packages for {', '.join(need.name for need in missing)}", flush=True)
            if not machine.install(missing, RESULTS / "apt.log"):
                print("  apt could not install them all (test-results/apt.log)", flush=True)
            print(f"  done in {time.monotonic() - began:.1f} s", flush=True)
    for need in machine.NEEDS:
        if not need.is_here():
            print(f"  no {need.name} ({' '.join(need.packages)}): {need.lost} will be skipped", flush=True)
    if os.geteuid() != 0:
        print("  not root: everything on a real Slurm will be skipped", flush=True)


def run_stages(names: Sequence[str], run: Run) -> dict[str, tuple[Result, float]]:
    """The stages in order; a failure does not keep the next from running."""
    results = {}
    started: dict[str, Future[tuple[Result, float]]] = {}

    def timed(name: str) -> tuple[Result, float]:
        began = time.monotonic()
        for old in RESULTS.glob(f"{name}*.log"):
            if "install" not in old.name:
                old.unlink()
        return STAGES[name][1](name, run), time.monotonic() - began

    if "torch" in names:
        run.torch = threading.Thread(target=install_torch, args=(run,), daemon=True)
        run.torch.start()
    with contextlib.ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(run.end)
        if "postgres" in names:
            with contextlib.suppress(services.Missing):
                run.database_url = stack.enter_context(services.postgres(run.tmp / "postgres"))
        for name in names:
            other = BESIDE.get(name, "")
            if other in names and other not in results:
                started[other] = threads.submit(timed, other)
            if name in started:
                continue
            results[name] = timed(name)
            show(name, *results[name])
            for late in [each for each, future in started.items() if future.done() and each not in results]:
                results[late] = started[late].result()
                show(late, *results[late])
        for late, future in started.items():
            if late not in results:
                results[late] = future.result()
                show(late, *results[late])
    return {name: results[name] for name in names}


def close(results: Mapping[str, tuple[Result, float]], seconds: float) -> int:
    """The closing table, why tests were skipped, and the sum on the last line."""
    print(f"\n  {'stage':<12}{'seconds':>9}{'passed':>8}{'failed':>8}{'skipped':>9}")
    for name, (result, took) in results.items():
        print(f"  {name:<12}{took:>9.1f}{result.passed:>8}{result.failed:>8}{result.skipped:>9}  {STAGES[name][0]}")
    print(f"  {'all':<12}{seconds:>9.1f}")
    total = add(*(result for result, _took in results.values()))
    for reason, count in sorted(total.reasons.items(), key=lambda pair: -pair[1]):
        print(f"  skipped {count}: {reason}")
    print(f"\n{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed or not total.passed else 0


def main(arguments: Sequence[str]) -> int:
    """Run; 0 when nothing failed."""
    parser = argparse.ArgumentParser(prog="tests/run.py", description=__doc__)
    parser.add_argument("--only", default="", help=f"stages, separated by commas: {', '.join(STAGES)}")
    parser.add_argument("--no-install", action="store_true", help="install no Debian package")
    options = parser.parse_args(arguments)
    names = [name for name in options.only.split(",") if name] or list(STAGES)
    if unknown := [name for name in names if name not in STAGES]:
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
    began = time.monotonic()
    RESULTS.mkdir(exist_ok=True)
    tmp = Path(tempfile.mkdtemp(prefix="quarterdeck-test-"))
    tmp.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("QD_")}
    environment |= {"QD_VAR_DIR": str(tmp / "var"), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "160"}
    (tmp / "var").mkdir()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        prepare(names, may_install=not options.no_install)
        results = run_stages(names, Run(tmp, environment, workers=max(2, min(6, (os.cpu_count() or 1) + 1))))
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    return close(results, time.monotonic() - began)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
