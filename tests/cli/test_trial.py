"""A trial of records says what the source itself makes of them."""

from __future__ import annotations

from collections import Counter
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from forwarder.cli.trial import ParsedRecord, Trial, TrialOutcome, TrialSource
from forwarder.mapping import MappingRules
from forwarder.sources.logs.batches import cut
from forwarder.sources.logs.formats import replace_undecodable
from forwarder.sources.logs.policy import LogPolicy
from forwarder.sources.logs.splitting import Splitter
from tests.support.clock import MIDNIGHT
from tests.support.log_blocks import LogInBlocks, log_line, log_policy

RULES = MappingRules(event=".type", distinct_id=".user", where=".n != 3", properties="{n}")
LINES = st.sampled_from(
    [
        *(log_line(number) for number in range(5)),
        log_line(1, type=5),
        log_line(2, user=["x"]),
        log_line(4, text="x" * 500),
        b"starting up",
        b"",
        b"  ",
        b"{broken",
        b"[{}]",
        b"\xff\xfe",
        log_line(1).replace(b"u1", b"\xff"),
    ]
)


def source_of(policy: LogPolicy) -> TrialSource:
    """The source of a trial for this policy."""

    def parse(value: bytes) -> ParsedRecord | None:
        parsed = policy.line_format.parse(replace_undecodable([value])[0][0], MIDNIGHT)
        return None if parsed is None else ParsedRecord(parsed[0], parsed[2], "first read")

    return TrialSource(
        split=policy.split,
        parse=parse,
        convert=policy.mapping.map,
        uuid="",
        max_event=10_000,
        max_record=policy.max_line,
        is_log=True,
    )


@given(st.lists(LINES, max_size=12), st.integers(1, 200), st.booleans())
def test_it_agrees_with_the_source(lines: list[bytes], size: int, ended: bool) -> None:
    """Line by line, however the sample is cut into parts: what the source's batches count is what
    the trial shows.
    """
    policy = log_policy(RULES, split=partial(Splitter, max_record=400), max_line=400)
    text = b"\n".join(lines) + b"\n" * ended
    trial = Trial(source_of(policy))
    results = [
        result
        for at in range(0, len(text), size)
        for result in trial.feed(text[at : at + size], 0.0)
    ]
    results += trial.finish()
    shown = Counter(result.outcome for result in results)

    splitter = policy.split(0)
    records = splitter.feed(text, 0.0), splitter.finish()
    values = [value for part in records for value in part.values]
    overlong = [long_line for part in records for long_line in part.overlong]
    batches = list(cut(policy, LogInBlocks().block(values, overlong))) if values or overlong else []
    counted = {
        TrialOutcome.SENT: sum(len(batch.values) for batch in batches),
        TrialOutcome.SKIPPED: sum(batch.filtered for batch in batches),
        TrialOutcome.UNMATCHED: sum(batch.unmatched for batch in batches),
        TrialOutcome.REJECTED: sum(len(batch.rejected) for batch in batches),
    }
    assert shown == Counter(counted)
    numbers = [number for number, line in enumerate(text.split(b"\n"), 1) if line]
    assert [result.line for result in results] == numbers
