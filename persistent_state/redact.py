"""What other people's errors say, without the secrets of storage options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_LONGEST = 500
"""Characters of somebody else's own words in a message."""


def without_secrets(error: Exception, options: Any) -> str:
    """An error on one line, without any option's text and without the queries of urls, which may be signatures."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    for secret in sorted(_secrets(options), key=len, reverse=True):
        text = text.replace(secret, "***")
    return re.sub(r"(?<=[\w/])\?[^\s'\"<>()]*", "?***", text)[:_LONGEST].rstrip(". ")


def shown(url: str) -> str:
    """A url without a user's password, query and fragment; a path as it is."""
    if "://" not in url:
        return url
    return re.sub(r"//(?:[^/@:]*:.*@|[^/@]*@)", "//", re.split("[?#]", url)[0])


def _secrets(options: Any) -> Iterator[str]:
    """Every text in the options that is long enough to be a secret, and the parts of a connection string."""
    if isinstance(options, Mapping):
        options = list(options.values())
    if isinstance(options, (list, tuple, set)):
        for option in options:
            yield from _secrets(option)
    elif isinstance(options, str):
        yield from (text for text in (options, *re.split(r"[;&\s]", options)) if len(text) >= 4)
        yield from (value for part in re.split(r"[;&]", options) if len(value := part.partition("=")[2]) >= 8)
