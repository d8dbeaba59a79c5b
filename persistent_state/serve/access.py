"""Decide who may look: by the name under which the server was asked for, by the method, and by the token."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from hashlib import sha256

LOCALHOST = "localhost"


def is_loopback(host: str) -> bool:
    """Return whether a host to listen on can be asked from this machine only."""
    if host == LOCALHOST:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Token:
    """A secret that a user must know.

    A cookie holds what is made of it, and not the token itself. Its name is one for each token: browsers give a cookie to every
    port of a host.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self.cookie_name = f"persistent-state-{self._digest('name')[:8]}"
        self.cookie = self._digest("cookie")

    def _digest(self, what: str) -> str:
        return hmac.new(self._token, f"persistent-state serve {what}".encode(), sha256).hexdigest()

    def matches(self, given: str) -> bool:
        """Return whether a text is the token, in constant time."""
        # The lengths of digests say nothing.
        return hmac.compare_digest(sha256(given.encode(errors="replace")).digest(), sha256(self._token).digest())

    def is_in(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers of a request have the token, or the cookie."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.matches(given.strip())
        # The command line imports this module, also where nothing is served.
        from starlette.requests import cookie_parser

        # Browsers send the cookies of all ports of a host: those of other programs may be odd.
        cookie = cookie_parser(headers.get("cookie", "")).get(self.cookie_name, "")
        return hmac.compare_digest(cookie.encode(errors="replace"), self.cookie.encode())

    def set_cookie(self, is_secure: bool) -> str:
        """Return the header that gives a browser the cookie."""
        secure = "; Secure" if is_secure else ""
        return f"{self.cookie_name}={self.cookie}; Path=/; HttpOnly; SameSite=Strict{secure}"


def is_own_name(name: str, host: str) -> bool:
    """Return whether a server that listens on the loopback host was asked for under a name of this machine.

    A page of another site may let its own name lead to this machine. A browser sends the name.
    """
    name = re.sub(r":\d*$", "", name).strip("[]").lower()
    return name == host.lower() or is_loopback(name)
