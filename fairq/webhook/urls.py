"""The URL that tasks are posted to, in which `{tenant}` stands for the tenant's name.

URLs are parsed by a strict grammar of our own, and only the parsed parts are used to connect. The text is never parsed
a second time, so no other parser can read it differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote

from attrs import evolve, frozen

from fairq.errors import FairqError, SettingsError
from fairq.webhook.addresses import AddressRefused, AddressRules

TENANT = "{tenant}"
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._{}-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>(?:[/?](?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2}|\{tenant\})*)?)\Z"
)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_SHARED_BY_NONE = re.compile(r"[a-z0-9_-]+\Z")  # hosts know no capitals, and a name's owner makes names below it
_NUMBER = re.compile(r"([0-9]+|0x[0-9a-f]*)\Z")  # a last label that makes resolvers read an IPv4 address
_PORTS = {"http": 80, "https": 443}


class HostRefused(FairqError):
    """A tenant's host or path has an invalid name, or is not allowed."""

    code = "host_refused"


@frozen
class Url:
    """The URL of one task."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The host as the `Host` header names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def check_host(text: str) -> str:
    """Return the name or address of a host in its canonical form. Raises: ValueError."""
    host = text.lower().removesuffix(".")
    if host.startswith("["):
        return str(IPv6Address(host[1:-1]))
    labels = host.split(".")
    if _NUMBER.match(labels[-1]):
        return str(IPv4Address(host))
    if len(host) > 253 or not all(map(_LABEL.match, labels)):
        raise ValueError(f"invalid host name {text!r:.80}")
    return host


def is_address(host: str) -> bool:
    """True if a host in the form of `check_host` is an address."""
    return ":" in host or _NUMBER.match(host.rpartition(".")[2]) is not None


@frozen
class HostPattern:
    """One host, or all hosts below it."""

    host: str
    is_below: bool

    @classmethod
    def parse(cls, text: str) -> HostPattern:
        """Read a host, or `*.` and a host. Raises: SettingsError."""
        is_below = text.startswith("*.")
        try:
            host = check_host(text.removeprefix("*."))
            if is_below and is_address(host):
                raise ValueError("*. needs a name, not an address")
        except ValueError as error:
            message = f"--allow-host must be a host's name, or *.name for all below it: {error}"
            raise SettingsError(message, field="allow_host") from None
        return cls(host, is_below)

    def matches(self, host: str) -> bool:
        """True if the pattern matches a host."""
        return host.endswith(f".{self.host}") if self.is_below else host == self.host


def _complaint(text: str) -> str:
    scheme = text.partition(":")[0].lower()
    if scheme in ("ws", "wss"):
        return (
            "url must be the https:// URL that tasks are posted to; set the fairq server's URL by `server` or FAIRQ_URL"
        )
    if "@" in text.split("://")[-1].split("/")[0]:
        return "url must not contain a user or password; requests are signed"
    return f"invalid url {text!r:.200}: expected https://host/path, with {TENANT} for the tenant's name"


@frozen
class UrlTemplate:
    """The URL of a worker's tasks; `host` and `target` may hold `{tenant}`. Without `allowed`, any host it makes."""

    scheme: str
    host: str
    port: int
    target: str
    allowed: tuple[HostPattern, ...] = ()

    @classmethod
    def parse(cls, text: str, allow_hosts: Iterable[str] = (), *, plaintext: bool = False) -> UrlTemplate:
        """Read a URL. Raises: SettingsError, naming the setting."""
        found = _URL.match(text)
        if not found:
            raise SettingsError(_complaint(text), field="url")
        scheme, host, target = found["scheme"], found["host"], found["target"]
        port = int(found["port"] or _PORTS[scheme])
        allowed = tuple(map(HostPattern.parse, allow_hosts))
        template = cls(scheme, host, port, target if target.startswith("/") else f"/{target}", allowed)
        return template._checked(plaintext)

    def _checked(self, plaintext: bool) -> UrlTemplate:
        if not 1 <= self.port <= 65_535:
            raise SettingsError("url must have a port from 1 to 65535", field="url")
        if TENANT in self.host.rpartition(".")[2]:
            raise SettingsError(f"url must have a domain after {TENANT}", field="url")
        try:
            host = check_host(self.host.replace(TENANT, "t"))
        except ValueError as error:
            raise SettingsError(f"url: {error}", field="url") from None
        if self.scheme == "http" and not plaintext and host not in ("localhost", "127.0.0.1", "::1"):
            message = "url must use https:// except for this machine; --plaintext allows http://, without encryption"
            raise SettingsError(message, field="url")
        if TENANT in self.host:
            return self
        if self.allowed and not any(pattern.matches(host) for pattern in self.allowed):
            raise SettingsError(f"url: {host} is not in --allow-host", field="allow_host")
        return evolve(self, host=host)

    @property
    def is_per_tenant(self) -> bool:
        """True if tenants have URLs of their own."""
        return TENANT in self.host or TENANT in self.target

    def check_address(self, rules: AddressRules) -> None:
        """Refuse a URL with an address as host that the rules refuse. Raises: SettingsError."""
        if TENANT not in self.host and is_address(self.host):
            try:
                rules.check(self.host, "url")
            except AddressRefused as error:
                raise SettingsError(f"{error.message}; --allow-private can allow it", field="url") from None

    def for_tenant(self, tenant: str) -> Url:
        """Return the URL of a tenant's tasks. Raises: HostRefused."""
        name = quote(tenant, safe="")
        host = self.host
        if name in (".", "..") and TENANT in self.target:  # receivers would take it for a step in the path
            raise HostRefused(f"tenant {tenant} has no valid URL", field="tenant")
        if TENANT in host:
            try:
                if not _SHARED_BY_NONE.match(tenant):
                    raise ValueError("its name has capitals, or is more than one label")
                host = check_host(host.replace(TENANT, name))
            except ValueError as error:
                raise HostRefused(f"tenant {tenant} has no valid host: {error}", field="tenant") from None
            if self.allowed and not any(pattern.matches(host) for pattern in self.allowed):
                raise HostRefused(f"{host} is not in --allow-host", field="tenant")
        return Url(self.scheme, host, self.port, self.target.replace(TENANT, name))
