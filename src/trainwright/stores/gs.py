"""A store in a bucket of Google Cloud Storage."""

from __future__ import annotations

from typing import Any

from trainwright.require import require
from trainwright.stores.support.objects import ObjectStore, Service

_SERVICE = Service(
    url="gs://bucket/prefix",
    bucket="bucket",
    no_bucket="NoSuchBucket",
    credentials="GOOGLE_APPLICATION_CREDENTIALS to the file with them",
    endpoints=("GOOGLE_BASE_URL",),
)


class GsStore(ObjectStore):
    """Objects in a bucket, under the prefix that the URL names: `gs://bucket/prefix`.

    Credentials come from the file that `GOOGLE_APPLICATION_CREDENTIALS` names, or that
    `gcloud auth application-default login` has written; without one, from the machine's role.
    `GOOGLE_BASE_URL` names another endpoint, such as an emulator's, and `GOOGLE_BEARER_TOKEN` a token to use
    there. A conditional put is one with `x-goog-if-generation-match: 0`.

    Args:
        url: The URL.

    Raises:
        InputError: The URL names no bucket, the endpoint is not a URL, or the credentials cannot be read.
        MissingExtraError: obstore is not installed.
    """

    def __init__(self, url: str) -> None:
        api: Any = require("obstore", "gs")
        super().__init__(url, _SERVICE, api, api.store.GCSStore)
