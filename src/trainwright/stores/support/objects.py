"""Objects in a bucket of a cloud's object storage, which the library obstore reads and writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainwright.errors import CheckpointError, InputError
from trainwright.stores.base import Version

_CHUNK_BYTES = 8 << 20
_ROLE_ADDRESS = "http://169.254.169.254/"  # the instance metadata service, which obstore asks last
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_BACKOFF = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2}
# A service that has never answered may have another address: the user learns of it within a minute. One that
# has is waited for longer, as it may be restarting; the next save tries again.
_HASTY: dict[str, Any] = {"max_retries": 8, "retry_timeout": timedelta(seconds=60), "backoff": _BACKOFF}
_PATIENT = _HASTY | {"max_retries": 99, "retry_timeout": timedelta(minutes=3)}


@dataclass(frozen=True)
class Service:
    """The terms and environment variables of a cloud's object storage.

    Args:
        url: An example of its URLs.
        bucket: Its word for a bucket.
        no_bucket: Its error code for a bucket that does not exist.
        credentials: The environment variables with the credentials, for messages.
        endpoints: The environment variables that set another endpoint, with or without TLS.
    """

    url: str
    bucket: str
    no_bucket: str
    credentials: str
    endpoints: tuple[str, ...]


class ObjectStore:
    """Objects in a bucket, under the prefix that the URL names.

    Args:
        url: The URL.
        service: The service.
        api: The library, obstore.
        bucket: The class of obstore for this service.

    Raises:
        InputError: The URL names no bucket, or the settings in the environment are wrong.
    """

    def __init__(self, url: str, service: Service, api: Any, bucket: Any) -> None:
        self._url = url.rstrip("/")
        self._service = service
        self._api = api
        self._check_names()
        plain = any(environ.get(name, "").startswith("http://") for name in service.endpoints)
        options = {"client_options": {"allow_http": True}} if plain else {}
        try:
            self._bucket, self._patient = (
                bucket.from_url(self._url, retry_config=retries, **options) for retries in (_HASTY, _PATIENT)
            )
        except api.exceptions.BaseError as error:
            raise InputError(f"{self._url} cannot be opened: {self._brief(error)}") from error

    def put(self, key: str, source: Path) -> None:
        """Upload the file; a large one as a multipart upload, which becomes visible at its end."""
        with self._writing("put", key), open(source, "rb") as file:
            self._api.put(self._bucket, key, file)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Upload in one request, with the condition that there is no such object."""
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

    def version(self, key: str) -> Version:
        """Return the ETag of the object, with the number of its generation where the service counts them.

        Raises:
            CheckpointError: The object does not exist or cannot be read.
        """
        with self._reading("head", key):
            status = self._api.head(self._bucket, key)
        tags = (status["e_tag"] or status["last_modified"].isoformat(), status["version"])
        return Version(" ".join(tag for tag in tags if tag), status["size"])

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix`, sorted by path components."""
        folder = prefix.rpartition("/")[0]  # the service matches prefixes by whole path components
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
            self._bucket = self._patient
        except FileNotFoundError as error:
            raise CheckpointError(f"{self._url}/{key}: no such object") from error
        except self._api.exceptions.BaseError as error:
            raise CheckpointError(f"{verb} {self._url}/{key}: {self._brief(error)}") from error

    @contextmanager
    def _writing(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
            self._bucket = self._patient
        except FileNotFoundError as error:
            if verb != "delete":
                raise OSError(f"{verb} {self._url}/{key}: {self._brief(error)}") from error
        except self._api.exceptions.BaseError as error:
            raise OSError(f"{verb} {self._url}/{key}: {self._brief(error)}") from error

    def _check_names(self) -> None:
        """Refuse a URL without a bucket, and an endpoint without a scheme: obstore reports neither well."""
        if not urlsplit(self._url).netloc:
            raise InputError(f"{self._url} names no {self._service.bucket}; write {self._service.url}")
        for name in self._service.endpoints:
            endpoint = environ.get(name)
            if endpoint and not endpoint.startswith(("http://", "https://")):
                raise InputError(f"{name} is not a URL; write https://host, or http://host:port")

    def _brief(self, error: Exception) -> str:
        """Return what an error says in one line; the library adds its internals below its first line."""
        service = self._service
        text = str(error).strip() or type(error).__name__
        if _ROLE_ADDRESS in text:
            return (
                f"there are no credentials: set {service.credentials} "
                "(this machine has no role that could replace them)"
            )
        code = _CODE.search(text)
        if code and code[1] == service.no_bucket:
            return (
                f"there is no such {service.bucket}; create it, or correct the URL or {service.endpoints[0]}"
            )
        if code:
            message = _MESSAGE.search(text)
            return f"the service answers {code[1]}" + (f": {message[1].strip()}" if message else "")
        return text.splitlines()[0][:300]
