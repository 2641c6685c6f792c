"""The list of all import formats. A new one is a file in `formats` and a line here, or a mapping in
`config/mappings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from forwarder.sources.imports.format import ImportFormat
from forwarder.sources.imports.formats import (
    amplitude,
    csv,
    mapped,
    mixpanel,
    named,
    native,
    posthog,
    segment,
)

FORMATS: Final[tuple[ImportFormat[Any], ...]] = (
    native.DESCRIPTION,
    posthog.DESCRIPTION,
    amplitude.DESCRIPTION,
    mixpanel.DESCRIPTION,
    mixpanel.PROFILES_DESCRIPTION,
    segment.DESCRIPTION,
    *named.NAMED,
    csv.DESCRIPTION,
    mapped.DESCRIPTION,
)
"""In the order in which they are listed."""

BY_NAME: Final[Mapping[str, ImportFormat[Any]]] = {form.name: form for form in FORMATS}
