"""Secrets Manager: what other services keep there, and what a site put there itself, by ARN or name."""

from __future__ import annotations

import base64
import secrets
import time
from typing import Any, ClassVar

from sandbox.aws.errors import AwsError
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.service import Service


class SecretsManager(Service):
    """Describes secrets and hands out their values; a key is made where no value is given, kept in base64."""

    name: ClassVar[str] = "secretsmanager"

    def keep(self, name: str, value: str = "") -> str:
        """Put a secret there; its ARN."""
        arn = f"arn:aws:secretsmanager:{self.options.region}:{ACCOUNT_ID}:secret:{name}-{secrets.token_hex(3)}"
        with self.lock:
            text = value or base64.b64encode(secrets.token_bytes(32)).decode()
            self.rows("secrets")[arn] = {"name": name, "created_at": time.time(), "text": text}
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

    def _found(self, wanted: str) -> tuple[str, dict[str, Any]]:
        for arn, known in self.rows("secrets").items():
            if wanted in (arn, known["name"]):
                return arn, known
        raise AwsError("ResourceNotFoundException", "Secrets Manager can't find the specified secret.")

    def describe_secret(self, asked: dict[str, Any]) -> dict[str, Any]:
        """That it exists."""
        arn, known = self._found(asked["SecretId"])
        return {"ARN": arn, "Name": known["name"], "CreatedDate": known["created_at"]}

    def get_secret_value(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What it holds, as text."""
        arn, known = self._found(asked["SecretId"])
        made = {"VersionId": "00000000-0000-4000-8000-000000000001", "VersionStages": ["AWSCURRENT"]}
        return {
            "ARN": arn,
            "Name": known["name"],
            "SecretString": known.get("text", ""),
            "CreatedDate": known["created_at"],
            **made,
        }
