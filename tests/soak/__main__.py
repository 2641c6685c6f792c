"""`python -m tests.soak`: the long form. Ctrl-C ends the load early; what was accepted is still
drained, checked and reported.

It runs in a session of its own, so that Ctrl-C in a terminal reaches it alone and not the
processes that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from forwarder.demo.broker import Broker
from tests.crash.frame import CampaignRun, CrashFailure, Say, conduct, options
from tests.soak.report import draw_soak, soak_text
from tests.soak.soak import Soak, SoakOptions, SoakReport
from tests.support.repository import ROOT

OUTPUT: Final = ROOT / "build" / "soak"


def main() -> int:
    """Run it; 0 if nothing was lost, changed or miscounted, and neither memory nor descriptors
    have grown.
    """
    parser = options("tests.soak")
    parser.add_argument("--minutes", type=float, default=60.0, help="of load (default 60)")
    parser.add_argument(
        "--rate",
        type=float,
        default=300.0,
        help="events a second, of all sources together (default 300)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=OUTPUT,
        metavar="DIR",
        help="of text and picture (default build/soak)",
    )
    given = parser.parse_args()
    chosen = SoakOptions(given.seed, 60 * given.minutes, given.rate)
    output: Path = given.output

    def finish(report: SoakReport, _: float) -> str:
        text = soak_text(report)
        output.mkdir(parents=True, exist_ok=True)
        (output / "soak.txt").write_text(text + "\n")
        draw_soak(report, output / "soak.svg")
        text += f"\nin {output}: soak.txt, soak.svg"
        if failed := report.failed():
            raise CrashFailure(f"{text}\n{len(failed)} problems")
        return text

    title = (
        f"seed {given.seed}, {given.minutes:g} minutes of {given.rate:g} events/s; Ctrl-C "
        "ends it early, with its report"
    )
    return conduct(
        [CampaignRun(title, lambda root, say: run(chosen, root, say), finish)], keep=given.keep
    )


async def run(chosen: SoakOptions, root: Path, say: Say) -> SoakReport:
    """One soak on a broker of its own. The first SIGINT or SIGTERM ends its load, another one ends
    it at once.
    """
    with Broker() as broker:
        soak = Soak(chosen, root, broker.bootstrap, say)
        task = asyncio.create_task(soak.run())

        def end() -> None:
            if soak.stop():
                say(
                    "the load ends; what was accepted is delivered and checked. Another signal "
                    "ends it at once"
                )
            else:
                task.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end)
        return await task


def apart() -> int:
    """Run `main` in a session of its own, and pass signals on; its exit code."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        os.setsid()
        code = 1
        try:
            code = main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except (asyncio.CancelledError, KeyboardInterrupt):
            code = 130
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(apart())
