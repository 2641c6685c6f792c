"""`--dns FILE`: TXT records from a file in place of the DNS, so that a domain can be verified that nobody owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox.management.resolving import StaticResolver

_HINT = "Write it in YAML or JSON: _posthog-challenge.example.com: the challenge (or a list of texts)."


class FileResolver:
    """Looks names up in a file, which is read for each look-up: what is written into it counts at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        """Raise `ConfigurationError` if the file can't be used as it is now."""
        _records(self._path)

    async def texts(self, name: str) -> Sequence[str]:
        """The texts of a name; none while the file can't be read. Nothing to cancel."""
        try:
            records = _records(self._path)
        except ConfigurationError:
            return []
        return await StaticResolver(records).texts(name)


def _records(path: Path) -> dict[str, Sequence[str]]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--dns: {path} can't be read: {error.strerror}", hint=_HINT) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise ConfigurationError(f"--dns: {path} is neither YAML nor JSON", hint=_HINT) from None
    return _checked(path, {} if content is None else content)


def _checked(path: Path, content: Any) -> dict[str, Sequence[str]]:
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise ConfigurationError(f"--dns: {path} doesn't say which names have which texts", hint=_HINT)
    records = {name: [texts] if isinstance(texts, str) else texts for name, texts in content.items()}
    for name, texts in records.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ConfigurationError(f"--dns: {path}: {name} has something else than texts", hint=_HINT)
    return records
