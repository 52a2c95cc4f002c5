"""Signatures: what is signed is verified, and nothing else is."""

from __future__ import annotations

import hmac
import time
from base64 import b64encode
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairq.errors import SettingsError
from fairq.webhook import BadSignature, verify
from fairq.webhook.signature import Signer, read_secret, tenant_secret, write_secret
from tests.store.cases import case, raises_for

SECRET = write_secret(b"s" * 32)
OTHER = write_secret(b"o" * 32)
NOW = 1_700_000_000
ID, BODY = "emails/ada/t1", b'{"to":"ada"}'


def signed(*secrets: str, id: str = ID, at: int = NOW, body: bytes = BODY) -> dict[str, str]:
    """The headers of a signed request."""
    signature = Signer.parse(secrets or [SECRET]).signature("ada", id, str(at), body)
    return {"Webhook-Id": id, "WEBHOOK-TIMESTAMP": str(at), "webhook-signature": signature}


def test_the_example_of_the_standards_own_libraries() -> None:
    """The vector that libraries of Standard Webhooks share, so that those verify what we sign."""
    body, at, id = b'{"test": 2432232314}', 1614265330, "msg_p5jXN8AQM9LWM0D4loKWxJek"
    headers = signed("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", id=id, at=at, body=body)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert verify(body, headers, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", now=at) == id


def test_secrets_can_be_replaced_while_requests_are_on_their_way() -> None:
    for sender, receiver in [
        ([SECRET, OTHER], [SECRET]),
        ([SECRET, OTHER], [OTHER]),
        ([SECRET], [OTHER, SECRET]),
        ([OTHER], [OTHER, SECRET]),
    ]:
        with case(sender, receiver):
            assert verify(BODY, signed(*sender), receiver, now=NOW) == ID


REFUSED = {
    "no id": ({"Webhook-Id": ""}, "webhook-id"),
    "no timestamp": ({"WEBHOOK-TIMESTAMP": ""}, "webhook-timestamp"),
    "no signature": ({"webhook-signature": ""}, "webhook-signature"),
    "another id": ({"Webhook-Id": "emails/ada/t2"}, "webhook-signature"),
    "another time": ({"WEBHOOK-TIMESTAMP": str(NOW + 1)}, "webhook-signature"),
    "too old": ({"WEBHOOK-TIMESTAMP": str(NOW - 301)}, "webhook-timestamp"),
    "too new": ({"WEBHOOK-TIMESTAMP": str(NOW + 301)}, "webhook-timestamp"),
    "a fraction": ({"WEBHOOK-TIMESTAMP": f"{NOW}.5"}, "webhook-timestamp"),
    "a sign": ({"WEBHOOK-TIMESTAMP": f"+{NOW}"}, "webhook-timestamp"),
    "not a number": ({"WEBHOOK-TIMESTAMP": "nan"}, "webhook-timestamp"),
    "other digits": ({"WEBHOOK-TIMESTAMP": "١٧٠٠٠٠٠٠٠٠"}, "webhook-timestamp"),
    "huge": ({"WEBHOOK-TIMESTAMP": "9" * 5_000}, "webhook-timestamp"),
    "not a signature": ({"webhook-signature": "x"}, "webhook-signature"),
    "not ASCII": ({"webhook-signature": "v1,é"}, "webhook-signature"),
    "another version": ({"webhook-signature": signed()["webhook-signature"].replace("v1", "v1a")}, "webhook-signature"),
    "no version": ({"webhook-signature": signed()["webhook-signature"][3:]}, "webhook-signature"),
    "another secret": ({"webhook-signature": signed(OTHER)["webhook-signature"]}, "webhook-signature"),
}


def test_a_request_that_was_not_signed_so_is_refused() -> None:
    for name, (changes, field) in REFUSED.items():
        with case(name):
            with pytest.raises(BadSignature) as caught:
                verify(BODY, signed() | changes, SECRET, now=NOW)
            assert (caught.value.code, caught.value.field) == ("bad_signature", field)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_no_other_body_has_the_signature(body: bytes, other: bytes) -> None:
    headers = signed(body=body)
    if other == body:
        assert verify(other, headers, SECRET, now=NOW) == ID
    else:
        with pytest.raises(BadSignature):
            verify(other, headers, SECRET, now=NOW)


def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    verify(BODY, signed(SECRET, OTHER), [SECRET, OTHER], now=NOW)
    assert len(compared) == 4  # all with all, whichever is right


def test_the_tolerance_is_the_receivers() -> None:
    assert verify(BODY, signed(at=int(time.time())), SECRET)
    assert verify(BODY, signed(), SECRET, now=NOW + 50, tolerance=50)
    with pytest.raises(BadSignature):
        verify(BODY, signed(), SECRET, now=NOW + 51, tolerance=50)


def test_a_secret_that_is_none_is_refused_without_being_shown() -> None:
    for text in ["", "whsec_", "whsec_secret", "whsec_" + "é" * 40, write_secret(b"s" * 23), write_secret(b"s" * 65),
     write_secret(b"s" * 32)[:-1], write_secret(b"s" * 32) + "*",
     "whsec_" + b64encode(b"\xff" * 32).decode().replace("/", "_")]:  # fmt: skip
        with case(text):
            for make in (partial(Signer.parse, [text]), partial(verify, BODY, signed(), text, now=NOW)):
                with raises_for("secret", SettingsError) as caught:
                    make()
                assert len(text) < 8 or text not in caught.value.message
    with pytest.raises(SettingsError):
        verify(BODY, signed(), [], now=NOW)


def test_a_tenants_secret_never_changes() -> None:
    """Receivers keep it: the derivation is part of what we promise."""
    derived = hmac.digest(b"s" * 32, b"fairq webhook secret of tenant ada", "sha256")
    assert tenant_secret(read_secret(SECRET), "ada") == derived


def test_a_signer_does_not_show_its_secrets() -> None:
    assert "ssss" not in repr(Signer.parse([SECRET]))
