"""A store in an S3 bucket, or in any service that speaks S3 and refuses a second conditional put."""

from __future__ import annotations

from typing import Any

from trainwright.require import require
from trainwright.stores.support.objects import ObjectStore, Service

_SERVICE = Service(
    url="s3://bucket/prefix",
    bucket="bucket",
    no_bucket="NoSuchBucket",
    credentials="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    endpoints=("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
)


class S3Store(ObjectStore):
    """Objects in a bucket, under the prefix that the URL names: `s3://bucket/prefix`.

    Credentials, region and endpoint come from the usual variables: `AWS_ACCESS_KEY_ID`,
    `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`; without keys, from the
    machine's role. An endpoint without TLS is used if its URL begins with `http://`. A conditional put is
    one with `If-None-Match: *`.

    Args:
        url: The URL.

    Raises:
        InputError: The URL names no bucket, or the endpoint is not a URL.
        MissingExtraError: obstore is not installed.
    """

    def __init__(self, url: str) -> None:
        api: Any = require("obstore", "s3")
        super().__init__(url, _SERVICE, api, api.store.S3Store)
