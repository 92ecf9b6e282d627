"""Runs one sandbox in the foreground until SIGTERM or SIGINT, and says in a file where everything is."""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import ACCESS_KEY_ID, SECRET_ACCESS_KEY
from sandbox.control.server import ControlServer
from sandbox.control.stack import Stack
from sandbox.serving import PortUnavailable, listen
from sandbox.world import World

if TYPE_CHECKING:
    from sandbox.dcgm import DcgmServer
    from sandbox.kubernetes.estate import Estate
    from sandbox.slurm.server import SlurmServer

STATE_FILE: Final = "sandbox.json"
STANDING_CLUSTER: Final = "kube"
SLURM_USER: Final = "quarterdeck"
TOKEN_LIFETIME_S: Final = 30 * 24 * 3600
#: Stopping takes a second or two; past this the process ends whatever still hangs.
_STOP_LIMIT_S: Final = 4.5
_CANNOT_START: Final = 2


class CannotStart(Exception):
    """Something outside forbids the start; the message is one line that says what to do."""


def serve(options: argparse.Namespace) -> int:
    """Start, wait for a signal, stop. Returns the exit status."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        with _only_one(options.state_dir):
            return _run(options, stopping)
    except (CannotStart, PortUnavailable) as exc:
        print(f"sandbox: {exc}", file=sys.stderr)
        return _CANNOT_START


@contextmanager
def _only_one(state_dir: Path) -> Iterator[None]:
    """Hold the state directory: two sandboxes in one would kill each other's jobs."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        lock = (state_dir / "sandbox.lock").open("a+")
    except OSError as exc:
        raise CannotStart(f"cannot use {state_dir}: {exc.strerror}") from exc
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise CannotStart(f"another sandbox (pid {lock.read().strip() or '?'}) already uses {state_dir}") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _private(path: Path, text: str | bytes) -> Path:
    """Write a file that only we may read, whole or not at all."""
    beside = path.with_name(f"{path.name}.tmp")
    beside.touch(mode=0o600)
    beside.write_bytes(text if isinstance(text, bytes) else text.encode())
    beside.replace(path)
    return path


def _jwt_key(state_dir: Path) -> tuple[Path, bytes]:
    path = state_dir / "slurm-jwt.key"
    if not path.exists() or len(path.read_bytes()) < 32:
        _private(path, secrets.token_bytes(32))
    return path, path.read_bytes()


def _aws(options: argparse.Namespace, world: World) -> AwsServer:
    settings = AwsOptions(
        region=options.region,
        zone=options.zone,
        boot_s=options.boot_seconds,
        join_s=options.join_seconds,
        shutdown_s=options.shutdown_seconds,
        pools=dict(options.pool),
        p_vcpu_quota=options.p_vcpu_quota,
    )
    try:
        return AwsServer(world, options.host, options.aws_port, options.state_dir, settings)
    except ValueError as exc:
        raise CannotStart(str(exc)) from exc


def _slurm(options: argparse.Namespace, world: World, key: bytes) -> SlurmServer:
    from sandbox.slurm.server import SlurmServer

    return SlurmServer(world, options.host, options.slurm_port, options.state_dir / "slurm", key)


def _dcgm(options: argparse.Namespace, world: World, slurm: SlurmServer | None) -> DcgmServer:
    from sandbox.dcgm import DcgmServer

    def job_of_node(name: str) -> str:
        return "" if slurm is None else slurm.job_of_node(name)

    return DcgmServer(world, options.host, options.dcgm_port, job_of_node)


def _kubernetes(options: argparse.Namespace, world: World, aws: AwsServer) -> Estate:
    from sandbox.kubernetes.estate import Estate

    return Estate(
        world,
        aws,
        options.state_dir,
        host=options.host,
        standing=not options.without_kubernetes,
        kueue=not options.without_kueue,
        port=options.kubernetes_port,
        names=options.allowed_host,
    )


def _standing_node(world: World, name: str) -> None:
    """A machine nobody launched: it has GPUs to break, and whoever runs a real Slurm has a node of its name."""
    world.node_join(
        name=name,
        instance_id=f"standing-{name}",
        instance_type="p5.48xlarge",
        cluster="",
        partition="gpu",
        gpu_type="h100",
        gpu_count=8,
        cpus=192,
        memory_mib=2_000_000,
    )


def _check_ports(options: argparse.Namespace) -> None:
    """Name a busy port before anything starts."""
    left_out = {name for name in ("slurm", "kubernetes") if getattr(options, f"without_{name}")}
    for name in ("control", "aws", "slurm", "dcgm", "kubernetes"):
        port = getattr(options, f"{name}_port")
        if port and name not in left_out:
            listen(name, options.host, port).close()


def _run(options: argparse.Namespace, stopping: threading.Event) -> int:
    started_at = time.monotonic()
    _check_ports(options)
    state_dir: Path = options.state_dir.resolve()
    options.state_dir = state_dir
    (state_dir / STATE_FILE).unlink(missing_ok=True)
    world = World()
    key_file, key = _jwt_key(state_dir)
    try:
        aws = _aws(options, world)
        slurm = None if options.without_slurm else _slurm(options, world, key)
        dcgm = _dcgm(options, world, slurm)
        stack = Stack(world, aws, slurm, dcgm, _kubernetes(options, world, aws))
        control = ControlServer(stack, options.host, options.control_port, options.allowed_host)
        stack.start()
        for name in options.node:
            _standing_node(world, name)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise CannotStart(f"a port was taken while starting: {exc}") from exc
        raise
    try:
        control.start()
        written = _describe(options, aws, slurm, dcgm, control, key_file, key, stack.kubernetes)
        for name, url in written.items():
            print(f"sandbox: {name:<10} {url}", flush=True)
        print(f"sandbox: ready after {time.monotonic() - started_at:.1f} s, {state_dir / STATE_FILE}", flush=True)
        stopping.wait()
    finally:
        _stop(stack, control, state_dir)
    print("sandbox: stopped", flush=True)
    return 0


def _stop(stack: Stack, control: ControlServer, state_dir: Path) -> None:
    last_resort = threading.Timer(_STOP_LIMIT_S, os._exit, args=(1,))
    last_resort.daemon = True
    last_resort.start()
    (state_dir / STATE_FILE).unlink(missing_ok=True)
    control.stop()
    stack.stop()
    last_resort.cancel()


def _describe(
    options: argparse.Namespace,
    aws: AwsServer,
    slurm: SlurmServer | None,
    dcgm: DcgmServer,
    control: ControlServer,
    key_file: Path,
    key: bytes,
    kubernetes: Estate | None,
) -> dict[str, str]:
    """Write the credentials and sandbox.json, the last of all: whoever sees it finds everything answering."""
    from sandbox.slurm.tokens import mint

    state_dir: Path = options.state_dir
    credentials = _private(
        state_dir / "aws-credentials",
        f"[default]\naws_access_key_id = {ACCESS_KEY_ID}\naws_secret_access_key = {SECRET_ACCESS_KEY}\n",
    )
    found: dict[str, Any] = {
        "pid": os.getpid(),
        "pids": [os.getpid()],
        "started_at": time.time(),
        "state_dir": str(state_dir),
        "control": {"url": control.url},
        "aws": {
            "endpoint_url": aws.url,
            "credentials_file": str(credentials),
            "access_key_id": ACCESS_KEY_ID,
            "secret_access_key": SECRET_ACCESS_KEY,
            **aws.ids(),
        },
        "dcgm": {"url": dcgm.url, "url_template": f"{dcgm.url}/nodes/{{node}}/metrics"},
        "slurm": None,
        "kubernetes": None,
    }
    urls = {"control": control.url, "aws": aws.url, "dcgm": dcgm.url}
    if slurm is not None:
        token = mint(key, SLURM_USER, TOKEN_LIFETIME_S)
        found["slurm"] = {
            "url": slurm.url,
            "user_name": SLURM_USER,
            "token": token,
            "token_file": str(_private(state_dir / "slurm.jwt", token)),
            "jwt_key_file": str(key_file),
            "scontrol": slurm.scontrol_command(),
        }
        urls["slurm"] = slurm.url
    config = None if kubernetes is None else kubernetes.kubeconfig()
    if config is not None:
        url = config["clusters"][0]["cluster"]["server"]
        # JSON is YAML, and every client reads it.
        kubeconfig = _private(state_dir / "sandbox-kubeconfig", json.dumps(config, indent=2))
        found["kubernetes"] = {"name": STANDING_CLUSTER, "url": url, "kubeconfig_file": str(kubeconfig)}
        urls["kubernetes"] = url
    _private(state_dir / STATE_FILE, json.dumps(found, indent=2))
    return urls
