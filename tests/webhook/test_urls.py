"""Where tasks may be posted."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairq.errors import SettingsError
from fairq.model.checks import TENANT_PATTERN
from fairq.webhook.addresses import AddressRules
from fairq.webhook.urls import HostPattern, HostRefused, Url, UrlTemplate
from tests.store.cases import case, raises_for

REFUSED = [
    "", "hooks.example/in", "ftp://hooks.example/in", "ws://hooks.example/in", "HTTPS:/hooks.example", "https://",
    "https://user@hooks.example/in", "https://hooks.example@evil.example/in",
    "https://hooks.example\\@evil.example/in", "https://hooks.example#@evil.example/",
    "https://hooks.example/in#part", "https://hooks.example/in in", "https://hooks.example/in\r\nX-Header: 1",
    "https://hooks.example/\x00", "https://hooks.example/é", "https://hööks.example/in", "https://hooks.example/%zz",
    "https://hooks..example/in", "https://.hooks.example/in", "https://-hooks.example/in",
    "https://hooks.example:/in", "https://hooks.example:0/in", "https://hooks.example:65536/in",
    "https://hooks.example:443x/in", "https://" + "h" * 64 + ".example/", f"https://{'h.' * 126}hh/",
    "https://2130706433/in", "https://0x7f000001/in", "https://0177.0.0.1/in", "https://1.2.3/in",
    "https://evil.0x7f/in", "https://[::1/in", "https://[fe80::1%25eth0]/in", "https://[]/in", "https://{tenant}/in",
    "https://hooks.example:{tenant}/in", "{tenant}://hooks.example/in", "https://[{tenant}]/in",
    "https://hooks.example/{queue}", "https://hooks.example/{tenant",
]  # fmt: skip

ACCEPTED = {
    "https://hooks.example": Url("https", "hooks.example", 443, "/"),
    "https://hooks.example?key=1": Url("https", "hooks.example", 443, "/?key=1"),
    "https://HOOKS.Example.:8443/In/?a=%2F&b=c;d": Url("https", "hooks.example", 8443, "/In/?a=%2F&b=c;d"),
    "https://hooks.example/{tenant}/in": Url("https", "hooks.example", 443, "/ada/in"),
    "https://hooks.example/in?t={tenant}&u={tenant}": Url("https", "hooks.example", 443, "/in?t=ada&u=ada"),
    "https://{tenant}.hooks.example/": Url("https", "ada.hooks.example", 443, "/"),
    "https://in-{tenant}.hooks.example/": Url("https", "in-ada.hooks.example", 443, "/"),
    "https://93.184.216.34/": Url("https", "93.184.216.34", 443, "/"),
    "https://[2606:4700::0:1111]:444/": Url("https", "2606:4700::1111", 444, "/"),
    "http://localhost:8000/": Url("http", "localhost", 8000, "/"),
    "http://127.0.0.1:8000/": Url("http", "127.0.0.1", 8000, "/"),
    "http://[::1]/": Url("http", "::1", 80, "/"),
    "https://my_hooks/": Url("https", "my_hooks", 443, "/"),
    "https://hooks.example:1/": Url("https", "hooks.example", 1, "/"),
    "https://hooks.example:65535/": Url("https", "hooks.example", 65_535, "/"),
    f"https://{'h.' * 126}h/": Url("https", "h." * 126 + "h", 443, "/"),
}


def test_a_url_that_could_be_read_in_two_ways_is_refused() -> None:
    for text in REFUSED:
        with case(text):
            with pytest.raises(SettingsError) as caught:
                UrlTemplate.parse(text)
            assert (caught.value.code, caught.value.field) == ("bad_setting", "url")
            assert "\n" not in caught.value.message


def test_a_url_is_read_once_into_its_parts() -> None:
    for text, url in ACCEPTED.items():
        with case(text, url):
            assert UrlTemplate.parse(text).for_tenant("ada") == url


def test_plain_http_leaves_this_machine_only_if_it_was_asked_for() -> None:
    with pytest.raises(SettingsError, match="https"):
        UrlTemplate.parse("http://hooks.example/")
    assert UrlTemplate.parse("http://hooks.example/", plaintext=True).for_tenant("ada").port == 80


def test_a_likely_mistake_is_reported() -> None:
    for url, word in [
        ("ws://127.0.0.1:7700", "FAIRQ_URL"),
        ("https://a:b@c/", "password"),
        ("ftp://a.example", "invalid"),
    ]:
        with case(url, word), pytest.raises(SettingsError, match=word):
            UrlTemplate.parse(url)


@given(st.from_regex(TENANT_PATTERN, fullmatch=True).filter(lambda name: name not in (".", "..")))
def test_no_tenant_gets_beyond_the_place_of_its_name(tenant: str) -> None:
    url = UrlTemplate.parse("https://hooks.example/a/{tenant}/b").for_tenant(tenant)
    assert (url.host, url.port, url.target) == ("hooks.example", 443, f"/a/{quote(tenant, safe='')}/b")
    template = UrlTemplate.parse("https://{tenant}.hooks.example/")
    try:
        host = template.for_tenant(tenant).host
    except HostRefused:
        assert not re.fullmatch("[a-z0-9]([a-z0-9-]*[a-z0-9])?", tenant) or len(tenant) > 63
    else:
        assert host == f"{tenant}.hooks.example"


def test_a_tenant_that_is_a_step_in_a_path_has_no_url() -> None:
    for tenant in [".", ".."]:
        with case(tenant):
            with pytest.raises(HostRefused):
                UrlTemplate.parse("https://hooks.example/a/{tenant}/b").for_tenant(tenant)
            assert UrlTemplate.parse("https://hooks.example/a").for_tenant(tenant).target == "/a"


def test_a_tenant_that_is_no_host_has_none() -> None:
    for tenant in ["a-", "a" * 62, "Ada", "a.b", "a@b", "a+b"]:
        with case(tenant):
            with pytest.raises(HostRefused) as caught:
                UrlTemplate.parse("https://in-{tenant}.hooks.example/").for_tenant(tenant)
            assert (caught.value.code, caught.value.field) == ("host_refused", "tenant")


def test_a_pattern_means_one_host_or_all_below_one() -> None:
    for pattern, host, matches in [
        ("hooks.example", "hooks.example", True),
        ("Hooks.Example.", "hooks.example", True),
        ("hooks.example", "evil-hooks.example", False),
        ("hooks.example", "a.hooks.example", False),
        ("*.hooks.example", "a.hooks.example", True),
        ("*.hooks.example", "a.b.hooks.example", True),
        ("*.hooks.example", "hooks.example", False),
        ("*.hooks.example", "evilhooks.example", False),
        ("93.184.216.34", "93.184.216.34", True),
        ("[2606:4700:0::1111]", "2606:4700::1111", True),
    ]:
        with case(pattern, host, matches):
            assert HostPattern.parse(pattern).matches(host) is matches


def test_a_pattern_that_is_none_is_refused() -> None:
    for pattern in ["", "*", "*.", "a.*", "*a.example", "a b", "*.1.2.3.4", "*.*.example", "1.2.3"]:
        with case(pattern), raises_for("allow_host", SettingsError):
            HostPattern.parse(pattern)


def test_a_fixed_host_that_is_not_allowed_is_found_at_once() -> None:
    with raises_for("allow_host", SettingsError):
        UrlTemplate.parse("https://hooks.example/", ["*.hooks.example"])
    assert UrlTemplate.parse("https://HOOKS.example/", ["x.example", "hooks.example"]).for_tenant("ada")


def test_an_address_that_is_refused_is_found_at_once() -> None:
    template = UrlTemplate.parse("http://127.0.0.1:8000/")
    with raises_for("url", SettingsError, match="--allow-private"):
        template.check_address(AddressRules())
    template.check_address(AddressRules.parse(["127.0.0.1"]))
    UrlTemplate.parse("https://hooks.example/").check_address(AddressRules())


def test_the_host_header_names_the_port_if_it_must() -> None:
    for url, authority in [
        ("https://hooks.example/", "hooks.example"),
        ("https://hooks.example:443/", "hooks.example"),
        ("https://hooks.example:80/", "hooks.example:80"),
        ("https://[2606::1]:8443/", "[2606::1]:8443"),
        ("https://[2606::1]/", "[2606::1]"),
    ]:
        with case(url, authority):
            assert UrlTemplate.parse(url).for_tenant("ada").authority == authority
