"""How commands write what they found."""

from __future__ import annotations

from enum import StrEnum


class Output(StrEnum):
    """For a person, or for a program."""

    TABLE = "table"
    JSON = "json"
