"""An object store in a bucket of S3, or of what speaks like S3."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import Any, Final

from worker.providers import errors as e
from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import reading_client
from worker.providers.values import CloudAccess

#: Nothing that the portal stores is larger; whatever is has another origin and is not read into memory.
MOST_BYTES: Final = 64 * 1024 * 1024


class S3Store:
    """Keys below ``prefix`` of one bucket. Writing or deleting a whole object may be repeated without harm."""

    def __init__(self, access: CloudAccess, bucket: str, prefix: str = "") -> None:
        self._access = access
        self._bucket = bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""

    @property
    def _client(self) -> Any:
        return reading_client(self._access, "s3")

    def put(self, key: str, body: bytes) -> None:
        """Write or replace an object; S3 compares the MD5 sum before it says yes."""
        digest = b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        with aws_call("PutObject"):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=body, ContentMD5=digest)

    def get(self, key: str) -> bytes:
        """The whole object; ``NotFound``."""
        try:
            with aws_call("GetObject"):
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
                body: bytes = answer["Body"].read(MOST_BYTES + 1)
        except e.ProviderError as error:
            if error.code in ("NoSuchKey", "404"):
                where = f"s3://{self._bucket}/{self._prefix}{key}"
                raise e.NotFound(f"there is no {where}", source="s3", code=error.code) from error
            raise
        if len(body) > MOST_BYTES:
            raise e.InvalidRequest(f"{key} is larger than {MOST_BYTES} bytes", source="s3", code="size")
        return body

    def delete(self, key: str) -> None:
        """Remove it; one that is not there is success."""
        with aws_call("DeleteObject"):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)
