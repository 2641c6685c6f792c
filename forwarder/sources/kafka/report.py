"""The state of one cluster: what is counted over all lives of its member, and what is
logged, once.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

import structlog

from forwarder.core.error_text import error_text
from forwarder.sources.kafka.diagnosis import Trouble

_log = structlog.get_logger(__name__)


class Condition(StrEnum):
    """Where a cluster's member is in its life."""

    CONNECTING = "connecting"
    WAITING = "waiting"
    """For topics."""
    JOINING = "joining"
    """The group divides the partitions."""
    READING = "reading"
    DOWN = "down"
    """The brokers don't answer, or don't let it in."""
    FAILED = "failed"
    """It has ended, and isn't tried again."""
    STOPPING = "stopping"


RECORDS: Final = ("taken", "tombstone", "filtered", "refused")
COMMITS: Final = ("ok", "failed")

CALM_SECONDS: Final = 300.0
"""After so long without a conflict of names it is over."""


class ClusterReport:
    """Collects it; each condition is logged when it begins, and not again as long as it lasts."""

    def __init__(self, name: str, key: str) -> None:
        """`key`: the cluster's settings, as they are called in the configuration."""
        self.name = name
        self._key = key
        self.condition = Condition.CONNECTING
        self.why = ""
        self.hint = ""
        self.note = ""
        """Which topics are missing."""
        self.conflict = ""
        """That another member has this one's name, also while this one is in the group again."""
        self._conflict_at = 0.0
        self.next_try: float | None = None
        self.records: Counter[str] = Counter(dict.fromkeys(RECORDS, 0))
        self.commits: Counter[str] = Counter(dict.fromkeys(COMMITS, 0))
        self.rebalances = 0
        self.expired = 0
        self.last_commit: float | None = None
        self._commits_fail = False
        self._logged = ""
        """The trouble that was logged last, as long as nothing is read."""
        self._logged_hint = ""
        self._interrupted = False
        """Whether the last life was, and nothing was logged since."""
        self._comes_back = False
        """Whether that trouble came when partitions were assigned: to have some again doesn't mean
        that it is over.
        """

    def now(self, condition: Condition, why: str = "", hint: str = "") -> None:
        """It is in this condition."""
        self.condition = condition
        self.why = why
        self.hint = hint
        self.next_try = None

    def missing(self, why: str, hint: str, *, waits: bool) -> None:
        """Topics are missing (`why`; empty if none is); `waits`: none is read meanwhile."""
        if why and why != self.note:
            _log.warning(
                "kafka: topics are missing; they are waited for",
                cluster=self.name,
                why=why,
                hint=hint,
            )
        self.note = why
        if waits:
            self.now(Condition.WAITING, why, hint)

    def reading(self, partitions: int) -> None:
        """The group has divided the partitions."""
        self.rebalances += 1
        self._interrupted = False
        if not self._comes_back:
            _log.info("kafka: reading", cluster=self.name, partitions=partitions)
            self._logged = ""
        self.now(Condition.READING)

    def down(self, trouble: Trouble, next_try: float | None = None) -> None:
        """The brokers don't answer, or don't let it in; `next_try` is wall-clock time."""
        repeated = str(trouble) == self._logged
        if trouble.key == "group_instance_id":
            repeated = bool(self.conflict)
            self.conflict = f"{trouble.message}. {trouble.hint}"
            self._conflict_at = next_try or 0.0
        if not repeated:
            _log.error(
                "kafka: can't read",
                cluster=self.name,
                why=trouble.message,
                key=f"{self._key}.{trouble.key}",
                hint=trouble.hint,
            )
        self._down(str(trouble), trouble.hint, next_try)

    def interrupted(self, trouble: Trouble, next_try: float) -> None:
        """The client itself has cut a life off. That names no cause: what was logged last still
        holds, and a single time means nothing.
        """
        if self._logged:
            self._down(self._logged, self._logged_hint, next_try)
        elif self._interrupted:
            self.down(trouble, next_try)
        else:
            self._interrupted = True
            self.now(Condition.CONNECTING)

    def broken(self, error: Exception, next_try: float) -> None:
        """Reading failed in an unforeseen way; `next_try` is wall-clock time."""
        why = f"reading failed: {error_text(error)}"
        if why != self._logged:
            _log.error(
                "kafka: reading failed in an unforeseen way; it is restarted",
                cluster=self.name,
                exc_info=error,
            )
        self._down(why, "That is a bug: the log has more.", next_try)

    def _down(self, why: str, hint: str, next_try: float | None) -> None:
        self._logged = why
        self._logged_hint = hint
        self._interrupted = False
        if next_try is not None:
            self._comes_back = self.condition is Condition.READING
        self.now(Condition.DOWN, why, hint)
        self.next_try = next_try

    def back(self, condition: Condition) -> None:
        """The brokers answer again."""
        if self.condition is Condition.DOWN:
            self._logged = ""
            _log.info("kafka: the brokers answer again", cluster=self.name)
            self.now(condition)

    def failed(self, why: str, hint: str) -> None:
        """It ends."""
        _log.error("kafka: nothing is read", cluster=self.name, why=why, hint=hint)
        self.now(Condition.FAILED, why, hint)

    def committed(self, at: float) -> None:
        """Offsets were committed."""
        if self._commits_fail:
            _log.info("kafka: commits succeed again", cluster=self.name)
        if self.conflict and at - self._conflict_at > CALM_SECONDS:
            self.conflict = ""
        if self._comes_back and not self.conflict:
            _log.info("kafka: reading again", cluster=self.name)
            self._logged = ""
        self._commits_fail = self._comes_back = False
        self.commits["ok"] += 1
        self.last_commit = at

    def commit_failed(self, why: str) -> None:
        """Offsets couldn't be committed."""
        if not self._commits_fail:
            meaning = (
                "What it would have covered is sent a second time, the same, if others get "
                "the partitions before a commit succeeds."
            )
            _log.warning("kafka: a commit failed", cluster=self.name, why=why, meaning=meaning)
        self._commits_fail = True
        self.commits["failed"] += 1

    def commit_refused(self) -> None:
        """Offsets may not be committed: the member ends, and that is logged."""
        self.commits["failed"] += 1

    def went_back(self, topic: str, partition: int, offset: int) -> None:
        """A partition ends before what was to be read next: it is read from
        `offset` on, where it begins.
        """
        _log.warning(
            (
                "kafka: a partition begins again: its topic was created again, or its brokers "
                "lost records"
            ),
            cluster=self.name,
            topic=topic,
            partition=partition,
            offset=offset,
        )

    def lost(self, topic: str, partition: int, count: int) -> None:
        """Records were gone before they could be read."""
        self.expired += count
        _log.error(
            "kafka: records expired unread",
            cluster=self.name,
            topic=topic,
            partition=partition,
            records=count,
            hint=(
                "The topic's retention is shorter than the time for which they weren't read; "
                "raise it, and look at the lag."
            ),
        )
