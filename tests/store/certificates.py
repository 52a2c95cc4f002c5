"""Certificates for tests of TLS."""

from __future__ import annotations

from pathlib import Path


def make_certificate(directory: Path, *names: str) -> tuple[str, str]:
    """Make a certificate for names (127.0.0.1), with the authority that vouches for it, and its key: PEM files."""
    import trustme  # here, for it takes long to import and few tests need it

    authority = trustme.CA()
    issued = authority.issue_cert(*(names or ["127.0.0.1"]))
    cert, key = directory / "cert.pem", directory / "key.pem"
    issued.private_key_pem.write_to_path(key)
    cert.write_bytes(b"".join(blob.bytes() for blob in (*issued.cert_chain_pems, authority.cert_pem)))
    return str(cert), str(key)
