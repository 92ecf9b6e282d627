"""The contract of object stores, held by a folder and by S3 (moto's, which checks what AWS checks of these calls)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from worker.providers import errors
from worker.providers.object_store import FolderStore, S3Store
from worker.providers.values import CloudAccess, Credentials

pytestmark = pytest.mark.contract

KEY = "logs/nlp/job_1/att_1/000000000001-000000000009.jsonl.gz"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "folder":
        return FolderStore(tmp_path / "deep" / "store")
    url = request.getfixturevalue("bucket")
    client = boto3.client(
        "s3", region_name="us-east-1", endpoint_url=url, aws_access_key_id="k", aws_secret_access_key="s"
    )
    client.create_bucket(Bucket="outputs")
    return S3Store(CloudAccess("us-east-1", Credentials("k", "s"), endpoint_url=url), "outputs", "/quarterdeck/")


def test_what_was_put_comes_back(store: Any) -> None:
    body = bytes(range(256)) * 1000
    store.put(KEY, body)
    assert store.get(KEY) == body
    store.put(KEY, b"again")
    store.put(KEY, b"again")
    assert store.get(KEY) == b"again"


def test_what_is_not_there_is_not_found(store: Any) -> None:
    store.put(KEY, b"x")
    with pytest.raises(errors.NotFound, match="there is no"):
        store.get(KEY + ".other")
    store.delete(KEY)
    store.delete(KEY)
    with pytest.raises(errors.NotFound):
        store.get(KEY)


def test_a_bucket_that_is_not_there_is_said(bucket: str) -> None:
    access = CloudAccess("us-east-1", Credentials("k", "s"), endpoint_url=bucket)
    with pytest.raises(errors.ProviderError, match="NoSuchBucket"):
        S3Store(access, "nobodys").put(KEY, b"x")


@pytest.mark.parametrize("key", ["../escape", "/etc/passwd", "a//b", ".hidden", "a/../b", ""])
def test_no_key_leaves_the_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="cannot be a key"):
        FolderStore(tmp_path).put(key, b"x")


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(errors.Unavailable, match="cannot write"):
        FolderStore(tmp_path / "store").put(KEY, b"x")
