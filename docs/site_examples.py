"""An extension of griffe: show the section `Example:` of docstrings as code. By itself griffe knows only `Examples:`."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Rename the section in each docstring before it is parsed."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Rename the section in the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"(?m)^( *)Example:$", r"\1Examples:", obj.docstring.value)
