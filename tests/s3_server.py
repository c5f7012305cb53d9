"""moto's S3 on loopback; what it holds is in memory."""

from __future__ import annotations

import urllib.request
from uuid import uuid4

from troubled_server import App, TroubledServer


def moto_s3() -> App:
    """moto's application; a request whose service it cannot tell is one to S3."""
    from moto.server import DomainDispatcherApplication, create_backend_app

    app: App = DomainDispatcherApplication(create_backend_app)
    return app


class S3Server(TroubledServer):
    """An S3 service."""

    scheme = "s3"

    def __init__(self) -> None:
        super().__init__(moto_s3())

    def new_bucket(self) -> str:
        name = f"bucket-{uuid4().hex[:12]}"
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT", headers={"Content-Length": "0"})
        urllib.request.urlopen(request, timeout=30).close()
        return f"{self.scheme}://{name}"

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test-access-key",
            "AWS_SECRET_ACCESS_KEY": "test-secret-of-this-server",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
