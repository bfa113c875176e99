"""Where a role says that others reach it over HTTP: a scheme, a host and a port, written in one way only. Imports nothing heavy."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

LENGTH_MAX: Final = 256

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
