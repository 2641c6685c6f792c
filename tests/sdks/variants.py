"""Every way in which each SDK is tried: an SDK, and how it is asked to send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pytest


@dataclass(frozen=True, slots=True)
class Variant:
    """An SDK with the mode that its program is given."""

    sdk: str
    mode: str
    program_mode: str = ""
    """What the program calls it, where that is something else."""
    env: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    @property
    def name(self) -> str:
        """Its name in tests."""
        return f"{self.sdk}-{self.mode}"

    @property
    def options(self) -> tuple[str, ...]:
        """Options of its program."""
        return ("--mode", self.program_mode or self.mode)

    @property
    def historical(self) -> bool:
        """Whether its events are those of a migration."""
        return self.mode == "historical"

    @property
    def v1(self) -> bool:
        """Whether it speaks the newer protocol."""
        return "v1" in self.mode


_V1: Final = {"POSTHOG_CAPTURE_MODE": "v1"}

PYTHON: Final = [
    Variant("python", mode)
    for mode in (
        "sync",
        "threads",
        "gzip",
        "historical",
        "asyncio",
        "v1",
        "v1-gzip",
        "v1-deflate",
        "v1-zstd",
        "asyncio-v1",
    )
]
NODE: Final = [
    *(Variant("node", mode) for mode in ("queue", "plain", "historical", "immediate")),
    Variant("node", "v1", "queue", _V1),
    Variant("node", "v1-plain", "plain", _V1),
    Variant("node", "v1-immediate", "immediate", _V1),
]
JS: Final = [Variant("js", mode) for mode in ("gzip", "plain", "xhr", "beacon", "beacon-base64")]
GO: Final = [Variant("go", mode) for mode in ("batches", "historical")]
JAVA: Final = [Variant("java", "batches")]

VARIANTS: Final = [*PYTHON, *NODE, *JS, *GO, *JAVA]
FIRST: Final = [PYTHON[1], NODE[0], JS[0], GO[0], JAVA[0]]
"""Each SDK once, as it is used most."""
V1: Final = [variant for variant in VARIANTS if variant.v1]

LIMIT: Final = 300
"""Seconds for a test: the first one of a variant runs it."""


def for_each(variants: list[Variant]) -> pytest.MarkDecorator:
    """Try a test with each of these. Tests of one variant share its run."""
    cases = [
        pytest.param(variant, id=variant.name, marks=pytest.mark.timeout(LIMIT))
        for variant in variants
    ]
    return pytest.mark.parametrize("variant", cases, indirect=True)
