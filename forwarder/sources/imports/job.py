"""The identity of an import: the same source by the same format and options is the same job, on any machine and in any year."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from forwarder.sources.imports.events import derived_uuid


def job_id(format_name: str, options: Mapping[str, Any], sources: Iterable[str]) -> str:
    """The UUIDv5 of a format, its options, and the identities of the files of the source (`File.identity`: of content, not of names).

    `options` are JSON values, and only those that change what is sent: neither the rate nor where state is kept. None stands for an option
    that isn't set, so that one that comes with a later version changes no job. Neither the order of options nor that of files matters.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    parts = ["job", format_name, chosen, sorted(sources)]
    return derived_uuid(json.dumps(parts, sort_keys=True, allow_nan=False, separators=(",", ":")))
