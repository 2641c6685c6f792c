"""Some sections of the configuration, for commands that whoever sits at a terminal runs: the usual file may be the daemon's alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from forwarder.config.layers import DEFAULT, InvalidConfiguration, Place
from forwarder.config.load import Loaded, load_sections
from forwarder.core.errors import ConfigurationError

_NOTHING: Final = Path(os.devnull)


def loaded_sections(sections: Collection[str], file: Path | None, usual: Path) -> Loaded:
    """The sections. `usual` is read where no file is named; if this user may not, it is passed over, and that is said.

    Raises `ConfigurationError`.
    """
    if file is None and _is_closed(usual):
        sys.stderr.write(f"{usual} can't be read by this user and is passed over; name another with --config FILE.\n")
        usual = _NOTHING
    try:
        return load_sections(sections, file, os.environ, default_file=usual)
    except InvalidConfiguration as error:  # whose hint is `config check`, which asks for all that the daemon needs
        raise ConfigurationError(error.message) from None


def stronger(loaded: Loaded, first: str, second: str) -> str:
    """That one of two settings that stand for the same, and are both there, that comes from the stronger place.

    Raises `ConfigurationError` if both come from one.
    """
    places = [loaded.origins.get(name, DEFAULT).place for name in (first, second)]
    if places[0] == places[1]:
        raise ConfigurationError(f"{first} can't be beside {second}", hint="Keep one of the two.")
    return first if places[0] == Place.ENVIRONMENT else second


def _is_closed(file: Path) -> bool:
    """Whether there is a file that this user may not read, or may be one where this user may not look."""
    try:
        file.open("rb").close()
    except PermissionError:
        return True
    except OSError:
        pass
    return False
