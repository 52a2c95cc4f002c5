"""Which addresses a webhook may go to.

Whoever owns a host's DNS chooses its addresses, and would choose what this machine can reach and he cannot: its own
services, its network, its cloud's metadata. So an address must be public: outside all that IANA's registries of
special-purpose addresses set aside. They are written out here because `ipaddress` judges some of them differently from
one Python to the next. IPv6 is refused but for global unicast, and there too where an IPv4 address travels inside.

An operator may allow networks. An address that carries another must then pass with both.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from attrs import frozen

from fairq.errors import FairqError, SettingsError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_KINDS: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(text), kind)
    for text, kind in {
        "0.0.0.0/8": "unspecified",
        "10.0.0.0/8": "private",
        "100.64.0.0/10": "shared",
        "127.0.0.0/8": "loopback",
        "168.63.129.16/32": "platform",  # Azure's: public by number, metadata by use
        "169.254.0.0/16": "link_local",
        "172.16.0.0/12": "private",
        "192.0.0.0/24": "protocol",
        "192.0.2.0/24": "documentation",
        "192.88.99.0/24": "relay",
        "192.168.0.0/16": "private",
        "198.18.0.0/15": "benchmark",
        "198.51.100.0/24": "documentation",
        "203.0.113.0/24": "documentation",
        "224.0.0.0/4": "multicast",
        "240.0.0.0/4": "reserved",
        "::/128": "unspecified",
        "::1/128": "loopback",
        "::/96": "embedded",
        "::ffff:0:0/96": "embedded",  # IPv4-mapped
        "64:ff9b::/96": "embedded",  # NAT64
        "64:ff9b:1::/48": "embedded",  # NAT64 of a network's own
        "2001::/32": "embedded",  # Teredo
        "2001::/23": "protocol",
        "2001:db8::/32": "documentation",
        "2002::/16": "embedded",  # 6to4
        "3fff::/20": "documentation",
        "fc00::/7": "private",
        "fe80::/10": "link_local",
        "fec0::/10": "private",
        "ff00::/8": "multicast",
    }.items()
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
NEVER = frozenset({"unspecified", "multicast", "reserved"})  # no operator's word makes them a host


class AddressRefused(FairqError):
    """An address that webhooks may not go to; `kind` says what it is."""

    code = "address_refused"

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message, field="url")
        self.kind = kind


def kind_of(address: Address) -> str | None:
    """Say what an address is set aside for; None: it is public."""
    for network, kind in _KINDS:
        if address in network:
            return kind
    return None if isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST else "reserved"


def embedded_in(address: Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address carries to a translator or tunnel, if its prefix says so."""
    if isinstance(address, IPv4Address) or kind_of(address) != "embedded":
        return None
    if address.teredo:
        return address.teredo[1]
    return address.sixtofour or IPv4Address(int(address) & 0xFFFFFFFF)


@frozen
class AddressRules:
    """Public addresses, and the networks that an operator allows beside them."""

    allowed: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, networks: Iterable[str]) -> AddressRules:
        """Read networks, such as 10.1.0.0/16, or single addresses. Raises: SettingsError."""
        found = []
        for text in networks:
            try:
                found.append(ip_network(text))
            except ValueError as error:
                raise SettingsError(f"allow_private: invalid network: {error}", field="allow_private") from None
        return cls(tuple(found))

    def refusal(self, address: Address) -> str | None:
        """Say as what an address is refused; None: it may be connected to."""
        kind = kind_of(address)
        if kind is None:
            return None
        if kind in NEVER or not any(address in network for network in self.allowed):
            return kind
        inner = embedded_in(address)
        return None if inner is None else self.refusal(inner)

    def check(self, text: str, host: str) -> str:
        """Return the address of a host if it may be connected to. Raises: AddressRefused."""
        if kind := self.refusal(ip_address(text)):
            raise AddressRefused(f"{host} has a refused address: {text} is {kind}", kind)
        return text
