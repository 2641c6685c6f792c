"""What can be wrong with a configuration, and the error that tells all of it at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forwarder.core.errors import ConfigurationError
from forwarder.core.secrets import mask_secrets

_NEXT: Final = "When mended: forwarder config check"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend: where it stands (file and line, or environment variable), the dotted key, what is wrong and what to do."""

    where: str
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """One line, two with a hint; secrets masked."""
        first = ": ".join([part for part in (self.where, self.key, self.message) if part])
        return mask_secrets(f"{first}\n    {self.hint}" if self.hint else first)


def what_and_hint(error: Exception | str) -> tuple[str, str]:
    """An error's text, written as "what is wrong: how to mend it", in its two parts."""
    text = str(error)
    return (text[:at], text[at + 2 :]) if (at := text.rfind(": ")) >= 0 else (text, "")


class InvalidConfiguration(ConfigurationError):
    """The configuration can't be used. Its text lists every problem that was found; exit code 2."""

    code = "invalid_configuration"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        things = "1 thing" if len(self.problems) == 1 else f"{len(self.problems)} things"
        super().__init__("\n".join([f"the configuration has {things} to mend", *map(str, self.problems)]), hint=_NEXT)
