"""A store in an S3 bucket, or in any service that speaks S3 and refuses a second conditional put."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainyard.errors import CheckpointError, InputError
from trainyard.require import require

_CHUNK_BYTES = 8 << 20
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
_ROLE_ADDRESS = "http://169.254.169.254/"  # asked for a role where there are no keys
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
# A call to a service that cannot be reached fails after a minute at most; the next save tries again.
_RETRIES: dict[str, Any] = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(seconds=0.1),
        "max_backoff": timedelta(seconds=10),
        "base": 2,
    },
}


class S3Store:
    """Objects in a bucket, under the prefix that the URL names: `s3://bucket/prefix`.

    Credentials, region and endpoint come from the usual variables: `AWS_ACCESS_KEY_ID`,
    `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`; without keys, from the
    machine's role. An endpoint without TLS is used if its URL begins with `http://`.

    Args:
        url: The URL.

    Raises:
        InputError: The URL names no bucket, or the endpoint is no URL.
        MissingExtraError: obstore is not installed.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        _check_names(url)
        self._api: Any = require("obstore", "s3")
        plain = any(environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        options = {"client_options": {"allow_http": True}} if plain else {}
        self._bucket = self._api.store.S3Store.from_url(self._url, retry_config=_RETRIES, **options)

    def put(self, key: str, source: Path) -> None:
        """Upload the file; a large one in parts, which become visible together."""
        with self._writing("put", key), open(source, "rb") as file:
            self._api.put(self._bucket, key, file)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Upload with the condition that there is no such object (`If-None-Match: *`)."""
        with self._writing("put", key):
            try:
                self._api.put(self._bucket, key, data, mode="create", use_multipart=False)
            except self._api.exceptions.AlreadyExistsError:
                return False
        return True

    def get(self, key: str) -> bytes:
        """Return the object's content.

        Raises:
            CheckpointError: The object does not exist or cannot be read.
        """
        with self._reading("get", key):
            return bytes(self._api.get(self._bucket, key).bytes())

    def download(self, key: str, target: Path) -> None:
        """Write the object's content into a new file, part by part.

        Raises:
            CheckpointError: The object does not exist or cannot be read.
        """
        with self._reading("get", key):
            parts = iter(self._api.get(self._bucket, key).stream(min_chunk_size=_CHUNK_BYTES))
        with open(target, "xb") as file:
            while True:
                with self._reading("get", key):
                    part = next(parts, None)
                if part is None:
                    return
                file.write(part)

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix`, sorted by path components."""
        folder = prefix.rpartition("/")[0]  # the service's own prefixes are whole names
        with self._reading("list", prefix):
            pages = list(self._api.list(self._bucket, prefix=folder or None))
        keys = [item["path"] for page in pages for item in page]
        yield from sorted((key for key in keys if key.startswith(prefix)), key=lambda key: key.split("/"))

    def delete(self, key: str) -> None:
        """Delete the object."""
        with self._writing("delete", key):
            self._api.delete(self._bucket, key)

    @contextmanager
    def _reading(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise CheckpointError(f"{self._url}/{key}: no such object") from error
        except self._api.exceptions.BaseError as error:
            raise CheckpointError(f"{verb} {self._url}/{key}: {_brief(error)}") from error

    @contextmanager
    def _writing(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if verb != "delete":
                raise OSError(f"{verb} {self._url}/{key}: {_brief(error)}") from error
        except self._api.exceptions.BaseError as error:
            raise OSError(f"{verb} {self._url}/{key}: {_brief(error)}") from error


def _check_names(url: str) -> None:
    """Refuse a URL without a bucket, and an endpoint without a scheme: the library reports neither well."""
    if not urlsplit(url).netloc:
        raise InputError(f"{url} names no bucket; write s3://bucket/prefix")
    for name in _ENDPOINTS:
        endpoint = environ.get(name)
        if endpoint and not endpoint.startswith(("http://", "https://")):
            raise InputError(f"{name} is not a URL; write https://host, or http://host:port")


def _brief(error: Exception) -> str:
    """Return what an error says in one line; the library adds its internals below its first line."""
    text = str(error).strip() or type(error).__name__
    if _ROLE_ADDRESS in text:
        return (
            "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "(this machine has no role that could replace them)"
        )
    code = _CODE.search(text)
    if code and code[1] == "NoSuchBucket":
        return "there is no such bucket; create it, or correct the URL or AWS_ENDPOINT_URL"
    if code:
        said = _MESSAGE.search(text)
        return f"the service answers {code[1]}" + (f": {said[1]}" if said else "")
    return text.splitlines()[0][:300]
