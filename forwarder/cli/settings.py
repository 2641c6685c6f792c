"""Settings for commands that a person runs: the configuration, and keys that may be typed.

The usual configuration file may be readable by the daemon alone; such a command then runs without
it.
Invariant: a key is part of no message.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from forwarder.config.layers import DEFAULT, InvalidConfiguration, Place
from forwarder.config.load import DEFAULT_FILE, Loaded, load_settings
from forwarder.core.configured_files import check_file
from forwarder.core.errors import ConfigurationError
from forwarder.telemetry.labels import LaneNames

_NOTHING: Final = Path(os.devnull)


def load_for_person(file: Path | None) -> Loaded:
    """The whole configuration, from `file` or from the default file, checked as the daemon checks
    it: which of it a command uses is said by what it reads. If this user may not read the default
    file, it is skipped with a warning.

    Files of project keys aren't read: those may be the daemon's alone. Raises
    `ConfigurationError`.
    """
    usual = DEFAULT_FILE
    if file is None and _is_closed(usual):
        sys.stderr.write(
            f"{usual} is not readable by this user and is skipped. Name another file with "
            "--config FILE.\n"
        )
        usual = _NOTHING
    try:
        return load_settings(
            file, os.environ, default_file=usual, require_upstream=False, read_keys=False
        )
    except InvalidConfiguration as error:
        # its hint is `config check`, which requires all that the daemon requires
        raise ConfigurationError(error.message) from None


def configured_names(file: Path | None) -> LaneNames:
    """The names of lanes in the configuration; none if it can't be used, which commands that need
    it for more report.
    """
    for read_keys in (True, False):  # the file of keys may be the daemon's alone
        with contextlib.suppress(InvalidConfiguration):
            loaded = load_settings(file, os.environ, require_upstream=False, read_keys=read_keys)
            return LaneNames(loaded.settings.key_names)
    return LaneNames()


def key_or_file(
    loaded: Loaded, section: str, key: str | None, file: Path | None
) -> tuple[str | None, Path | None]:
    """The configured key or the configured key file; of both, the one from the stronger place,
    which is the environment.

    Raises `ConfigurationError` if both come from one place.
    """
    if not (key and file):
        return key, file
    names = f"{section}.api_key", f"{section}.api_key_file"
    places = [loaded.origins.get(name, DEFAULT).place for name in names]
    if places[0] == places[1]:
        raise ConfigurationError(
            f"{names[0]} and {names[1]} are both set", hint="Keep one of the two."
        )
    return (key, None) if places[0] == Place.ENVIRONMENT else (None, file)


def ask_for_key(title: str, check: Callable[[str], str], ways: str) -> str:
    """A key typed at the terminal without being shown. Raises `ConfigurationError` with the other
    `ways` if there is no terminal.
    """
    if not sys.stdin.isatty():
        raise ConfigurationError(f"the {title} is missing", hint=ways)
    try:
        return check(getpass.getpass(f"{title[0].upper()}{title[1:]}: ", sys.stderr).strip())
    except EOFError:
        raise ConfigurationError(f"no {title} was entered", hint=ways) from None
    except ValueError as error:
        raise ConfigurationError(f"the {title}: {error}", hint=ways) from None


def _is_closed(file: Path) -> bool:
    """Whether this user may not read the file, or not even look for it."""
    try:
        check_file(file)
    except PermissionError:
        return True
    except OSError:
        pass
    return False
