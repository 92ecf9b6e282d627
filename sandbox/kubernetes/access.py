"""Who asks and what they may: bearer tokens, service accounts, and the roles and bindings in the store."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sandbox.kubernetes import eks_tokens
from sandbox.kubernetes.status import Object, unauthorized
from sandbox.kubernetes.store import Key, Store

MASTERS: Final = "system:masters"
_RBAC: Final = "rbac.authorization.k8s.io"
_SERVICE_ACCOUNT: Final = "sa."

#: From the access key of an EKS token to a user and groups, None where the cluster lets nobody in under it.
Identity = Callable[[str], "User | None"]


@dataclass(frozen=True)
class User:
    """Who a token stands for."""

    name: str
    groups: tuple[str, ...] = ()

    def view(self) -> Object:
        """As a review tells it."""
        return {"username": self.name, "groups": list(self.groups)}


@dataclass(frozen=True)
class Attempt:
    """What somebody wants to do: a verb on a resource (with its subresource after a slash), or on a path."""

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


@dataclass
class Access:
    """The doors of one cluster. ``identity`` and ``secrets_of`` are filled by whoever pretends the cloud."""

    store: Store
    folder: Path
    cluster: str
    identity: Identity | None = None
    secrets_of: eks_tokens.Secrets | None = None
    #: Tokens for other users, made by tests and by the stack.
    users: dict[str, User] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = self.folder / "token"
        if not path.exists():
            beside = path.with_suffix(".new")
            beside.touch(mode=0o600)
            beside.write_text(secrets.token_hex(32))
            beside.replace(path)
        self.token: str = path.read_text().strip()
        self._key = hashlib.sha256(self.token.encode()).digest()

    # --- tokens

    def token_for(self, namespace: str, account: str, lifetime_s: float = 3600) -> str:
        """A token of a service account."""
        body = json.dumps([namespace, account, time.time() + lifetime_s]).encode()
        text = base64.urlsafe_b64encode(body).decode().rstrip("=")
        return f"{_SERVICE_ACCOUNT}{text}.{hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()}"

    def user_of(self, authorization: str) -> User:
        """Who an Authorization header stands for. Raises ApiError (401)."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise unauthorized()
        if hmac.compare_digest(token.encode(), self.token.encode()):
            return User("kubernetes-admin", (MASTERS, "system:authenticated"))
        if token in self.users:
            return self.users[token]
        if token.startswith(eks_tokens.PREFIX):
            return self._of_aws(token)
        return self._of_account(token)

    def _of_aws(self, token: str) -> User:
        try:
            access_key = eks_tokens.access_key_of(token, self.cluster, self.secrets_of)
        except eks_tokens.BadToken:
            raise unauthorized() from None
        if self.identity is None:
            return User(f"aws:{access_key}", (MASTERS, "system:authenticated"))
        user = self.identity(access_key)
        if user is None:
            raise unauthorized()
        return user

    def _of_account(self, token: str) -> User:
        text, _, signature = token.removeprefix(_SERVICE_ACCOUNT).partition(".")
        right = hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()
        if not token.startswith(_SERVICE_ACCOUNT) or not hmac.compare_digest(signature.encode(), right.encode()):
            raise unauthorized()
        try:
            namespace, account, until = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (ValueError, binascii.Error):
            raise unauthorized() from None
        if until < time.time() or self.store.get(Key("serviceaccounts", namespace, account)) is None:
            raise unauthorized()
        return User(
            f"system:serviceaccount:{namespace}:{account}",
            ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"),
        )

    # --- rights

    def allows(self, user: User, attempt: Attempt) -> bool:
        """Whether a user may do it, by the roles bound to them."""
        if MASTERS in user.groups:
            return True
        if attempt.group == "authorization.k8s.io" and attempt.resource.startswith("selfsubject"):
            return True
        if attempt.path and attempt.verb == "get":
            return True
        return any(_covers(rule, attempt) for rule in self._rules(user, attempt.namespace))

    def _rules(self, user: User, namespace: str) -> Iterator[Object]:
        bindings = [(one, "") for one in self.store.scan(f"clusterrolebindings.{_RBAC}")]
        if namespace:
            bindings += [(one, namespace) for one in self.store.scan(f"rolebindings.{_RBAC}", namespace)]
        for binding, place in bindings:
            if not any(_is(subject, user, place) for subject in binding.get("subjects") or ()):
                continue
            role = binding.get("roleRef") or {}
            at = (
                Key(f"clusterroles.{_RBAC}", "", role.get("name", ""))
                if role.get("kind") == "ClusterRole"
                else Key(f"roles.{_RBAC}", place, role.get("name", ""))
            )
            found = self.store.get(at)
            yield from (found or {}).get("rules") or ()


def _is(subject: Object, user: User, place: str) -> bool:
    if subject.get("kind") == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject.get('namespace') or place}:{subject.get('name')}"
    if subject.get("kind") == "Group":
        return subject.get("name") in user.groups
    return subject.get("kind") == "User" and subject.get("name") == user.name


def _in(told: Any, wanted: str) -> bool:
    words: Sequence[str] = told or ()
    return "*" in words or wanted in words


def _covers(rule: Object, attempt: Attempt) -> bool:
    if not _in(rule.get("verbs"), attempt.verb):
        return False
    if attempt.path:
        return any(
            path == attempt.path or (path.endswith("*") and attempt.path.startswith(path[:-1]))
            for path in rule.get("nonResourceURLs") or ()
        )
    sub = attempt.resource.partition("/")[2]
    named = _in(rule.get("resources"), attempt.resource) or (sub != "" and f"*/{sub}" in (rule.get("resources") or ()))
    names = rule.get("resourceNames") or ()
    return named and _in(rule.get("apiGroups"), attempt.group) and (not names or attempt.name in names)


def refusal(user: User, attempt: Attempt) -> str:
    """Why not, in the words of the API server."""
    if attempt.path:
        return f'User "{user.name}" cannot {attempt.verb} path "{attempt.path}"'
    where = f'in the namespace "{attempt.namespace}"' if attempt.namespace else "at the cluster scope"
    return (
        f'User "{user.name}" cannot {attempt.verb} resource "{attempt.resource}" in API group "{attempt.group}" {where}'
    )
