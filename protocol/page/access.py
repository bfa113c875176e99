"""Who may see a page, and what a browser may do with it.

The Host header is looked at because a name that a stranger's web page chose may lead a browser to this machine (DNS rebinding): such a
request names the stranger's host. An address in place of a name was chosen by whoever typed it.

A stranger's web page may also ask a page of this machine for its parts under its right name. It cannot read the answer, but asking costs something:
browsers say where a request comes from (Sec-Fetch-Site), and only a link to the page itself leads there from elsewhere, no frame. What is public may be
asked for from anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.deadline import plain_address
from protocol.page.settings import PageFor

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin", "cross-origin-opener-policy": "same-origin", "x-frame-options": "DENY",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}  # fmt: skip
_FORWARDED = (b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip")  # what comes through a proxy comes from elsewhere


class PageAccess:
    """Answers 403 for whom the settings do not let in, 405 for anything but reading."""

    def __init__(self, app: ASGIApp, shown_to: PageFor, names: tuple[str, ...] = (), *, refusal: str) -> None:
        """`names`: hosts other than this machine's own under which the page may be asked for, where it is public; `refusal`: what
        they are told whom it is not shown to."""
        self._app = app
        self._shown_to = shown_to
        self._told = refusal
        self._names = frozenset(name.lower().removeprefix("[").removesuffix("]") for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(send, *refusal)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    *((k.encode(), v.encode()) for k, v in HEADERS.items()),
                ]
            await send(message)

        await self._app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        fields = dict(scope["headers"])
        host = _host(fields.get(b"host", b"").decode("latin-1"))
        if self._shown_to == "public":
            is_allowed = _is_loopback(host) or _is_address(host) or host in self._names
        else:
            is_local = bool(scope["client"]) and _is_loopback(scope["client"][0])
            is_allowed = is_local and _is_loopback(host) and not any(name in fields for name in _FORWARDED)
            is_allowed = is_allowed and not _is_of_another_page(scope["path"], fields)
        if not is_allowed:
            return 403, self._told
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "this page is for reading"
        return None


def _host(field: str) -> str:
    """The host of a Host header, in lower case; empty where there is none."""
    if field.startswith("["):
        address, end, rest = field[1:].partition("]")
        return address.lower() if end and rest[:1] in ("", ":") else ""
    return field.partition(":")[0].lower()


def _is_of_another_page(path: str, fields: Mapping[bytes, bytes]) -> bool:
    if fields.get(b"sec-fetch-site") not in (b"cross-site", b"same-site"):
        return False
    is_link = fields.get(b"sec-fetch-mode") == b"navigate" and fields.get(b"sec-fetch-dest", b"document") == b"document"
    return "/api/" in path or not is_link


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or plain_address(host).is_loopback
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(reason))]
    headers += [(k.encode(), v.encode()) for k, v in HEADERS.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})
