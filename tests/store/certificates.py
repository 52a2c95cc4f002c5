"""Self-signed certificates for tests of TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(directory: Path, name: str = "IP:127.0.0.1") -> tuple[str, str]:
    """Make a certificate for an address or a name (DNS:hooks.example), and its key: paths of PEM files."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.fail("openssl is not installed", pytrace=False)
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=test", "-addext", f"subjectAltName={name}", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key
