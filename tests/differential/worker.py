"""The process of one version: reads mutants from its parent, and answers with digests."""

from __future__ import annotations

import asyncio
import gc
import resource
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import structlog

import forwarder

KEPT: Final = 4
"""Batches of which the outcomes are kept, so that the parent can ask for one."""
_CRITICAL: Final = 50


def serve(descriptor: int, checkout: str, folder: str) -> None:
    """Answer until the parent is gone. Raises `RuntimeError` if the product isn't the one of the
    checkout.
    """
    package_root = Path(forwarder.__file__).parents[1]
    if package_root.resolve() != Path(checkout).resolve():
        raise RuntimeError(f"the product comes from {package_root}, not from {checkout}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_CRITICAL))
    asyncio.run(_serve(Connection(descriptor), Path(folder)))


async def _serve(parent: Connection, folder: Path) -> None:
    from tests.differential.rig import MutantOutcome, VersionRig, take_over  # noqa: PLC0415

    take_over()
    rig = VersionRig(folder)
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    outcomes: dict[int, list[MutantOutcome]] = {}
    while True:
        try:
            question, number, content = parent.recv()
        except EOFError:
            return
        if question == "run":
            rig.begin(number)
            outcomes.pop(number - KEPT, None)
            results = outcomes[number] = [await rig.run(mutant) for mutant in content]
            answers = [(outcome.digest(), outcome.labels) for outcome in results]
            parent.send((answers, rig.figures()))
        elif question == "show":
            outcome = outcomes[number][content]
            parent.send((outcome.text(), tuple(outcome)))
        else:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            parent.send(usage.ru_utime + usage.ru_stime)
