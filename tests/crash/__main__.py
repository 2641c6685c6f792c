"""`python -m tests.crash`: the long form of the crash test. It prints its seed first: the same
makes the same load and the same kills.
"""

from __future__ import annotations

import sys

from tests.crash.campaign import CrashCampaign, CrashOptions, CrashReport
from tests.crash.frame import CampaignRun, conduct, options

LEAST_RATE = 1000.0


def main() -> int:
    """Run it; 0 if nothing was lost, changed or miscounted."""
    parser = options("tests.crash")
    parser.add_argument(
        "--kills", type=int, default=220, help="half of them at random instants, half at failpoints"
    )
    parser.add_argument("--rate", type=float, default=3000.0, help="events a second")
    parser.add_argument("--max-bytes", default="16MB", help="buffer.max_bytes")
    parser.add_argument(
        "--at", action="append", default=[], help="only at this failpoint; may be repeated"
    )
    given = parser.parse_args()
    half = given.kills // 2
    chosen = CrashOptions(
        given.seed,
        given.kills - half,
        half,
        tuple(given.at),
        given.rate,
        LEAST_RATE,
        max_bytes=given.max_bytes,
    )
    run = CampaignRun(
        f"seed {given.seed}, {given.kills} kills",
        lambda root, say: CrashCampaign(chosen, root, say).run(),
        as_text,
    )
    return conduct([run], keep=given.keep)


def as_text(report: CrashReport, seconds: float) -> str:
    """What was done, in lines for a person."""
    lanes = [
        f"  {'historical' if lane.historical else lane.api_key[-9:]:<12}{account}"
        for lane, account in report.books.items()
    ]
    return "\n".join(
        [
            (
                f"{report.kills} kills in {seconds:.0f} s: {report.random} at random instants, "
                f"{sum(report.hit.values())} at failpoints"
            ),
            *(f"  {name:<26}{count:>4}" for name, count in sorted(report.hit.items())),
            (
                f"{report.sent} events sent, {report.promised} promised ({report.rate:.0f}/s "
                "while it listened)"
            ),
            (
                f"{report.repeats} came more than once, unchanged; {report.refused} requests "
                f"refused; {report.letters} dead letters"
            ),
            f"{report.looks} looks at the books, all of them balanced",
            *lanes,
            "nothing was lost, changed or miscounted",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
