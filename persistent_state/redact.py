"""Hide the secrets of storage options and urls in the messages of other people's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

_LONGEST = 500
"""The most characters of another library's message that a message of ours repeats."""

_SECRET = re.compile(r"(?i)pass|pwd|secret|key|token|cred|connection|jaas|sas(?!l)|signature|auth|private")
"""Words in the name of an option that holds a secret."""

_PLAIN = re.compile(
    r"(?i)protocol|mechanism|servers|region|endpoint|url|host|port|location|timeout|interval|level|type|version|style|ssl|http|anon"
)
"""Words in the name of an option that is known to hold no secret. Under any other name, a text may be one, and is hidden."""

_CONTAINERS = ("abfs", "abfss", "az", "wasb", "wasbs")
"""The protocols of urls that name a container before the @."""

_PLAIN_VALUE = re.compile(r"(?i)true|false|none|null|auto|default|\d{1,6}")


def without_secrets(error: Exception, options: Any) -> str:
    """Return an error as one line of text without secrets, as `text_without_secrets` hides them.

    Args:
        error: The error of another library.
        options: The options that the library was given: a mapping from names to values, which may hold mappings and lists.
    """
    return text_without_secrets(f"{type(error).__name__}: {error}", options)


def text_without_secrets(text: str, options: Any) -> str:
    """Return a message of another library as one line without secrets.

    Hidden are the values of options, the user-info of urls, and the queries of urls, which may be signatures. A value is shown
    if the option's name has a word of `_PLAIN` and none of `_SECRET`, or if it is a flag or a small number under a name without
    a word of `_SECRET`.

    Args:
        text: The message.
        options: The options that the library was given: a mapping from names to values, which may hold mappings and lists.
    """
    text = _one_line(text)
    for secret in sorted(set(_secrets("", options)), key=len, reverse=True):
        # Within words, a short text may stand by chance.
        text = text.replace(secret, "***") if len(secret) >= 4 else re.sub(rf"\b{re.escape(secret)}\b", "***", text)
    text = re.sub(r"(?<=//)[^\s/@]*(?::\S*)?@", "***@", text)
    return re.sub(r"(?<=[\w/*])\?[^\s'\"<>()]*", "?***", text)[:_LONGEST].rstrip(". ")


def shown(url: str) -> str:
    """Return a url without user-info, query and fragment; a path as it is.

    What stands before the @ of a url of Azure is a container, and no secret.
    """
    protocol, is_url, rest = url.partition("://")
    if not is_url:
        return url
    if protocol not in _CONTAINERS or ":" in rest.rpartition("@")[0]:
        # First, because a password may hold the marks that begin a query or a fragment.
        url = re.sub(r"//(?:[^/@:]*:.*@|[^/@]*@)", "//", url)
    return re.split("[?#]", url)[0]


def _secrets(name: str, value: Any) -> Iterator[str]:
    """Yield the texts to hide of an option's value, also as they stand in a url."""
    if isinstance(value, Mapping):
        for inner, each in value.items():
            # A mapping under a secret name holds secrets under any name.
            yield from _secrets(f"{name}.{inner}" if _SECRET.search(name) else str(inner), each)
    elif isinstance(value, (list, tuple, set)):
        for each in value:
            yield from _secrets(name, each)
    elif isinstance(value, bytes):
        yield from _secrets(name, value.decode(errors="replace"))
    elif isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        is_secret = _SECRET.search(name) is not None
        if is_secret or not (_PLAIN.search(name) or _PLAIN_VALUE.fullmatch(str(value))):
            for text in _parts(str(value), 1 if is_secret else 4):
                # A text of the environment need not be UTF-8.
                quoted = text.encode(errors="surrogatepass")
                yield from {text, quote(quoted), quote(quoted, safe=""), quote_plus(quoted)}


def _parts(value: str, shortest: int) -> Iterator[str]:
    """Yield a secret value, and the parts of a connection string or of several lines that are long enough to be secrets."""
    whole = _one_line(value)
    if len(whole) >= shortest:
        yield whole
    for part in re.split(r"[;&\s]", value):
        yield from (text for text in (part, part.partition("=")[2].strip("\"'")) if len(text) >= 4 and text != "https")


def _one_line(text: str) -> str:
    return " ".join(text.split())
