"""Secrets Manager: what other services keep there, by its ARN; nothing is ever readable."""

from __future__ import annotations

import secrets
import time
from typing import Any, ClassVar

from sandbox.aws.errors import AwsError
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.service import Service


class SecretsManager(Service):
    """Describes secrets; their values stay where they are."""

    name: ClassVar[str] = "secretsmanager"

    def keep(self, name: str) -> str:
        """Put a secret there; its ARN."""
        arn = f"arn:aws:secretsmanager:{self.options.region}:{ACCOUNT_ID}:secret:{name}-{secrets.token_hex(3)}"
        with self.lock:
            self.rows("secrets")[arn] = {"name": name, "created_at": time.time()}
            self.save()
        return arn

    def forget(self, arn: str) -> None:
        """Take it away; unknown ones are ignored."""
        with self.lock:
            self.rows("secrets").pop(arn, None)
            self.save()

    def census(self) -> dict[str, int]:
        """How many there are."""
        return {"secrets": len(self.rows("secrets"))}

    def describe_secret(self, asked: dict[str, Any]) -> dict[str, Any]:
        """That it exists."""
        known = self.rows("secrets").get(asked["SecretId"])
        if known is None:
            raise AwsError("ResourceNotFoundException", "Secrets Manager can't find the specified secret.")
        return {"ARN": asked["SecretId"], "Name": known["name"], "CreatedDate": known["created_at"]}
