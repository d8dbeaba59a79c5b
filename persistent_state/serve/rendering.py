"""Render the templates of the page. All that they are given is escaped, unless it is `Markup`."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from persistent_state.formatting import show_clock
from persistent_state.serve.style import SCRIPT, STYLE

_TEMPLATES = Environment(
    loader=PackageLoader("persistent_state.serve"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_TEMPLATES.filters["clock"] = show_clock
# The policy lets a browser use these texts only as they are.
_TEMPLATES.globals.update(style=Markup(STYLE), script=Markup(SCRIPT))


def render(template: str, **values: Any) -> str:
    """Return a template of the folder `templates` with these values."""
    return _TEMPLATES.get_template(template).render(values)
