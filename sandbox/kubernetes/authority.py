"""The pretend authority that vouches for API servers: one key and certificate a sandbox, one certificate a server."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFETIME = timedelta(days=3650)


class Authority:
    """Kept in a folder, so that kubeconfigs outlive a restart; a kill between two writes leaves it to be made anew."""

    def __init__(self, folder: Path, names: Sequence[str] = ()) -> None:
        self._folder = folder
        #: By what servers are called besides this machine's own names; the first is told where a host is any.
        self.names = tuple(names)
        folder.mkdir(parents=True, exist_ok=True)
        self._pem = folder / "authority.pem"
        if not self._pem.exists():
            _private(self._pem, _made("quarterdeck sandbox", None))
        text = self._pem.read_bytes()
        self._key = serialization.load_pem_private_key(text, None)
        self._certificate = x509.load_pem_x509_certificate(text)

    @property
    def ca(self) -> str:
        """The authority's certificate, PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def ca_data(self) -> str:
        """The same in base64, as kubeconfigs and DescribeCluster have it."""
        return base64.b64encode(self.ca.encode()).decode()

    def context(self) -> ssl.SSLContext:
        """What a server on this machine speaks TLS with."""
        mark = hashlib.sha256(",".join(self.names).encode()).hexdigest()[:8] if self.names else ""
        path = self._folder / f"server{mark}.pem"
        if not path.exists():
            assert isinstance(self._key, ec.EllipticCurvePrivateKey)
            _private(path, _made("kube-apiserver", (self._key, self._certificate), self.names))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(path)
        return context


def _made(
    name: str, issuer: tuple[ec.EllipticCurvePrivateKey, x509.Certificate] | None, more: Sequence[str] = ()
) -> bytes:
    """A key and its certificate in one PEM, signed by the issuer or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    by_key, by = (key, subject) if issuer is None else (issuer[0], issuer[1].subject)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by_key.public_key()), critical=False)
        .add_extension(_usage(is_authority=issuer is None), critical=True)
    )
    if issuer is not None:
        addresses = [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
        names: list[x509.GeneralName] = [x509.IPAddress(one) for one in addresses]
        names += [x509.DNSName(one) for one in ("localhost", *more)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(by_key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret + certificate.public_bytes(serialization.Encoding.PEM)


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _private(path: Path, content: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.touch(mode=0o600)
    beside.write_bytes(content)
    beside.replace(path)
