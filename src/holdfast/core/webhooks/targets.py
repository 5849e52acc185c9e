"""The allowed targets of webhooks: the form of a URL, and the addresses that are refused. Pure; the
sender resolves names and connects.

HOOK-4  Every address to which a name resolves is checked at every try, and the connection goes to a
        checked address itself, without a second look-up. One bad address refuses the target.

Without `webhook_allow_private` a target is https on a public address. With it, http, loopback and
private networks are allowed too. Link-local addresses and the clouds' metadata services are refused
either way: they hand out the machine's own credentials, and no receiver lives there.
"""

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import ValidationError

MAX_URL_CHARS = 2048
MAX_HOST_CHARS = 253
_IP = ipaddress.IPv4Address | ipaddress.IPv6Address
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_VISIBLE = re.compile(r"[\x21-\x7e]+")
# AWS, Alibaba, Azure, Oracle
_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Special ranges, some of which some of Python's tables call global: protocols (RFC 6890), local NAT64
# (RFC 8215; how long its prefixes are, and so which address one carries, is its network's to say),
# 6to4 relays (RFC 7526), AMT relays (RFC 7450), AS112 (RFC 7534, 7535), documentation and SRv6
# (RFC 9637, 9602), ORCHID (RFC 4843, 7343), benchmarks (RFC 2544, 5180), discard (RFC 6666).
_SPECIAL_4 = (
    "192.0.0.0/24", "192.88.99.0/24", "192.52.193.0/24", "192.31.196.0/24", "192.175.48.0/24", "198.18.0.0/15",
)  # fmt: skip
_SPECIAL_6 = (
    "64:ff9b:1::/48", "2001:1::/32", "2001:3::/32", "2001:4:112::/48", "2620:4f:8000::/48", "2001:2::/48",
    "2001:10::/28", "2001:20::/28", "2001:db8::/32", "3fff::/20", "5f00::/16", "100::/64",
)  # fmt: skip
_SPECIAL = tuple(map(ipaddress.ip_network, (*_SPECIAL_4, *_SPECIAL_6)))
_COMPATIBLE = ipaddress.ip_network("::/96")


class WebhookTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A URL taken apart. host: a lower-case ASCII name or a bare address; path: with its query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def host_header(self) -> str:
        """Return the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.scheme == "https" else 80
        return host if self.port == usual else f"{host}:{self.port}"


def parse_target(url: str, *, allow_private: bool) -> WebhookTarget:
    """Parse a webhook's URL. Raises ValidationError for one that cannot be used."""
    if len(url) > MAX_URL_CHARS or not _VISIBLE.fullmatch(url) or "\\" in url:
        most = f"at most {MAX_URL_CHARS} of them; encode others with %"
        raise _refuse(f"a URL of visible ASCII characters, {most}")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError as error:
        raise _refuse(f"a URL ({error})") from None
    if parts.scheme not in ("https", "http"):
        raise _refuse("an https:// URL")
    if parts.scheme == "http" and not allow_private:
        plain = "plain http is for trusted networks and needs the setting webhook_allow_private"
        raise _refuse(f"an https:// URL; {plain}")
    if "@" in parts.netloc:
        raise _refuse("a URL without user name and password; the signature names the caller")
    if port == 0:
        raise _refuse("a URL whose port is between 1 and 65535")
    if "%" in host:
        raise _refuse("a URL whose host has no zone and no escapes")
    target = WebhookTarget(
        scheme=parts.scheme,
        host=_read_host(host),
        port=port or (443 if parts.scheme == "https" else 80),
        path=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
    )
    literal = as_address(target.host)
    reason = None if literal is None else judge_address(literal, allow_private=allow_private)
    if reason is not None:
        raise _refuse(f"a target that may be called: {reason}")
    return target


def _read_host(host: str) -> str:
    """Check a host and return it. Raises ValidationError."""
    if as_address(host) is not None:
        return str(as_address(host))
    labels = host.removesuffix(".").split(".")
    if (
        not host
        or len(host) > MAX_HOST_CHARS
        or not all(_LABEL.fullmatch(label) for label in labels)
    ):
        raise _refuse("a URL with a host name in it, or an address")
    # Resolvers read 2130706433, 0x7f.1 and 127.1 as addresses; an address has all four numbers.
    if labels[-1].isdigit() or re.fullmatch(r"0x[0-9a-f]*", labels[-1]):
        raise _refuse("a URL with a host name, or an address as four decimal numbers, in it")
    return ".".join(labels)


def _refuse(what: str) -> ValidationError:
    return ValidationError(f"a webhook's url is {what}", field="url")


def as_address(text: str) -> _IP | None:
    """Read an IP address, without its zone (`fe80::1%eth0`); None where it is none."""
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def judge_addresses(addresses: Sequence[str], *, allow_private: bool) -> str | None:
    """Return why a target with these addresses is refused, or None (HOOK-4)."""
    if not addresses:
        return "it has no address"
    for text in addresses:
        address = as_address(text)
        reason = (
            f"{text[:64]!r} is no address"
            if address is None
            else judge_address(address, allow_private=allow_private)
        )
        if reason is not None:
            return reason
    return None


def judge_address(address: _IP, *, allow_private: bool) -> str | None:
    """Return why this address, or one it carries within it, is refused; None where it is not."""
    for one in (address, *_carried(address)):
        reason = _judge(one, allow_private)
        if reason is not None:
            return reason if one == address else f"{address} carries {reason}"
    return None


def _judge(address: _IP, allow_private: bool) -> str | None:
    if address in _METADATA:
        return f"{address} is a cloud's metadata service"
    if address.is_link_local:
        return f"{address} is link-local (where clouds keep their metadata)"
    if address.is_multicast:
        return f"{address} is multicast"
    if address.is_unspecified:
        return f"{address} is the unspecified address"
    if address.is_loopback or _is_private(address):
        what = "loopback" if address.is_loopback else "on a private network"
        needs = f"{address} is {what}, which needs the setting webhook_allow_private"
        return None if allow_private else needs
    if any(address in network for network in _SPECIAL if network.version == address.version):
        return f"{address} is reserved"
    if _carried(address):
        return None  # the IPv4 address inside it decides
    return None if address.is_global else f"{address} is reserved"


_PRIVATE_4 = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
_PRIVATE = tuple(map(ipaddress.ip_network, (*_PRIVATE_4, "fc00::/7", "fec0::/10")))


def _is_private(address: _IP) -> bool:
    return any(address in network for network in _PRIVATE if network.version == address.version)


def _carried(address: _IP) -> tuple[ipaddress.IPv4Address, ...]:
    """Return the IPv4 addresses within an IPv6 one: some networks reach mapped, compatible, NAT64,
    6to4 and Teredo ones."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    found = [a for a in (address.ipv4_mapped, address.sixtofour) if a is not None]
    if address.teredo is not None:
        found += address.teredo
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return tuple(found)
