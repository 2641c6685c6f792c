"""`python -m tests.crash.kafka`: the long form of the Kafka crash test. It prints its seed first:
the same makes the same records.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from forwarder.demo.broker import Broker
from tests.crash.frame import CampaignRun, Say, conduct, options
from tests.crash.kafka.campaign import KafkaCampaign, KafkaOptions, KafkaReport
from tests.crash.kafka.hostile import HostileHour


def main() -> int:
    """Run it; 0 if nothing was lost, changed, sent out of order or miscounted."""
    parser = options("tests.crash.kafka")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--times", type=int, default=1, help="how often, each with the next seed")
    parser.add_argument(
        "--hostile",
        type=int,
        metavar="DEEDS",
        help="so often one joins, leaves, stalls or dies; else each disaster once",
    )
    parser.add_argument(
        "--disk",
        action="store_true",
        help="commit: disk, without order; else commit: delivered, in order for each id",
    )
    given = parser.parse_args()
    runs = []
    for seed in range(given.seed, given.seed + given.times):
        chosen = KafkaOptions(seed, given.records, given.partitions, disk=given.disk)
        title = f"seed {seed}, {given.records} records in {given.partitions} partitions"
        runs.append(
            CampaignRun(title, partial(run, chosen, given.hostile), partial(as_text, given.records))
        )
    return conduct(runs, keep=given.keep)


async def run(chosen: KafkaOptions, deeds: int | None, root: Path, say: Say) -> KafkaReport:
    """One campaign on a broker of its own."""
    with Broker() as broker:
        campaign = (
            KafkaCampaign(chosen, root, broker, say)
            if deeds is None
            else HostileHour(chosen, root, broker, deeds, say)
        )
        return await campaign.run()


def as_text(records: int, report: KafkaReport, seconds: float) -> str:
    """What was done, in lines for a person."""
    return "\n".join(
        [
            (
                f"{records} records with {report.events} events in {seconds:.0f} s; "
                f"{report.looks} looks at the books, all of them balanced"
            ),
            f"{report.distinct} distinct events are at the sandbox, no conflict",
            (
                f"{report.repeats} came more than once, the same bytes; {report.repeated_bare} of "
                "them had neither uuid nor timestamp"
            ),
            (
                f"{report.returned} events were returned to the broker by those that ended in "
                "good order"
            ),
            "nothing was lost, changed, miscounted, or sent out of the requested order",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
