"""Secrets Manager: the value behind a name or an ARN, read when it is needed and never written down."""

from __future__ import annotations

from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import reading_client
from worker.providers.errors import InvalidRequest
from worker.providers.values import CloudAccess


def secret_value(access: CloudAccess, name: str) -> str | bytes:
    """The current value: text, or bytes where it is kept as such. Raises provider errors that name the secret."""
    with aws_call("GetSecretValue"):
        answer = reading_client(access, "secretsmanager").get_secret_value(SecretId=name)
    found = answer.get("SecretString", answer.get("SecretBinary"))
    if not isinstance(found, str | bytes) or not found:
        raise InvalidRequest(f"secret {name} holds nothing", source="secrets")
    return found
