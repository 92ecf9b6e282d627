"""Verbs on cloud accounts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from apps.audit.services import event, record
from apps.connections.models import CloudAccount
from apps.connections.permissions import can_allow_purchases, can_manage_account
from apps.connections.selectors import account_holders, things_in
from apps.connections.states import TRANSITIONS, AccountPhase
from apps.core import clock
from apps.core.errors import FieldProblem, Forbidden, InvalidInput, Refusal
from apps.core.said import brief, said
from apps.core.states import move
from apps.intents.services import intent_ask
from apps.teams.permissions import Actor

_REFERENCE = re.compile(r"^(env:[A-Z_][A-Z0-9_]*|file:[A-Za-z0-9._-]+)?$")
_AWS_SECRET = re.compile(r"^aws:[A-Za-z0-9/_+=.@!:-]{1,190}$")
_ROLE = re.compile(r"^arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+$")
_REGION = re.compile(r"^[a-z]{2}(-[a-z]+)+-\d$")
INTENT = "account.check"
#: What a person may correct.
EDITABLE = ("name", "region", "endpoint_url", "credentials_ref", "role_arn", "external_id")
#: Files in the secrets folder that are the portal's own; no reference may name them.
OWN_SECRETS = frozenset({"secret_key", "token_peppers", "database_url", "metrics_token", "redis_url"})


class AccountInUse(Refusal):
    """Clusters or fleets still hang on the account."""


def check_reference(pointer: str, reference: str, *, account: bool | None = None) -> list[FieldProblem]:
    """Problems of a secret reference; a secret pasted in its place is refused without being echoed.

    ``account``: None where Secrets Manager cannot be read, else whether there is an account to read it in.
    """
    kind, _separator, name = reference.partition(":")
    if (kind == "file" and name in OWN_SECRETS) or (kind == "env" and name.startswith("QD_")):
        return [FieldProblem(pointer, "not-yours", _("the portal's own secrets are not for clusters and accounts"))]
    if _REFERENCE.fullmatch(reference) and ".." not in reference:
        return []
    if account is not None and _AWS_SECRET.fullmatch(reference):
        if account:
            return []
        return [
            FieldProblem(pointer, "no-account", _("a secret of AWS is read in the cluster's cloud account: choose one"))
        ]
    if account is not None:
        text = _("write env:NAME, file:NAME or aws:NAME-or-ARN (a name, never the secret itself) or leave it empty")
        return [FieldProblem(pointer, "invalid", text)]
    return [
        FieldProblem(
            pointer, "invalid", _("write env:NAME or file:NAME (a name, never the secret itself) or leave it empty")
        )
    ]


def _may_manage(actor: Actor) -> None:
    if not can_manage_account(actor):
        raise Forbidden(_("only operators and administrators connect, change and remove accounts"))


def _check(spec: Mapping[str, Any]) -> None:
    """Refuse a spec that can never work. Raises InvalidInput with every problem at its field."""
    problems: list[FieldProblem] = []
    if not _REGION.fullmatch(spec["region"]):
        problems.append(
            FieldProblem(
                "/region", "invalid", _("%(region)s does not look like us-east-1") % {"region": spec["region"]}
            )
        )
    problems += check_reference("/credentials_ref", spec["credentials_ref"])
    if spec["endpoint_url"] and not re.match(r"^https?://[^\s/]+", spec["endpoint_url"]):
        problems.append(FieldProblem("/endpoint_url", "invalid", _("must start with http:// or https://")))
    if spec["role_arn"] and not _ROLE.fullmatch(spec["role_arn"]):
        problems.append(
            FieldProblem("/role_arn", "invalid", _("a role looks like arn:aws:iam::123456789012:role/name"))
        )
    if spec["external_id"] and not spec["role_arn"]:
        problems.append(FieldProblem("/external_id", "no-role", _("only goes with a role to assume")))
    if not re.match(r"^[a-z0-9][a-z0-9-]{0,58}$", spec["name"]):
        problems.append(FieldProblem("/name", "invalid", _("lower-case letters, digits and dashes")))
    if problems:
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=problems)


def _taken(name: str) -> InvalidInput:
    return InvalidInput(
        _("an account named %(name)s is already connected") % {"name": name},
        problems=[FieldProblem("/name", "taken", _("already used"))],
    )


def account_connect(
    *,
    actor: Actor,
    name: str,
    region: str,
    endpoint_url: str = "",
    credentials_ref: str = "",
    role_arn: str = "",
    external_id: str = "",
) -> CloudAccount:
    """Record how to reach an account and ask the worker to check it. Raises Forbidden, InvalidInput."""
    _may_manage(actor)
    spec = {
        "name": name,
        "region": region,
        "endpoint_url": endpoint_url,
        "credentials_ref": credentials_ref,
        "role_arn": role_arn,
        "external_id": external_id,
    }
    _check(spec)
    account = CloudAccount(**spec)
    try:
        with transaction.atomic():
            account.save()
            record(actor, "account.connect", "account", account.uid, after=spec)
            intent_ask(INTENT, account.uid)
    except IntegrityError:
        raise _taken(name) from None
    return account


def account_update(*, actor: Actor, account: CloudAccount, expected_version: int, **changes: str) -> None:
    """Correct how an account is reached and ask the worker to check it again; what is not named stays.

    Region and address stay as they are while anything of ours lives there: it would be looked for
    elsewhere and be taken for gone. Raises Forbidden, InvalidInput, AccountInUse, StaleVersion.
    """
    _may_manage(actor)
    spec = {name: getattr(account, name) for name in EDITABLE} | changes
    if set(spec) != set(EDITABLE):
        raise TypeError(f"not columns of an account's spec: {sorted(set(spec) - set(EDITABLE))}")
    _check(spec)
    changed = {name: value for name, value in spec.items() if getattr(account, name) != value}
    before = {name: getattr(account, name) for name in changed}
    try:
        with transaction.atomic():
            _lock(account)
            if {"region", "endpoint_url"} & set(changed) and (things := things_in(account)):
                raise AccountInUse(
                    _("region and address cannot change while these live there: %(names)s")
                    % {"names": ", ".join(thing.name for thing in things[:10])}
                )
            generation = account.generation + (1 if changed else 0)
            account.spec_update(expected_version, generation=generation, **changed)
            if changed:
                record(actor, "account.update", "account", account.uid, before=before, after=changed)
                event("account", account.uid, "AccountChanged", ", ".join(changed), data={"fields": list(changed)})
                intent_ask(INTENT, account.uid)
    except IntegrityError:
        raise _taken(spec["name"]) from None


def account_remove(*, actor: Actor, account: CloudAccount, expected_version: int) -> None:
    """Take an account out of the portal; nothing in AWS is touched and its history stays.

    Raises Forbidden, StaleVersion, AccountInUse with what still hangs on it.
    """
    _may_manage(actor)
    with transaction.atomic():
        _lock(account)
        if holders := account_holders(account):
            words = {
                "cluster": _("cluster %(name)s"),
                "fleet": _("fleet %(name)s"),
                "file-system": _("file system %(name)s"),
                "reservation": _("reservation %(name)s"),
                "purchase": _("purchase %(name)s"),
            }
            names = ", ".join(words[holder.kind] % {"name": holder.name} for holder in holders[:20])
            raise AccountInUse(
                _("account %(name)s is still needed by %(names)s; remove these first")
                % {"name": account.name, "names": names}
            )
        account.spec_update(expected_version, delete_requested_at=clock.now(), generation=account.generation + 1)
        record(actor, "account.remove", "account", account.uid, before={n: getattr(account, n) for n in EDITABLE})
        event("account", account.uid, "AccountRemoveRequested", f"removal asked for by {actor.name}")
        intent_ask(INTENT, account.uid)


def account_claim(account: CloudAccount) -> CloudAccount:
    """The account, locked for the caller's transaction, so that it is not removed under it. Raises AccountInUse."""
    found = _lock(account)
    if found.delete_requested_at is not None:
        raise AccountInUse(_("account %(name)s is being removed") % {"name": account.name})
    return found


def _lock(account: CloudAccount) -> CloudAccount:
    return CloudAccount.objects.select_for_update().get(pk=account.pk)


def account_pause(*, actor: Actor, account: CloudAccount, is_paused: bool, expected_version: int) -> None:
    """Stop or resume every call to the account. Raises Forbidden, StaleVersion."""
    _may_manage(actor)
    with transaction.atomic():
        before = account.is_paused
        since = (account.paused_at if before else clock.now()) if is_paused else None
        # Resumed, it is believed again only once AWS has said who it is there.
        generation = account.generation + (1 if before and not is_paused else 0)
        account.spec_update(expected_version, is_paused=is_paused, paused_at=since, generation=generation)
        record(
            actor,
            "account.pause" if is_paused else "account.resume",
            "account",
            account.uid,
            before={"is_paused": before},
            after={"is_paused": is_paused},
        )
        intent_ask(INTENT, account.uid)


def account_allow_purchases(*, actor: Actor, account: CloudAccount, allowed: bool, expected_version: int) -> None:
    """Let reserved capacity be bought in the account, or stop it. Raises Forbidden, StaleVersion."""
    if not can_allow_purchases(actor):
        raise Forbidden(_("only administrators decide whether capacity may be bought"))
    with transaction.atomic():
        before = account.allows_purchases
        account.spec_update(expected_version, allows_purchases=allowed)
        record(
            actor,
            "account.allow-purchases" if allowed else "account.stop-purchases",
            "account",
            account.uid,
            before={"allows_purchases": before},
            after={"allows_purchases": allowed},
        )


def account_observe(account: CloudAccount, *, account_id: str = "", arn: str = "", error: str = "") -> None:
    """The worker's finding: connected with this identity, or failed with this error."""
    known = account.observed_account_id
    if not error and known and known != account_id and things_in(account):
        # Another account holds nothing of ours: believing it would write everything off.
        text = gettext_noop("the credentials now open account %(now)s, but things of ours live in account %(before)s")
        error = said(text, now=account_id, before=known)
        account_id = arn = ""
    new = AccountPhase.FAILED if error else AccountPhase.CONNECTED
    columns: dict[str, Any] = {
        "observed_account_id": account_id or account.observed_account_id,
        "observed_arn": arn or account.observed_arn,
        "message": brief(error, 500),
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


def account_removed(account: CloudAccount) -> None:
    """The worker has let go of it; the name becomes free, the row keeps its history under the uid."""
    with transaction.atomic():
        name = f"{account.name[:40]}-{account.uid[-8:]}"
        move(account, TRANSITIONS, AccountPhase.REMOVED, name=name, observed_generation=account.generation, message="")
        event("account", account.uid, "AccountRemoved", "out of the portal")
