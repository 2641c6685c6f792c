"""Where imported events go and with which key: from the command line, the environment and the configuration.

Invariant: the key is part of no message.
"""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from forwarder.cli.import_options import Shared
from forwarder.cli.sections import stronger
from forwarder.config.addresses import check_upstream
from forwarder.config.api_keys import check_project_key, read_key_file
from forwarder.config.load import Loaded
from forwarder.config.settings import Settings
from forwarder.core.errors import ConfigurationError
from forwarder.storage.directory import state_directories

SECTIONS: Final = ("upstream", "buffer", "batch", "delivery", "dead_letters", "log", "import", "workers")
"""What an import reads of the configuration."""
IMPORTS: Final = "imports"
_KEY_WAYS: Final = "Use --api-key KEY, `import.api_key` or `import.api_key_file` of the configuration, or FORWARDER_IMPORT__API_KEY(_FILE)."


def settled(loaded: Loaded, typed: Shared) -> Settings:
    """The settings, under the address that was typed. Raises `ConfigurationError` if there is none to send to."""
    settings = loaded.settings
    if typed.upstream is not None:
        settings = replace(settings, upstream=replace(settings.upstream, url=_address("--upstream", typed.upstream)))
    if not (settings.upstream.url or typed.via or typed.dry_run):
        hint = "For example --upstream https://us.i.example.com; `upstream.url` of the configuration gives it once for all."
        raise ConfigurationError("--upstream URL is missing: the address of the service that events go to", hint=hint)
    return settings


def via(typed: Shared) -> str:
    """The address of the daemon to send through; empty for none. Raises `ConfigurationError`."""
    return _address("--via", typed.via) if typed.via else ""


def state_root(settings: Settings) -> Path:
    """The directory that each import has a folder in. Raises `ConfigurationError` if there is none for this user."""
    if settings.import_.state is not None:
        return settings.import_.state
    if settings.buffer.kind == "disk":
        return settings.buffer.path / IMPORTS
    for found in state_directories(os.environ, is_root=os.geteuid() == 0):
        return found / IMPORTS
    raise ConfigurationError("there is no directory for the import's state: this user has no HOME", hint="Name one with --state DIR.")


def project_key(loaded: Loaded, typed: Shared) -> str:
    """The key: as typed, else of the configuration, else asked for; none for a look at the source that has no address to ask.

    Raises `ConfigurationError`.
    """
    if typed.api_key is not None:
        return _checked("--api-key", typed.api_key)
    settings = loaded.settings.import_
    kept, file = settings.api_key, settings.api_key_file
    if kept and file:
        both = stronger(loaded, "import.api_key", "import.api_key_file")
        kept, file = (kept, None) if both == "import.api_key" else (None, file)
    if kept:
        return kept
    if file:
        return _of_file(file)
    return "" if typed.dry_run else _asked()


def _address(option: str, text: str) -> str:
    try:
        return check_upstream(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def _checked(named: str, text: str) -> str:
    try:
        return check_project_key(text.strip())
    except ValueError as error:
        raise ConfigurationError(f"{named}: {error}") from None


def _of_file(file: Path) -> str:
    try:
        found = read_key_file(file)
    except ValueError as error:
        raise ConfigurationError(f"import.api_key_file: {error}") from None
    if len(found) > 1:
        raise ConfigurationError(f"import.api_key_file: {file} holds {len(found)} keys", hint="Leave the one that is meant.")
    return found[0]


def _asked() -> str:
    """The key that a person types, unseen. Where nobody can be asked, an error says how else to give it."""
    if not sys.stdin.isatty():
        raise ConfigurationError("there is no project key: whose events are they to be?", hint=_KEY_WAYS)
    try:
        return _checked("the key", getpass.getpass("Project key: ", sys.stderr))
    except EOFError:
        raise ConfigurationError("no project key was given", hint=_KEY_WAYS) from None
