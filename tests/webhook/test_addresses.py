"""Which addresses a webhook may go to."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairq.errors import SettingsError
from fairq.webhook.addresses import NEVER_ALLOWED, AddressRefused, AddressRules, embedded_in, kind_of
from tests.store.cases import case, raises_for

REFUSED_BY_KIND = {
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "private": [  # Amazon's metadata: fd00:ec2::254
        "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1",
        "fd00:ec2::254", "fec0::1",
    ],
    "shared": ["100.64.0.1", "100.100.100.200"],  # of carriers; Alibaba's metadata
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "platform": ["168.63.129.16"],
    "link_local": ["169.254.0.1", "169.254.169.254", "fe80::1", "fe80::1%eth0"],  # most clouds' metadata
    "protocol": ["192.0.0.1", "192.0.0.192", "2001:10::1", "2001:2::1"],  # Oracle's metadata
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "relay": ["192.88.99.1"],
    "benchmark": ["198.18.0.1"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "100::1", "4000::1", "5f00::1"],
    "embedded": [
        "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:a9fe:a9fe",
        "64:ff9b::127.0.0.1", "64:ff9b::8.8.8.8", "64:ff9b:1::a00:1", "2001::1", "2001:0:7f00:1::",
        "2002:7f00:1::", "2002:808:808::1",
    ],
}  # fmt: skip
REFUSED = {text: kind for kind, texts in REFUSED_BY_KIND.items() for text in texts}
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.0", "128.0.0.1", "172.15.255.255",
          "172.32.0.0", "192.0.1.0", "223.255.255.255", "2001:200::1", "2001:4860:4860::8888", "2003::1", "2400::1",
          "2606:4700::1111", "2a00:1450::1", "3ffe:ffff::1"]  # fmt: skip

addresses = st.ip_addresses() | st.sampled_from(
    [ip_address(text.partition("%")[0]) for text in REFUSED] + [ip_address(text) for text in PUBLIC]
)


def test_what_is_not_public_is_refused_and_named() -> None:
    for text, kind in REFUSED.items():
        with case(text, kind):
            with pytest.raises(AddressRefused) as caught:
                AddressRules().check(text, "hooks.example")
            assert (caught.value.code, caught.value.kind) == ("address_refused", kind)
            assert "hooks.example" in caught.value.message
            assert text in caught.value.message


def test_public_addresses_pass() -> None:
    for text in PUBLIC:
        with case(text):
            assert AddressRules().check(text, "hooks.example") == text


@given(addresses)
def test_nothing_passes_that_python_holds_for_anything_but_global(address: IPv4Address | IPv6Address) -> None:
    if kind_of(address) is None:
        assert address.is_global
        assert not address.is_multicast
        assert not address.is_reserved


@given(st.ip_addresses(v=4))
def test_no_ipv4_address_passes_inside_an_ipv6_address(inner: IPv4Address) -> None:
    number = int(inner)
    for outer in (
        IPv6Address(number),
        IPv6Address((0xFFFF << 32) | number),
        IPv6Address((0x0064FF9B << 96) | number),
        IPv6Address((0x0064FF9B0001 << 80) | number),
        IPv6Address((0x2002 << 112) | (number << 80) | 1),
        IPv6Address((0x20010000 << 96) | (number ^ 0xFFFFFFFF)),
    ):
        assert AddressRules().refusal(outer)
        if number > 1:
            assert embedded_in(outer) == inner
        everything_outside = AddressRules((ip_network("::/0"),))
        if number > 1:  # ::0.0.0.0 and ::0.0.0.1 are :: and ::1
            assert everything_outside.refusal(outer) == kind_of(inner)


@given(addresses)
def test_an_allowed_address_passes_and_no_other(address: IPv4Address | IPv6Address) -> None:
    rules = AddressRules.parse([str(address)])
    if kind_of(address) in NEVER_ALLOWED:
        assert rules.refusal(address)
    elif kind_of(address) != "embedded":
        assert embedded_in(address) is None
        assert rules.refusal(address) is None
    assert rules.refusal(ip_address("10.99.0.1")) == ("private" if str(address) != "10.99.0.1" else None)


def test_some_are_never_allowed() -> None:
    for kind in sorted(NEVER_ALLOWED):
        with case(kind):
            rules = AddressRules.parse(["0.0.0.0/0", "::/0"])
            refused = {text for text in REFUSED if rules.refusal(ip_address(text)) == kind}
            assert refused >= {text for text in REFUSED if REFUSED[text] == kind}


def test_an_allowed_network_that_is_none_is_refused() -> None:
    for text in ["", "10.0.0.0/33", "10.0.0.1/8", "hooks.example", "10.0.0", "::1/x", "*"]:
        with case(text), raises_for("allow_private", SettingsError):
            AddressRules.parse([text])
