"""What every group of settings is made of."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

MB: Final = 1_000_000
MIB: Final = 1_048_576
GIB: Final = 1024 * MIB


class Section(BaseModel):
    """A group of settings. Keys that it doesn't know are errors; nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
