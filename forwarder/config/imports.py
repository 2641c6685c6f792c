"""Historical imports, as they are written: the section `import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from forwarder.config.mapping import MappingSettings
from forwarder.config.section import Section
from forwarder.config.values import Count, Pairs, ProjectKey, Text

Rate: TypeAlias = Annotated[int | Literal["unlimited"], Count(1, 1_000_000, words=("unlimited",))]


class ImportSettings(Section):
    """What holds for every `forwarder import` that doesn't say otherwise. The daemon neither needs nor reads any of it."""

    api_key: ProjectKey | None = Field(default=None, repr=False)
    """Key of the project that imported events go to."""
    api_key_file: Path | None = None
    """File that holds the project key, instead of `api_key`."""
    state: Path | None = None
    """Directory with a folder for each import. Not set: `imports` in `buffer.path` with a disk buffer, else in this user's state."""
    rate: Rate = 2000
    """Events a second, at most, of all imports to one project from this machine; or unlimited."""
    quiet_hours: Text | None = None
    """Hours in which nothing is sent, such as 08:00-20:00 Europe/Berlin; without a zone it is this machine's."""
    person_properties: Literal["set_once", "none", "set"] = "set_once"
    """What becomes of `$set`: only what a person doesn't have yet, nothing, or old values over today's, which has to be accepted."""
    store: Annotated[dict[str, str], Pairs()] = Field(default={}, repr=False)
    """Options of object stores, such as endpoint and region, beside the environment variables that their own tools know."""
    mapping: MappingSettings = MappingSettings()
