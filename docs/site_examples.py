"""An extension of griffe: fence the examples of docstrings, which Markdown takes for quotations."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"(?m)^( *)>>> .*(?:\n\1\S.*)*")
"""A line with a prompt, and the lines after it up to an empty one."""


class Examples(Extension):
    """Fence the examples in each docstring before it is parsed."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Fence the examples in the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
