"""Which of a cluster's topics are to be read, and which aren't there."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from forwarder.core.errors import ConfigurationError
from forwarder.sources.kafka.policy import KafkaPolicy

NAMED = 5
"""Topics that are named; the others are counted."""


class TopicsMissing(ConfigurationError):
    """Topics aren't there, and aren't to be waited for."""

    code = "topics_missing"


@dataclass(frozen=True, slots=True)
class Choice:
    """The topics to read, and what is missing, for a person; empty if nothing is."""

    topics: frozenset[str]
    why: str = ""
    hint: str = ""


def choose_topics(policy: KafkaPolicy, seen: Collection[str]) -> Choice:
    """The topics to read of those that may be seen."""
    if policy.topics_pattern is not None:
        pattern = re.compile(policy.topics_pattern)
        matching = frozenset(topic for topic in seen if pattern.match(topic))
        if matching:
            return Choice(matching)
        hint = "Correct `topics_pattern`, or grant this user DESCRIBE on them."
        return Choice(matching, f"no topic matches {policy.topics_pattern!r}", hint)
    missing = [topic for topic in policy.topics if topic not in seen]
    there = frozenset(policy.topics) - set(missing)
    if not missing:
        return Choice(there)
    some = ", ".join(missing[:NAMED]) + (f" and {len(missing) - NAMED} more" if len(missing) > NAMED else "")
    what = f"topic {some} isn't" if len(missing) == 1 else f"topics {some} aren't"
    return Choice(there, f"{what} there, or this user may not see it", "Create it, correct `topics`, or grant this user DESCRIBE on it.")
