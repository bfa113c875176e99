"""https: the same bytes to whoever trusts the certificate, and no fault of a source whose certificate is none."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import ValidationError

from protocol.errors import ConfigError, DeadlineExceeded
from protocol.shardcast.settings import ServingSettings

from .conftest import CHUNK, DEADLINE, Cast, contents, origin_at, relay_at


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Certificate and key of 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "relay")])
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def encrypted(files: tuple[Path, Path]) -> ssl.SSLContext:
    context = ServingSettings(host="127.0.0.1", tls_certificate=files[0], tls_key=files[1]).tls()
    assert context is not None
    return context


def test_weights_travel_by_https(cast: Cast, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    content = cast.bytes(5 * CHUNK + 3)
    manifest, server = cast.origin({"model": content}, tls=encrypted(certificate))
    assert server.url.startswith("https://127.0.0.1:")
    client = cast.client()
    client.fetch(1, manifest.digest, [origin_at(server.url)], DEADLINE)
    assert contents(client.store.folder(1)) == {"model": content}
    assert server.counts.bytes_served == len(content)


def test_a_certificate_that_nobody_vouches_for_is_no_lie_and_another_source_serves(
    cast: Cast, certificate: tuple[Path, Path]
) -> None:
    manifest, server = cast.origin({"model": cast.bytes(CHUNK)})
    relay = cast.serve(server.store, tls=encrypted(certificate))
    client = cast.client()
    client.fetch(1, manifest.digest, [relay_at(relay.url), origin_at(server.url)], DEADLINE)
    assert set(client.statistics.bytes_from) == {"origin"}
    assert not client.statistics.violations


def test_whoever_never_shakes_hands_does_not_hold_the_server_up(cast: Cast, certificate: tuple[Path, Path]) -> None:
    import socket

    manifest, server = cast.origin({"model": cast.bytes(CHUNK)}, tls=encrypted(certificate))
    with socket.create_connection((server.host, server.port)):
        with pytest.raises(DeadlineExceeded):
            cast.client().fetch(1, manifest.digest, [origin_at(server.url.replace("https", "http"))], 0.5)
        server.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shardcast-")]


def test_a_certificate_without_a_key_or_that_is_none_is_said(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="both"):
        ServingSettings(tls_certificate=certificate[0]).tls()
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for pair in ((broken, certificate[1]), (tmp_path / "absent.pem", certificate[1]), (certificate[0], broken)):
        with pytest.raises(ConfigError, match="cannot serve by"):
            ServingSettings(tls_certificate=pair[0], tls_key=pair[1]).tls()


def test_an_http_address_in_front_of_https_is_refused_and_the_other_way_round_needs_a_proxy(
    certificate: tuple[Path, Path],
) -> None:
    files = {"tls_certificate": certificate[0], "tls_key": certificate[1]}
    with pytest.raises(ValidationError, match="let public_url begin with https://"):
        ServingSettings(public_url="http://relay.example:8460", **files)
    ServingSettings(public_url="https://relay.example", **files).require_ready()
    assert ServingSettings(public_url="https://relay.example").needs_proxy
    assert not ServingSettings(public_url="https://relay.example", **files).needs_proxy
    with pytest.raises(ConfigError, match="both a certificate and its key"):
        ServingSettings(public_url="https://relay.example", tls_certificate=certificate[0]).require_ready()
