"""`python -m tests.crash.destinations`: two destinations end in turn under load, then the daemon
is killed. It prints its seed first.
"""

from __future__ import annotations

import sys

from tests.crash.destinations.campaign import (
    DestinationsCampaign,
    DestinationsOptions,
    DestinationsReport,
)
from tests.crash.frame import CampaignRun, CrashFailure, conduct, options

WITHIN = 2.0
"""How many times the latency of a destination that is alone the one of the live destination may
have while the other is away.
"""


def main() -> int:
    """Run it; 0 if both destinations hold everything, and none was slowed down by the other."""
    parser = options("tests.crash.destinations")
    parser.add_argument("--kills", type=int, default=10, help="of the daemon")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="with one destination away, or with one alone"
    )
    given = parser.parse_args()
    chosen = DestinationsOptions(given.seed, given.seconds, given.kills)
    title = f"seed {given.seed}, {given.kills} kills of the daemon"
    return conduct(
        [
            CampaignRun(
                title, lambda root, say: DestinationsCampaign(chosen, root, say).run(), as_text
            )
        ],
        keep=given.keep,
    )


def as_text(report: DestinationsReport, seconds: float) -> str:
    """The outcome. Raises `CrashFailure` if a live destination was slow."""
    latencies = ", ".join(f"{latency * 1000:.0f} ms while {what}" for what, latency in report.live)
    text = f"p99 from sending to arrival {report.alone * 1000:.0f} ms alone; {latencies}"
    if slow := [what for what, latency in report.live if latency > WITHIN * report.alone]:
        raise CrashFailure(f"the live destination was slow while {', '.join(slow)}: {text}")
    return (
        f"PASSED in {seconds:.0f} s: {report.sent:,} events, each at both, byte for byte, no "
        f"conflict; {report.kills} kills of "
        f"the daemon, {report.repeated} repeated requests; {text}"
    )


if __name__ == "__main__":
    sys.exit(main())
