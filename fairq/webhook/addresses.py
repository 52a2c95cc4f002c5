"""The rules for addresses that webhooks may be sent to.

The owner of a host's DNS chooses its addresses, and could name addresses that only this machine can reach: its own
services, its network, its cloud's metadata. So an address must be public: outside all networks in IANA's registries of
special-purpose addresses. They are listed here because `ipaddress` classifies some of them differently in different
Python versions. Only global unicast IPv6 is allowed, and not if an IPv4 address is embedded in it.

An operator may allow further networks. An address that embeds another is then allowed only if both are.
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
NEVER_ALLOWED = frozenset({"unspecified", "multicast", "reserved"})  # an operator cannot allow these


class AddressRefused(FairqError):
    """An address that webhooks may not be sent to; `kind` is its special purpose."""

    code = "address_refused"

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message, field="url")
        self.kind = kind


def kind_of(address: Address) -> str | None:
    """Return the special purpose of an address; None if it is public."""
    for network, kind in _KINDS:
        if address in network:
            return kind
    return None if isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST else "reserved"


def embedded_in(address: Address) -> IPv4Address | None:
    """Return the IPv4 address embedded in an IPv6 address for a translator or tunnel; None without such a prefix."""
    if isinstance(address, IPv4Address) or kind_of(address) != "embedded":
        return None
    if address.teredo:
        return address.teredo[1]
    return address.sixtofour or IPv4Address(int(address) & 0xFFFFFFFF)


@frozen
class AddressRules:
    """Allows public addresses, and the networks that an operator allows in addition."""

    allowed: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, networks: Iterable[str]) -> AddressRules:
        """Read networks, such as 10.1.0.0/16, or single addresses. Raises: SettingsError."""
        found = []
        for text in networks:
            try:
                found.append(ip_network(text))
            except ValueError as error:
                raise SettingsError(f"--allow-private: invalid network: {error}", field="allow_private") from None
        return cls(tuple(found))

    def refusal(self, address: Address) -> str | None:
        """Return the purpose for which an address is refused; None if it is allowed."""
        kind = kind_of(address)
        if kind is None:
            return None
        if kind in NEVER_ALLOWED or not any(address in network for network in self.allowed):
            return kind
        inner = embedded_in(address)
        return None if inner is None else self.refusal(inner)

    def check(self, text: str, host: str) -> str:
        """Return the address of a host if it is allowed. Raises: AddressRefused."""
        if kind := self.refusal(ip_address(text)):
            raise AddressRefused(f"{host} has a refused address: {text} is {kind}", kind)
        return text
