"""The management API of the service, as it is written: the section `management`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from forwarder.config.section import Section
from forwarder.config.values import Duration, Id, ManagementUrl, PersonalKey, ProxyUrl


class ManagementSettings(Section):
    """The service's management API, for `forwarder manage`. The daemon neither needs nor reads any of it."""

    url: ManagementUrl = ""
    """Base address of the management API, such as https://us.example.com; it isn't the one that events go to."""
    api_key: PersonalKey | None = Field(default=None, repr=False)
    """Personal API key, which says who calls and what that person's key may do; better in a file."""
    api_key_file: Path | None = None
    """File that holds the personal API key; lines that begin with # are comments."""
    organization: Id | None = None
    """Id of the organization that is meant where a command names none."""
    project: Id | None = None
    """Id of the project that is meant where a command names none."""
    timeout: Annotated[float, Duration("100ms", "1h")] = 30.0
    """How long one call may take, from connecting to the whole answer."""
    ca_file: Path | None = None
    """PEM file of the authorities to trust instead of the system's, by `forwarder manage`."""
    proxy: ProxyUrl | None = Field(default=None, repr=False)
    """HTTP proxy to reach the management API through, such as http://proxy.example.com:3128; may hold user and password."""
