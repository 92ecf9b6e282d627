"""The published IAM policy names real actions, allows every call the worker makes, and buys nothing."""

from __future__ import annotations

import ast
import fnmatch
import json
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

ROOT = Path(__file__).resolve().parent.parent.parent
POLICY = ROOT / "docs" / "iam" / "worker-policy.json"
PURCHASES = ROOT / "docs" / "iam" / "purchase-policy.json"
#: botocore's service names and the prefix of their actions in IAM.
PREFIXES = {
    "ec2": "ec2",
    "sts": "sts",
    "service-quotas": "servicequotas",
    "fsx": "fsx",
    "efs": "elasticfilesystem",
    "cloudwatch": "cloudwatch",
    "eks": "eks",
    "pcs": "pcs",
    "sagemaker": "sagemaker",
    "pricing": "pricing",
    "ce": "ce",
    "cloudformation": "cloudformation",
    "ssm": "ssm",
    "secretsmanager": "secretsmanager",
    "s3": "s3",
}
#: Which services a file calls where it does not name them as text.
IMPLIED = {"compute.py": ("ec2", "sts"), "preflight.py": ("ec2", "service-quotas"), "live_check.py": ("ec2",)}


@cache
def operations(service: str) -> dict[str, str]:
    """Method name → IAM action."""
    model = botocore.session.get_session().get_service_model(service)
    return {xform_name(name): f"{PREFIXES[service]}:{name}" for name in model.operation_names}


def statements(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["Statement"])


def actions(effect: str, path: Path = POLICY) -> list[str]:
    found: list[str] = []
    for statement in statements(path):
        if statement["Effect"] == effect:
            named = statement["Action"]
            found += [named] if isinstance(named, str) else named
    return found


def calls() -> set[str]:
    """Every AWS action that a file of the provider asks for."""
    found: set[str] = set()
    for path in (ROOT / "worker" / "providers" / "aws").glob("*.py"):
        if path.name == "probes.py":
            continue  # dry runs of what may be denied
        tree = ast.parse(path.read_text())
        texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        services = [s for s in PREFIXES if s in texts] + list(IMPLIED.get(path.name, ()))
        names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        for service in services:
            found |= {action for method, action in operations(service).items() if method in names}
    return found


#: Said by the name of a method that two services have; only the other is asked.
SHADOWS = {"elasticfilesystem:UpdateFileSystem"}
BUYING = {"ec2:PurchaseCapacityBlock", "ec2:PurchaseCapacityBlockExtension", "sagemaker:CreateTrainingPlan"}


def test_every_action_exists() -> None:
    known = {action for service in PREFIXES for action in operations(service).values()}
    iam = botocore.session.get_session().get_service_model("iam").operation_names
    known |= {f"iam:{name}" for name in iam}
    known |= {"iam:PassRole", "ec2:CreateTags", "pcs:TagResource", "s3:GetObjectVersion", "execute-api:Invoke"}
    for action in actions("Allow") + actions("Deny") + actions("Allow", PURCHASES):
        assert any(fnmatch.fnmatchcase(name, action) for name in known), action


def test_every_call_of_the_worker_is_allowed() -> None:
    asked = calls()
    assert len(asked) > 25
    allowed = actions("Allow") + actions("Allow", PURCHASES)
    missing = sorted(a for a in asked - SHADOWS if not any(fnmatch.fnmatchcase(a, pattern) for pattern in allowed))
    assert missing == []


def test_buying_is_denied_unless_the_second_policy_is_attached() -> None:
    assert set(actions("Deny")) >= BUYING
    assert set(actions("Allow", PURCHASES)) == BUYING
    assert not any(fnmatch.fnmatchcase(b, a) for b in BUYING for a in actions("Allow"))


@pytest.mark.parametrize("word", ["Create", "Delete", "Terminate", "Run"])
def test_nothing_is_made_or_removed_without_our_tag(word: str) -> None:
    # What a service makes for itself while it makes what is ours: bound to that service's names instead.
    free = {"LaunchFromTheseThings", "LinkNetworks", "LetServicesMakeTheirOwnRoles", "LetPcsKeepItsKey"}
    for statement in statements(POLICY):
        named = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        if statement["Effect"] == "Allow" and any(a.partition(":")[2].startswith(word) for a in named):
            tagged = any("quarterdeck:uid" in k for k in statement.get("Condition", {}).get("Null", {}))
            assert tagged or statement["Sid"] in free, statement["Sid"]
