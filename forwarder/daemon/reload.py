"""What differs between two configurations."""

from __future__ import annotations

from forwarder.config.keys import dotted, is_number, leaves
from forwarder.config.settings import Settings


def changed_keys(old: Settings, new: Settings) -> list[str]:
    """The dotted names of the keys whose values differ; a list of sections is one key."""
    before = dict(leaves(old.as_document()))
    after = [(path, value) for path, value in leaves(new.as_document()) if not any(map(is_number, path))]
    return [dotted(path) for path, value in after if before[path] != value]
