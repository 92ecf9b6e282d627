"""Describe-only and dry-run checks of a real account: ``python -m worker.providers.aws.live_check``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final

from worker.providers import values as v
from worker.providers.aws import convert
from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import Clients, build_clients
from worker.providers.aws.compute import Ec2Compute
from worker.providers.aws.layouts import BACKENDS, interface_layout
from worker.providers.errors import InvalidRequest, ProviderError

_FAILED: Final = 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m worker.providers.aws.live_check",
        description="Read-only: who we are, what carries our tags, and whether a launch would work. Makes nothing.",
        epilog="Credentials come from the AWS SDK's default chain (environment, shared files, instance role).",
    )
    parser.add_argument("--region", required=True)
    parser.add_argument("--endpoint-url", default="", help="instead of AWS's own addresses")
    parser.add_argument("--role-arn", default="", help="assume this role first")
    parser.add_argument("--external-id", default="")
    launch = parser.add_argument_group("a launch to check (all or none of the first three)")
    launch.add_argument("--subnet", default="")
    launch.add_argument("--security-group", action="append", default=[], help="may be repeated")
    launch.add_argument("--image", default="")
    launch.add_argument("--type", default="p5.48xlarge", dest="instance_type")
    launch.add_argument("--nodes", type=int, default=1)
    launch.add_argument("--backend", choices=BACKENDS, default="ec2")
    return parser


def _vcpus(clients: Clients, instance_type: str) -> int:
    with aws_call("DescribeInstanceTypes"):
        answer = clients.ec2.describe_instance_types(InstanceTypes=[instance_type])  # type: ignore[list-item]
    listed = convert.part(answer, "InstanceTypes", "DescribeInstanceTypes")
    if not listed:
        raise InvalidRequest(f"AWS does not describe {instance_type} in this region", source="aws")
    return int(listed[0].get("VCpuInfo", {}).get("DefaultVCpus", 0))


def _plan(clients: Clients, options: argparse.Namespace) -> v.LaunchPlan:
    return v.LaunchPlan(
        instance_type=options.instance_type,
        nodes=options.nodes,
        vcpus_per_node=_vcpus(clients, options.instance_type),
        subnet_id=options.subnet,
        security_group_ids=tuple(options.security_group),
        image_id=options.image,
        interfaces=interface_layout(options.instance_type, options.backend),
    )


def _show(passed: bool, name: str, detail: str) -> None:
    print(f"{'ok  ' if passed else 'FAIL'} {name:<24} {detail}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line a check; the exit status is 1 where one failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    given = [bool(options.subnet), bool(options.security_group), bool(options.image)]
    if any(given) and not all(given):
        parser.error("give --subnet, --security-group and --image together")
    access = v.CloudAccess(
        region=options.region,
        endpoint_url=options.endpoint_url,
        role_arn=options.role_arn,
        external_id=options.external_id,
    )
    step = "connect"
    try:
        with aws_call("connect"):
            clients = build_clients(access)
        compute = Ec2Compute(access, clients=clients)
        step = "identity"
        who = compute.identity()
        _show(True, step, f"{who.arn} in account {who.account_id}")
        step = "tagged-things"
        counts = Counter(owned.kind for owned in compute.owned())
        _show(True, step, ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "nothing carries our tag")
        if not options.subnet:
            print("No launch was checked; give --subnet, --security-group and --image for that.")
            return 0
        step = "plan"
        checks = compute.preflight(_plan(clients, options))
    except ProviderError as exc:
        _show(False, step, str(exc))
        return _FAILED
    for check in checks:
        _show(check.passed, check.name, check.detail)
    return 0 if all(check.passed for check in checks) else _FAILED


if __name__ == "__main__":
    sys.exit(main())
