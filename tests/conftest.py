"""How hypothesis runs here: the same examples each time under CI, and no files of its own."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("project", deadline=None, database=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("project")
