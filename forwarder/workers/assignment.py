"""What a supervisor hands to a worker's process, in one private variable of its environment.

A worker reads the configuration itself, at its start and at each restart; what all workers must agree on is the supervisor's word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import msgspec

from forwarder.config.settings import Settings
from forwarder.daemon.roles import Role

VARIABLE: Final = "_FORWARDER_WORKER"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A worker's role, its end of the channel to the supervisor, and the settings that don't change as long as the supervisor lives."""

    role: Role
    channel: int
    """Descriptor of its end of a pair of sockets."""
    listen: str
    """The address to listen on, with its real port."""
    kind: Literal["memory", "disk"]
    path: str
    dead_letters: str | None

    @classmethod
    def of(cls, settings: Settings, role: Role, channel: int, listen: str) -> Assignment:
        """The assignment under the supervisor's settings."""
        letters = settings.dead_letters.path
        return cls(role, channel, listen, settings.buffer.kind, str(settings.buffer.path), str(letters) if letters else None)

    def applied(self, settings: Settings) -> Settings:
        """The settings that the worker has read, with the supervisor's word in them."""
        return replace(
            settings,
            workers=self.role.workers,
            sources=replace(settings.sources, http=replace(settings.sources.http, listen=self.listen)),
            buffer=replace(settings.buffer, kind=self.kind, path=Path(self.path)),
            dead_letters=replace(settings.dead_letters, path=Path(self.dead_letters) if self.dead_letters else None),
        )

    def variable(self) -> dict[str, str]:
        """It, for the environment of the worker's process."""
        return {VARIABLE: msgspec.json.encode(self).decode()}


def assignment(environment: Mapping[str, str]) -> Assignment | None:
    """What this process was handed; None if it is no worker."""
    written = environment.get(VARIABLE)
    return msgspec.json.decode(written, type=Assignment) if written else None
