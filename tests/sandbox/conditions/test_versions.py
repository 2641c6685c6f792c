"""Versions are read and sorted as the service's crate does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from forwarder.sandbox.conditions.versions import (
    Version,
    Within,
    caret_range,
    tilde_range,
    version_of,
    wildcard_range,
)
from tests.support.cases import cases

IN_ORDER: Final = (
    "0.0.1-alpha",
    "0.0.1",
    "0.2",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0",
    "1.0.0+7",
    "1.0.0+07",
    "1.0.0+10",
    "1.0.0+build",
    "1.0.0+build.2",
    "1.2.10",
    "10",
)


def test_order() -> None:
    """Numbers by size, pre-releases before their version, build metadata after it."""
    versions = [version_of(text) for text in IN_ORDER]
    for lower, higher in pairwise(versions):
        assert lower is not None
        assert higher is not None
        assert lower < higher, (lower, higher)


@cases(
    ("value", "same"),
    [
        ("v1.2.3", "1.2.3"),
        (" 1.2.3 ", "1.2.3"),
        ("1", "1.0.0"),
        (2, "2.0.0"),
        (1.5, "1.5.0"),
        ("01.08", "1.8.0"),
        ("1.2-beta", "1.2.0-beta"),
    ],
)
def test_what_is_completed(value: Any, same: str) -> None:
    """Missing numbers, leading zeros, one `v`."""
    assert version_of(value) == version_of(same) is not None


@cases(
    "value",
    [
        "",
        "abc",
        "vv1",
        "V1.2",
        "1.2.3.4",
        "1..2",
        "1.2.x",
        "-1.0.0",
        "1.0.0-",
        "1.0.0-a..b",
        "1.0.0-01",
        "1.0.0+",
        "1.0.0-ä",
        "٣.0.0",
        str(2**64),
        "1" * 5_000,
        None,
        True,
        [1],
        1e21,
    ],
)
def test_what_is_no_version(value: Any) -> None:
    """Whatever its type and size."""
    assert version_of(value) is None


@cases(
    ("bounds", "value", "inside", "outside"),
    [
        (tilde_range, "1.2.3", ("1.2.3", "1.2.99"), ("1.2.2", "1.3.0", "1.2.4-beta", "2.2.3")),
        (tilde_range, "1.2", ("1.2.0", "1.2.9"), ("1.3.0", "1.1.9")),
        (tilde_range, "1.2.3-b", ("1.2.3-b", "1.2.3-c", "1.2.3", "1.2.4"), ("1.2.3-a", "1.2.4-c")),
        (caret_range, "1.2.3", ("1.2.3", "1.99.0"), ("1.2.2", "2.0.0", "1.3.0-beta")),
        (caret_range, "0.2.3", ("0.2.3", "0.2.9"), ("0.3.0", "1.2.3", "0.2.2")),
        (caret_range, "0.0.3", ("0.0.3",), ("0.0.4", "0.1.3")),
        (caret_range, "0", ("0.0.0",), ("0.0.1", "0.1.0")),
        (caret_range, "1.2.3-b", ("1.2.3-b", "1.2.3", "1.3.0"), ("1.2.3-a", "1.3.0-c")),
        (wildcard_range, "1.*", ("1.0.0", "1.99.1"), ("2.0.0", "0.9.0", "1.2.0-beta")),
        (wildcard_range, "v1.02.x", ("1.2.0", "1.2.7"), ("1.3.0",)),
        (wildcard_range, "1.*.*", ("1.0.0", "1.99.1"), ("2.0.0",)),
        (wildcard_range, "*", ("0.0.0", "77.1.2"), ("1.0.0-beta",)),
        # Without a wildcard it is a caret range of as many numbers as there are.
        (wildcard_range, "1", ("1.0.0", "1.9.0"), ("2.0.0",)),
        (wildcard_range, "1.2", ("1.2.0", "1.9.0"), ("1.1.0", "2.0.0")),
        (wildcard_range, "0.0", ("0.0.0", "0.0.9"), ("0.1.0",)),
        (wildcard_range, "1.2.3", ("1.2.3", "1.9.0"), ("1.2.2",)),
    ],
)
def test_ranges(
    bounds: Callable[[object], Within | None],
    value: str,
    inside: tuple[str, ...],
    outside: tuple[str, ...],
) -> None:
    """What is in a range; a pre-release only if the range names one of the same version."""
    within = bounds(value)
    assert within is not None

    def known(text: str) -> Version:
        version = version_of(text)
        assert version is not None
        return version

    assert [text for text in inside if not within(known(text))] == []
    assert [text for text in outside if within(known(text))] == []


@cases("value", ["", "x.1", "1.*.3", "*.*", "1.2.*-b", "1.2.3.*", "a.*", None, "1" * 5_000])
def test_what_is_no_wildcard(value: Any) -> None:
    """It matches nothing."""
    assert wildcard_range(value) is None
