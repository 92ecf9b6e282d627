"""Verbs on cloud accounts."""

from __future__ import annotations

import re
from typing import Any

from django.db import IntegrityError, transaction

from apps.audit.services import event, record
from apps.connections.models import CloudAccount
from apps.connections.permissions import can_manage_account
from apps.connections.states import TRANSITIONS, AccountPhase
from apps.core import clock
from apps.core.errors import FieldProblem, Forbidden, InvalidInput
from apps.core.states import move
from apps.intents.services import intent_ask
from apps.teams.permissions import Actor

_REFERENCE = re.compile(r"^(env:[A-Z_][A-Z0-9_]*|file:[A-Za-z0-9._-]+)?$")
_REGION = re.compile(r"^[a-z]{2}(-[a-z]+)+-\d$")
INTENT = "account.check"
#: Files in the secrets folder that are the portal's own; no reference may name them.
OWN_SECRETS = frozenset({"secret_key", "token_peppers", "database_url", "metrics_token", "redis_url"})


def check_reference(pointer: str, reference: str) -> list[FieldProblem]:
    """Problems of a secret reference; a secret pasted in its place is refused without being echoed."""
    kind, _sep, name = reference.partition(":")
    if (kind == "file" and name in OWN_SECRETS) or (kind == "env" and name.startswith("QD_")):
        return [FieldProblem(pointer, "not-yours", "the portal's own secrets are not for clusters and accounts")]
    if _REFERENCE.fullmatch(reference) and ".." not in reference:
        return []
    return [
        FieldProblem(
            pointer, "invalid", "write env:NAME or file:NAME (a name, never the secret itself) or leave it empty"
        )
    ]


def account_connect(
    *, actor: Actor, name: str, region: str, endpoint_url: str = "", credentials_ref: str = "", role_arn: str = ""
) -> CloudAccount:
    """Record how to reach an account and ask the worker to check it. Raises Forbidden, InvalidInput."""
    if not can_manage_account(actor):
        raise Forbidden("only operators and administrators connect accounts")
    problems: list[FieldProblem] = []
    if not _REGION.fullmatch(region):
        problems.append(FieldProblem("/region", "invalid", f"{region!r} does not look like us-east-1"))
    problems += check_reference("/credentials_ref", credentials_ref)
    if endpoint_url and not re.match(r"^https?://[^\s/]+", endpoint_url):
        problems.append(FieldProblem("/endpoint_url", "invalid", "must start with http:// or https://"))
    if not re.match(r"^[a-z0-9][a-z0-9-]{0,58}$", name):
        problems.append(FieldProblem("/name", "invalid", "lower-case letters, digits and dashes"))
    if problems:
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=problems)
    account = CloudAccount(
        name=name, region=region, endpoint_url=endpoint_url, credentials_ref=credentials_ref, role_arn=role_arn
    )
    try:
        with transaction.atomic():
            account.save()
            record(
                actor,
                "account.connect",
                "account",
                account.uid,
                after={
                    "name": name,
                    "region": region,
                    "endpoint_url": endpoint_url,
                    "credentials_ref": credentials_ref,
                    "role_arn": role_arn,
                },
            )
            intent_ask(INTENT, account.uid)
    except IntegrityError:
        raise InvalidInput(
            f"an account named {name} is already connected", problems=[FieldProblem("/name", "taken", "already used")]
        ) from None
    return account


def account_pause(*, actor: Actor, account: CloudAccount, is_paused: bool, expected_version: int) -> None:
    """Stop or resume every changing call in the account. Raises Forbidden, StaleVersion."""
    if not can_manage_account(actor):
        raise Forbidden("only operators and administrators pause accounts")
    with transaction.atomic():
        before = account.is_paused
        account.spec_update(expected_version, is_paused=is_paused)
        record(
            actor,
            "account.pause" if is_paused else "account.resume",
            "account",
            account.uid,
            before={"is_paused": before},
            after={"is_paused": is_paused},
        )
        intent_ask(INTENT, account.uid)


def account_observe(account: CloudAccount, *, account_id: str = "", arn: str = "", error: str = "") -> None:
    """The worker's finding: connected with this identity, or failed with this error."""
    new = AccountPhase.FAILED if error else AccountPhase.CONNECTED
    columns: dict[str, Any] = {
        "observed_account_id": account_id or account.observed_account_id,
        "observed_arn": arn or account.observed_arn,
        "message": error[:500],
        "observed_at": clock.now(),
        "observed_generation": account.generation,
    }
    with transaction.atomic():
        if account.phase == new:
            CloudAccount.objects.filter(pk=account.pk).update(**columns)
            return
        move(account, TRANSITIONS, new, **columns)
        event(
            "account",
            account.uid,
            "AccountFailed" if error else "AccountConnected",
            error or f"connected as {arn} in account {account_id}",
        )
