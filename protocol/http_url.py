"""Where a role says that others reach it over HTTP: a scheme, a host and a port, written in one way only; and other URLs without the secrets in
them. Imports nothing heavy."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

LENGTH_MAX: Final = 256
_SECRET_LENGTH = 8  # characters: shorter words stand in messages for other reasons
_SCHEMES = ("http://", "https://", "ws://", "wss://")

_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*", re.IGNORECASE | re.ASCII)


def wrong_url(url: str) -> str:
    """Why `url` is not http://host:port or https://host[:port], or nothing."""
    if len(url) > LENGTH_MAX or not url.isascii() or not url.isprintable() or " " in url:
        return f"the URL has odd characters or more than {LENGTH_MAX}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        return f"the URL is broken: {error}"
    if parts.scheme not in ("http", "https") or (parts.scheme == "http" and port is None) or port == 0:
        return "the URL is neither http://host:port nor https://host"
    bare = f"[{host}]" if ":" in host else host
    if url != f"{parts.scheme}://{bare}" + ("" if port is None else f":{port}"):
        return "the URL holds more than a scheme, a host in small letters and a port"
    return "" if _is_host(host) else "the URL names no host"


def host_and_port(url: str) -> str:
    """Of any URL; empty where it has none."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return ""


def is_of_this_machine(url: str) -> bool:
    """Whether any URL names the loopback."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_secrets(url: str) -> str:
    """A URL for logs, errors and people: user name, path and query hold the customers' keys of RPC providers."""
    scheme = url.partition("://")[0] if "://" in url else "http"
    host = host_and_port(url)
    hidden = url.removeprefix(f"{scheme}://").rstrip("/") != host
    return f"{scheme}://{host}{'/…' if hidden else ''}"


def secrets_of(url: str) -> list[str]:
    """What of a URL may be a secret: user name, password, long parts of the path, and the query's values."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    found = [parts.username or "", parts.password or "", *parts.path.split("/")]
    found += [value for _, value in parse_qsl(parts.query)]
    return [form for text in found if len(text) >= _SECRET_LENGTH for form in {text, unquote(text)}]


def shown_setting(value: Any) -> Any:
    """A setting's value for people: URLs in it without their secrets."""
    if isinstance(value, str):
        return without_secrets(value) if value.startswith(_SCHEMES) else value
    if isinstance(value, dict):
        return {name: shown_setting(one) for name, one in value.items()}
    return [shown_setting(one) for one in value] if isinstance(value, list | tuple) else value


def typed_url(text: str) -> str:
    """A URL that somebody typed, without slashes behind it. Raises ValueError, with the right form, for one that nobody can be told."""
    url = text.strip().rstrip("/")
    if problem := wrong_url(url):
        raise ValueError(f"{problem}; write it as http://relay.example:8460 or https://relay.example")
    return url


def typed_host(text: str) -> str:
    """A name or an address that somebody typed, an IPv6 one with or without brackets. Raises ValueError, with the right form."""
    host = text.strip()
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not _is_host(bare):
        raise ValueError("not a host; write it as host.example, 203.0.113.7 or 2001:db8::1, without scheme and port")
    return host


def _is_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host) is not None
    except ValueError:
        return len(host) <= 253 and _NAME.fullmatch(host) is not None
