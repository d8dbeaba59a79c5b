"""The result of one check, and its words."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Check:
    """A check: its name, how it went, and what was found. If it is not `OK`, the text says what to do."""

    check: str
    status: str
    text: str

    def line(self) -> str:
        """Return it as a line for people."""
        return f"{self.status:<4}  {self.check:<19}  {self.text}"
