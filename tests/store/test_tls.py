"""Redis over TLS, with certificates that the test makes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from redis import Redis

from django_delayq.checks import check_server
from django_delayq.core.conf import parse_settings
from django_delayq.core.exceptions import StoreUnavailable
from django_delayq.store.connection import open_client
from django_delayq.store.store import RedisStore
from django_delayq.testing.embedded import EmbeddedServer
from tests.servers import PORTS, binary_of, require
from tests.store.factories import claim, enqueue
from tests.store.test_scripts import listen


class Secured:
    """A server that speaks nothing but TLS, and the certificates of two authorities."""

    def __init__(self, folder: Path) -> None:
        ours, other = trustme.CA(), trustme.CA()
        self.ca, self.other_ca = folder / "ca.pem", folder / "other.pem"
        ours.cert_pem.write_to_path(self.ca)
        other.cert_pem.write_to_path(self.other_ca)
        issued = ours.issue_cert("127.0.0.1", "localhost")
        certificate, key = folder / "redis.pem", folder / "redis.key"
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        self.port = secrets.choice(PORTS)
        self.server = EmbeddedServer(
            binary=binary_of("redis7"),
            config={
                "tls-port": str(self.port),
                "tls-cert-file": str(certificate),
                "tls-key-file": str(key),
                "tls-ca-cert-file": str(self.ca),
                "tls-auth-clients": "no",
            },
        )

    def url(self, **options: Any) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"rediss://127.0.0.1:{self.port}/0?{query}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    require("redis7")
    found = Secured(tmp_path_factory.mktemp("tls"))
    with found.server:
        yield found


def opened(url: str, prefix: str) -> RedisStore:
    settings = parse_settings({"REDIS": url, "PREFIX": prefix})
    return RedisStore(open_client(settings), settings)


def test_a_message_is_sent_and_claimed_over_tls(secured: Secured, prefix: str) -> None:
    store = opened(secured.url(ssl_ca_certs=secured.ca), prefix)
    message_id = enqueue(store)
    assert claim(store, message_id).id == message_id
    listen(store)
    store.close()


def test_a_server_of_another_authority_is_refused(secured: Secured, prefix: str) -> None:
    store = opened(secured.url(ssl_ca_certs=secured.other_ca), prefix)
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate.*ssl_ca_certs"):
        enqueue(store)
    store.close()


def test_the_certificate_is_checked_unless_the_project_says_otherwise(
    secured: Secured, prefix: str
) -> None:
    store = opened(secured.url(), prefix)
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
        enqueue(store)
    store.close()


def test_nothing_is_sent_in_the_clear(secured: Secured, prefix: str) -> None:
    store = opened(f"redis://127.0.0.1:{secured.port}/0", prefix)
    with pytest.raises(Exception):  # noqa: B017 - the server hangs up, in words of its own
        enqueue(store)
    store.close()
    assert Redis(unix_socket_path=str(secured.server.socket)).keys(f"{prefix}:*") == []


@pytest.mark.django_db
@pytest.mark.parametrize(("options", "warned"), [({"ssl_cert_reqs": "none"}, True), ({}, False)])
def test_a_certificate_that_is_not_checked_is_a_warning(
    secured: Secured, prefix: str, settings: Any, options: dict[str, str], warned: bool
) -> None:
    url = secured.url(ssl_ca_certs=secured.ca, **options)
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": url, "PREFIX": prefix}
    assert ("delayq.W009" in {message.id for message in check_server()}) is warned
