"""Versions and their ranges, as the service reads them: by the crate `semver`, after it has
completed what applications write (rust/feature-flags/src/properties/property_matching.rs in
PostHog/posthog, commit 02469d424c85: `canonicalize_version_string`, `match_property`).

One `v` before a version doesn't count, nor do leading zeros of a number; missing numbers are 0. A
fourth number makes it no version. A pre-release (`1.2.0-beta`) comes before its version; in a
range it is only if the range names a pre-release of the same three numbers. Build metadata
(`+7`) only decides between versions that are equal otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from forwarder.sandbox.conditions.values import json_text

_Identifiers: TypeAlias = tuple[tuple[int, int, str, int], ...]
"""The parts of a suffix, so that they sort as versions do: numbers by size before texts."""
Within: TypeAlias = Callable[["Version"], bool]
"""Whether a version is in a range."""

MAX_VERSION: Final = 200
"""The longest version, in characters."""
_LARGEST: Final = 2**64 - 1
_VERSION: Final = re.compile(
    r"(?P<numbers>[0-9]+\.[0-9]+\.[0-9]+)"
    r"(?:-(?P<pre>[0-9A-Za-z.-]+))?(?:\+(?P<build>[0-9A-Za-z.-]+))?"
)
_WILDCARDS: Final = frozenset("*xX")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version. They sort as the service sorts them."""

    numbers: tuple[int, ...]
    """Three; of a requirement also fewer."""
    released: bool
    """Whether it is no pre-release."""
    pre: _Identifiers
    build: _Identifiers


def version_of(value: object) -> Version | None:
    """The version that a property or a condition's value names; None if it is none."""
    text = json_text(value)
    return _read_version(text) if len(text) <= MAX_VERSION else None


@lru_cache(maxsize=1024)
def _read_version(text: str) -> Version | None:
    core, suffix = _split(_without_v(text))
    numbers = [_without_zeros(part) for part in core.split(".")]
    numbers += ["0"] * (3 - len(numbers))
    return _exact(".".join(numbers) + suffix)


def _exact(text: str) -> Version | None:
    """A version of three numbers, as the crate parses it."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return None
    numbers = tuple(int(part) for part in match["numbers"].split("."))
    pre = _identifiers(match["pre"], zeros=False)
    build = _identifiers(match["build"], zeros=True)
    if max(numbers) > _LARGEST or pre is None or build is None:
        return None
    return Version(numbers, not pre, pre, build)


def _identifiers(suffix: str | None, *, zeros: bool) -> _Identifiers | None:
    """The parts of a suffix; None if one is empty, or, unless they are allowed, begins
    with a zero.
    """
    identifiers = []
    for part in suffix.split(".") if suffix is not None else ():
        if part.isdigit():
            digits = part.lstrip("0")
            if not zeros and len(part) > 1 and part[0] == "0":
                return None
            identifiers.append((0, len(digits), digits, len(part)))
        elif part:
            identifiers.append((1, 0, part, 0))
        else:
            return None
    return tuple(identifiers)


def tilde_range(value: object) -> Within | None:
    """From a version to the next minor one."""
    low = version_of(value)
    return None if low is None else _from(low, same=2)


def caret_range(value: object) -> Within | None:
    """From a version to the next that may be incompatible: the first number that isn't 0 goes
    up.
    """
    low = version_of(value)
    return None if low is None else _caret(low)


def wildcard_range(value: object) -> Within | None:
    """`1.*`, `1.2.*`; `*` is any version. Without a wildcard it is a caret range, as for the
    service.
    """
    text = json_text(value)
    if len(text) > MAX_VERSION:
        return None
    core, suffix = _split(_without_v(text))
    parts = [_without_zeros(part) for part in core.split(".")]
    if parts[0] in _WILDCARDS:
        anything = len(parts) == 1 and not suffix
        return (lambda version: version.released) if anything else None
    given = parts[: next((at for at, part in enumerate(parts) if part in _WILDCARDS), len(parts))]
    whole = len(given) == len(parts)
    if len(parts) > 3 or not all(part in _WILDCARDS for part in parts[len(given) :]):
        return None
    if suffix and not (whole and len(parts) == 3):
        return None
    low = _exact(".".join([*given, *["0"] * (3 - len(given))]) + suffix)
    if low is None:
        return None
    named = Version(low.numbers[: len(given)], low.released, low.pre, ())
    return _caret(named) if whole else _prefix(named)


def _prefix(named: Version) -> Within:
    count = len(named.numbers)
    return lambda version: version.released and version.numbers[:count] == named.numbers


def _caret(low: Version) -> Within:
    """From a version to the next incompatible one. `low` may have fewer numbers."""
    first = next((at for at, number in enumerate(low.numbers) if number), len(low.numbers) - 1)
    return _from(low, same=first + 1)


def _from(low: Version, *, same: int) -> Within:
    """From a version on, as long as so many numbers are the same."""

    def within(version: Version) -> bool:
        return version.numbers[:same] == low.numbers[:same] and _at_least(version, low)

    return within


def _at_least(version: Version, low: Version) -> bool:
    """Whether a version isn't before the beginning of a range, and may be in it at all."""
    count = len(low.numbers)
    if not version.released and (low.released or version.numbers != low.numbers):
        return False
    if version.numbers[:count] != low.numbers:
        return version.numbers[:count] > low.numbers
    return (version.released, version.pre) >= (low.released and count == 3, low.pre)


def _without_v(text: str) -> str:
    return text.removeprefix("v").strip()


def _split(text: str) -> tuple[str, str]:
    """The numbers, and what follows from `-` or `+` on."""
    at = min((text.index(sign) for sign in "-+" if sign in text), default=len(text))
    return text[:at], text[at:]


def _without_zeros(part: str) -> str:
    return (part.lstrip("0") or "0") if part.isascii() and part.isdigit() else part
