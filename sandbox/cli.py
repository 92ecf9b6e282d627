"""The sandbox's command line: serve it, break it, count what is in it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sandbox.control.faults import CLUSTERS, PLANNED, REASONS, SERVICES, SHAPES, STORAGE

DEFAULT_CONTROL_URL: Final = "http://127.0.0.1:5600"
CONTROL_URL_VARIABLE: Final = "QD_SANDBOX_CONTROL_URL"
_TIMEOUT_S: Final = 30


class CommandFailed(Exception):
    """The command did not do what was asked; the message is one line for a person."""


def _pool(text: str) -> tuple[str, int]:
    name, _, count = text.partition("=")
    if not name or not count.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not TYPE=NUMBER, for example p5.48xlarge=8")
    return name, int(count)


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535; 0 takes any free one)")
    return int(text)


def _delay(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="python -m sandbox", description="A pretend AWS, Slurm and GPU exporters.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="start all servers and stay in the foreground")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--control-port", type=_port, default=5600)
    serve.add_argument("--aws-port", type=_port, default=5601)
    serve.add_argument("--slurm-port", type=_port, default=5602)
    serve.add_argument("--dcgm-port", type=_port, default=5603)
    serve.add_argument("--kubernetes-port", type=_port, default=5604, help="of the standing cluster")
    serve.add_argument("--state-dir", type=Path, required=True, help="where everything is kept, made when missing")
    serve.add_argument("--region", default="us-east-2")
    serve.add_argument("--zone", default="us-east-2a")
    serve.add_argument("--boot-seconds", type=_delay, default=4.0, help="from launch to running")
    serve.add_argument("--join-seconds", type=_delay, default=4.0, help="from running to the node being in Slurm")
    serve.add_argument("--shutdown-seconds", type=_delay, default=3.0, help="from terminate to terminated")
    serve.add_argument("--pool", type=_pool, action="append", default=[], metavar="TYPE=N", help="machines there are")
    serve.add_argument("--p-vcpu-quota", type=int, default=24_576, help="on-demand vCPU quota of the P family")
    serve.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="also a name of the control page, without port",
    )
    serve.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NAME",
        help="a machine of 8 H100 that is there from the start: its exporter answers for a node of a real Slurm",
    )
    serve.add_argument("--without-slurm", action="store_true", help="no fake Slurm, for use beside a real one")
    serve.add_argument("--without-kubernetes", action="store_true", help="no standing cluster; EKS clusters are made")
    serve.add_argument("--without-kueue", action="store_true", help="new clusters have no Kueue")

    control = argparse.ArgumentParser(add_help=False)
    control.add_argument(
        "--control-url",
        default=os.environ.get(CONTROL_URL_VARIABLE) or DEFAULT_CONTROL_URL,
        help=f"default: ${CONTROL_URL_VARIABLE} or {DEFAULT_CONTROL_URL}",
    )
    fault = commands.add_parser("fault", help="break something")
    kinds = fault.add_subparsers(dest="kind", required=True, metavar="KIND")
    xid = kinds.add_parser("xid", parents=[control], help="log an XID on one GPU")
    xid.add_argument("--node", required=True)
    xid.add_argument("--code", type=int, required=True)
    xid.add_argument("--gpu", type=int, default=0)
    xid.add_argument("--kill", action="store_true", help="also kill the job's tasks on the node")
    loss = kinds.add_parser("node-loss", parents=[control], help="cut a node off")
    loss.add_argument("--node", required=True)
    torn = kinds.add_parser("torn-checkpoint", parents=[control], help="damage the newest checkpoint of a running job")
    torn.add_argument("--job", type=int)
    limits = argparse.ArgumentParser(add_help=False)
    limits.add_argument("--times", type=int, help="end after this many uses")
    limits.add_argument("--seconds", type=_delay, help="end after this time")
    capacity = kinds.add_parser("no-capacity", parents=[control, limits], help="launches find no machines")
    capacity.add_argument("--type", help="only this instance type")
    capacity.add_argument("--zone", help="only in this zone, for example us-east-2a")
    called = argparse.ArgumentParser(add_help=False)
    called.add_argument("--service", choices=SERVICES, required=True)
    called.add_argument("--operation", help="only this call, for example RunInstances")
    slow = kinds.add_parser("slow-api", parents=[control, called, limits], help="answers come late")
    slow.add_argument("--delay", type=_delay, default=5.0, help="seconds (default 5)")
    kinds.add_parser("throttling", parents=[control, called, limits], help="calls are refused as too many")
    kinds.add_parser("access-denied", parents=[control, called, limits], help="calls are refused by policy")
    error = kinds.add_parser("server-error", parents=[control, called, limits], help="answers are broken")
    shapes = "; ".join(f"{service}: {', '.join(names)}" for service, names in SHAPES.items())
    error.add_argument("--shape", default="error", help=shapes)

    kinds.add_parser("export-lag", parents=[control, limits], help="exports to S3 stay in the queue")
    kinds.add_parser("payment-failed", parents=[control, limits], help="blocks that are bought now are never paid")
    storage = kinds.add_parser("storage-fails", parents=[control, limits], help="FSx fails while it makes something")
    storage.add_argument("--what", choices=STORAGE, default="file-system")

    partial = kinds.add_parser("partial-start", parents=[control, limits], help="machines die while they start")
    partial.add_argument("--count", type=int, default=1, help="how many of a launch (default 1)")
    partial.add_argument("--reason", choices=REASONS, default="Server.InternalError")
    partial.add_argument("--type", help="only this instance type")
    wrong = kinds.add_parser("wrong-reservation", parents=[control, limits], help="launches miss their reservation")
    wrong.add_argument("--type", help="only this instance type")
    planned = kinds.add_parser("planned-event", parents=[control], help="AWS plans to retire, stop or reboot a machine")
    planned.add_argument("--node", required=True)
    planned.add_argument("--code", choices=PLANNED, default=PLANNED[0])
    planned.add_argument("--hours", type=int, default=48, help="until it happens (default 48)")
    broken = kinds.add_parser("cluster-fails", parents=[control, limits], help="PCS or EKS fails while it makes one")
    broken.add_argument("--what", choices=CLUSTERS, default=CLUSTERS[0])
    short = kinds.add_parser("group-no-capacity", parents=[control, limits], help="a node group gets no machines")
    short.add_argument("--group", default="", help="its name; without it any group")
    kinds.add_parser("lifecycle-fails", parents=[control, limits], help="HyperPod's lifecycle scripts fail")

    _of_kubernetes(kinds, control, limits)

    faults = commands.add_parser("faults", parents=[control], help="list the faults in force")
    faults.add_argument("--json", action="store_true", dest="as_json")
    ended = commands.add_parser("clear", parents=[control], help="end a fault")
    ended.add_argument("uid", metavar="UID|all")
    ahead = commands.add_parser("advance", parents=[control], help="let the calendar's clock jump ahead")
    ahead.add_argument("hours", type=float, help="hours; reservations and blocks start and end by this clock")
    census = commands.add_parser("census", parents=[control], help="count what exists in the pretend account")
    census.add_argument("--json", action="store_true", dest="as_json")
    return top


def _of_kubernetes(kinds: Any, control: argparse.ArgumentParser, limits: argparse.ArgumentParser) -> None:
    back = kinds.add_parser("node-back", parents=[control], help="let a node that was cut off answer again")
    back.add_argument("--node", required=True)
    for name, words in (
        ("pod-oom", "kill a container for its memory"),
        ("pod-evict", "end a pod for its node's sake"),
        ("pod-preempt", "let something urgent ask Kueue for a pod's place"),
    ):
        one = kinds.add_parser(name, parents=[control], help=words)
        one.add_argument("--pod", required=True, metavar="NAMESPACE/NAME")
        if name == "pod-oom":
            one.add_argument("--container", help="default: the first")
        if name == "pod-preempt":
            one.add_argument("--lasts", type=_delay, help="seconds that it runs (default 30)")
    pull = kinds.add_parser("image-pull", parents=[control, limits], help="images cannot be pulled")
    pull.add_argument("--image", help="only this one")
    called = argparse.ArgumentParser(add_help=False)
    called.add_argument("--service", choices=("kubernetes",), default="kubernetes")
    called.add_argument("--operation", help="only this call, for example watch-pods or list")
    kinds.add_parser("unauthorized", parents=[control, called, limits], help="the API server knows no token")
    cut = kinds.add_parser("watch-cut", parents=[control, called, limits], help="the API server cuts its watches")
    cut.add_argument("--every", type=_delay, help="seconds that a watch lasts (default 5)")
    kinds.add_parser("history-lost", parents=[control, called, limits], help="the API server answers 410")
    away = kinds.add_parser("api-away", parents=[control], help="the API server does not answer")
    skew = kinds.add_parser("clock-skew", parents=[control, limits], help="the API server's clock is wrong")
    away.add_argument("--seconds", type=_delay, help="end after this time")
    skew.add_argument("--ahead", type=float, help="seconds, negative for behind (default 300)")
    for one in (away, skew):
        one.add_argument("--cluster", help="only this cluster")


def call(control_url: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """One call to the control server. Raises ``CommandFailed`` with what it said or why it could not be asked."""
    if not control_url.startswith(("http://", "https://")):
        raise CommandFailed(f"{control_url!r} is not an address; it should look like {DEFAULT_CONTROL_URL}")
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310  (the scheme was checked)
        control_url.rstrip("/") + path, data=data, method=method, headers={"Content-Type": "application/json"}
    )
    # A proxy from the environment knows nothing of this machine's ports.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as exc:
        try:
            said = json.loads(exc.read())["error"]
        except (ValueError, KeyError, TypeError):
            said = f"the server at {control_url} answered {exc.code}; is it the sandbox?"
        raise CommandFailed(str(said)) from exc
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "reason", exc)
        raise CommandFailed(f"no sandbox answers at {control_url} ({reason}); is it running?") from exc


def _fault(options: argparse.Namespace) -> None:
    body = {
        key: value
        for key, value in vars(options).items()
        if key not in ("command", "control_url") and value is not None and value is not False
    }
    print(_said(call(options.control_url, "POST", "/api/faults", body)))


def _said(done: Any) -> str:
    return f"{done['sentence']} [{done['uid']}]" if done.get("uid") else str(done["sentence"])


def _faults(options: argparse.Namespace) -> None:
    found = call(options.control_url, "GET", "/api/faults")["faults"]
    if options.as_json:
        print(json.dumps(found, indent=2))
        return
    for fault in found:
        details = [f"{key}={value}" for key, value in fault["parameters"].items()]
        if fault["times_left"] is not None:
            details.append(f"{fault['times_left']} times left")
        if fault["seconds_left"] is not None:
            details.append(f"{fault['seconds_left']:.0f} s left")
        print(f"{fault['uid']}  {fault['kind']:<13} {', '.join(details)}".rstrip())
    if not found:
        print("No fault is in force.")


def _advance(options: argparse.Namespace) -> None:
    print(_said(call(options.control_url, "POST", "/api/clock", {"hours": options.hours})))


def _census(options: argparse.Namespace) -> None:
    found = call(options.control_url, "GET", "/api/census")
    if options.as_json:
        print(json.dumps(found, indent=2))
        return
    for key, value in found.items():
        print(f"{key.replace('_', ' '):<24} {value}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 where it failed, 2 where it could not start."""
    options = parser().parse_args(arguments)
    if options.command == "serve":
        from sandbox.control.serve import serve

        return serve(options)
    try:
        if options.command == "fault":
            _fault(options)
        elif options.command == "faults":
            _faults(options)
        elif options.command == "clear":
            print(_said(call(options.control_url, "DELETE", f"/api/faults/{options.uid}")))
        elif options.command == "advance":
            _advance(options)
        else:
            _census(options)
    except CommandFailed as exc:
        print(f"sandbox: {exc}", file=sys.stderr)
        return 1
    return 0
