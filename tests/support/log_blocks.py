"""Blocks of a log, as what follows files hands them over, and the policy of their source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from forwarder.mapping import Mapping, MappingRules
from forwarder.sources.hand_over import Watermark
from forwarder.sources.logs.followed import Block, FollowedFile
from forwarder.sources.logs.formats import line_format
from forwarder.sources.logs.policy import LogPolicy
from forwarder.sources.logs.splitting import LogRecords, Splitter
from tests.support.clock import MIDNIGHT

PATH = "/var/log/app.log"
RULES = MappingRules(event=".type", distinct_id=".user", properties="{n}")
KEY = "phc_aaaaaaaaaaaaaaaaaaaaaaaaaaaa"


def log_policy(rules: MappingRules = RULES, lines: str = "json", **changes: Any) -> LogPolicy:
    """A source of JSON lines, or of another format, with these rules."""
    policy = LogPolicy(
        name="app",
        paths=(PATH,),
        split=partial(Splitter, max_record=1_000_000),
        line_format=line_format(lines, None, None, None, "sources.logs[0]"),
        mapping=Mapping.compile(rules, "app"),
        api_key=KEY,
        host="web-1",
    )
    return replace(policy, **changes)


def log_line(number: int, **members: Any) -> bytes:
    """A line that becomes an event."""
    return json.dumps({"type": "seen", "user": f"u{number}", "n": number, **members}).encode()


class LogInBlocks:
    """A file of which blocks are read, one after the other."""

    def __init__(self, path: str = PATH, identity: str = "f1") -> None:
        self.file = FollowedFile((1, 1), path)
        self.file.identity = identity
        self.mark = Watermark(0)

    def block(
        self,
        lines: Sequence[bytes],
        overlong: Sequence[tuple[int, bytes]] = (),
        at: float = MIDNIGHT,
        reference: float = MIDNIGHT,
    ) -> Block:
        """The next block, of these lines."""
        first = end = self.mark.read
        offsets = []
        for line in lines:
            offsets.append(end)
            end += len(line) + 1
        end += sum(len(line) + 1 for _, line in overlong)
        records = LogRecords(lines, offsets, end, overlong, len(lines) + len(overlong))
        span = self.mark.open(first, end, records.lines)
        file = self.file
        return Block(
            file,
            file.identity,
            file.generation,
            first,
            records,
            reference,
            at,
            span,
            self.mark,
            end - first,
        )
