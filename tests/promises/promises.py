"""The rows: what a document promises, the events that show it, and what must have become of them.

A promise is stated once, for all entrances: an entrance says how it carries an event, and which
promises can't apply to it. The rules and routes of all rows together are the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from tests.promises import checks
from tests.promises.agreed import (
    AT,
    BIG,
    FORGOTTEN,
    SALTED,
    SECRET,
    SHARE,
    STRANGER,
    TOO_BIG,
    VERBATIM,
    people,
)

if TYPE_CHECKING:
    from tests.promises.seen import CellEvidence


class Topic(StrEnum):
    """What must hold at every entrance; `MORE` is what is tested besides."""

    RULES = "rules"
    ROUTES = "routes"
    KEYS = "keys"
    REDACTION = "redaction"
    LIMITS = "limits"
    BOOKS = "books"
    UUID = "uuid"
    TIMESTAMP = "timestamp"
    ACKNOWLEDGEMENT = "acknowledgement"
    DEAD_LETTERS = "dead letters"
    TAP = "tap"
    EXPLAIN = "explain"
    MORE = "more"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """An event as a promise wants it sent. `timestamp`: None leaves it out. `to`: the destinations
    that a route of the promise sends it to; None: those of everything else.
    """

    event: str
    distinct_id: str = "ann"
    properties: Mapping[str, Any] = field(default_factory=dict)
    verbatim: str = ""
    """Further properties, as JSON text that arrives byte for byte."""
    has_uuid: bool = True
    timestamp: str | None = AT
    to: frozenset[str] | None = None
    is_dropped: bool = False
    """Whether a rule drops it: that is in the books of the first destination alone."""


@dataclass(frozen=True, kw_only=True)
class PromiseRow:
    """A row. `check` raises `AssertionError` if it is broken."""

    name: str
    topic: Topic
    quotes: Mapping[str, str]
    """By document: the words that promise it."""
    check: Callable[[CellEvidence], None]
    samples: tuple[Sample, ...] = ()
    rules: tuple[Mapping[str, Any], ...] = ()
    routes: tuple[Mapping[str, Any], ...] = ()


README: Final = "README.md"
RULES: Final = "docs/how-to/rules.md"
SECURITY: Final = "docs/how-to/security.md"
DESTINATIONS: Final = "docs/how-to/destinations.md"
LETTERS: Final = "docs/how-to/dead-letters.md"
OPERATIONS: Final = "docs/how-to/operations.md"
WHEN: Final = "docs/explanation/what-happens-when.md"

_SOURCES: Final = ("http", "otlp", "kafka", "logs", "import")

PROMISES: Final = (
    PromiseRow(
        name="drop",
        topic=Topic.RULES,
        quotes={RULES: "`drop: true`: the event isn't sent; its sender gets 200 (v1: `ok`)"},
        samples=(Sample(event="noise", is_dropped=True),),
        rules=({"name": "noise", "match": {"event": "noise"}, "drop": True},),
        check=checks.is_dropped,
    ),
    PromiseRow(
        name="sample",
        topic=Topic.RULES,
        quotes={RULES: "all of a person's events are in the sample, or none, on each machine"},
        samples=tuple(
            Sample(
                event="video frame",
                distinct_id=people(sampled=sampled),
                is_dropped=not sampled,
            )
            for sampled in (True, False)
        ),
        rules=({"name": "frames", "match": {"event": "video f*"}, "sample": SHARE},),
        check=checks.sample_has_people_whole,
    ),
    PromiseRow(
        name="set",
        topic=Topic.RULES,
        quotes={RULES: "sets a JSON value, and creates the objects on the way"},
        samples=(Sample(event="staged"),),
        rules=(
            {"match": {"event": "staged"}, "set": {".properties.env.name": "staging"}},
            {"match": {"api_key": STRANGER}, "set": {".properties.env": "a stranger's"}},
        ),
        check=checks.has_property(env={"name": "staging"}),
    ),
    PromiseRow(
        name="rename",
        topic=Topic.RULES,
        quotes={RULES: "moves a field, and replaces what was there"},
        samples=(Sample(event="planned", properties={"plan_name": "team", "plan": "old"}),),
        rules=(
            {
                "match": {"event": "planned"},
                "rename": {".properties.plan_name": ".properties.plan"},
            },
        ),
        check=checks.has_property(plan="team", plan_name=None),
    ),
    PromiseRow(
        name="rename_event",
        topic=Topic.RULES,
        quotes={RULES: "gives the event another name"},
        samples=(Sample(event="Signed Up"),),
        rules=({"rename_event": {"Signed Up": "user signed up"}},),
        check=checks.renamed,
    ),
    PromiseRow(
        name="rules see what those before left",
        topic=Topic.RULES,
        quotes={RULES: "Each rule sees the event as the rules before it left it"},
        samples=(Sample(event="first name"),),
        rules=(
            {"rename_event": {"first name": "second name"}},
            {"match": {"event": "second name"}, "set": {".properties.seen": True}},
        ),
        check=checks.has_property(seen=True),
    ),
    PromiseRow(
        name="match by source",
        topic=Topic.RULES,
        quotes={RULES: "`source`: `http` (v1 too), `otlp`, `kafka`, `logs`, `import`"},
        samples=(Sample(event="from somewhere"),),
        rules=tuple(
            {
                "match": {"event": "from somewhere", "source": source},
                "set": {f".properties.from_{source}": True},
            }
            for source in _SOURCES
        ),
        check=checks.by_source,
    ),
    PromiseRow(
        name="match by key",
        topic=Topic.RULES,
        quotes={RULES: "- `api_key`: project keys."},
        samples=(Sample(event="of a key"),),
        rules=(
            {
                "match": {"event": ["of a key", TOO_BIG], "api_key": "{keys}"},
                "set": {".properties.keyed": True},
            },
        ),
        check=checks.has_property(keyed=True),
    ),
    PromiseRow(
        name="match by condition",
        topic=Topic.RULES,
        quotes={RULES: "`where`: a jq condition on the whole event"},
        samples=(Sample(event="judged", properties={"host": "staging.example.com"}),),
        rules=(
            {
                "match": {
                    "event": "judged",
                    "where": '(.properties.host // "") | startswith("staging")',
                },
                "set": {".properties.judged": True},
            },
        ),
        check=checks.has_property(judged=True),
    ),
    PromiseRow(
        name="people to forget",
        topic=Topic.REDACTION,
        quotes={RULES: "`distinct_id_file` holds one distinct_id a line, in UTF-8"},
        samples=(Sample(event="of somebody", distinct_id=FORGOTTEN, is_dropped=True),),
        rules=(
            {
                "name": "forgotten",
                "match": {"distinct_id_file": "{folder}/forgotten"},
                "drop": True,
            },
        ),
        check=checks.is_forgotten,
    ),
    PromiseRow(
        name="people to forget, as hashes",
        topic=Topic.REDACTION,
        quotes={
            RULES: "With `salt_file` beside it the lines are keyed hashes, so that the file "
            "shows no id"
        },
        samples=(Sample(event="of somebody salted", distinct_id=SALTED, is_dropped=True),),
        rules=(
            {
                "name": "forgotten-salted",
                "match": {
                    "distinct_id_file": "{folder}/forgotten-salted",
                    "salt_file": "{folder}/salt",
                },
                "drop": True,
            },
        ),
        check=checks.is_forgotten,
    ),
    PromiseRow(
        name="remove",
        topic=Topic.REDACTION,
        quotes={RULES: "removes fields; `.items[].email` also those in arrays"},
        samples=(
            Sample(
                event="confided",
                properties={
                    "password": SECRET,
                    "items": [{"n": 1, "email": SECRET}, {"n": 2, "email": SECRET}],
                    "kept": 1,
                },
            ),
        ),
        rules=({"remove": [".properties.password", ".properties.items[].email"]},),
        check=checks.is_removed,
    ),
    PromiseRow(
        name="hash",
        topic=Topic.REDACTION,
        quotes={
            RULES: "replaces a value by its HMAC-SHA256 in 64 hex digits, keyed with the"
            " file's content"
        },
        samples=(Sample(event="mailed", properties={"email": "ann@example.com"}),),
        rules=({"hash": {"field": ".properties.email", "salt_file": "{folder}/salt"}},),
        check=checks.is_hashed,
    ),
    PromiseRow(
        name="a rule that redacts fails closed",
        topic=Topic.REDACTION,
        quotes={
            RULES: "the event becomes a dead letter, `rule_failed`, as it was before all rules, "
            "and is never sent"
        },
        samples=(Sample(event="guarded", properties={"n": 1, "note": SECRET}),),
        rules=(
            {
                "match": {"event": "guarded", "where": '.properties.n | startswith("a")'},
                "remove": ".properties.note",
            },
        ),
        check=checks.failed_closed,
    ),
    PromiseRow(
        name="another rule that fails",
        topic=Topic.RULES,
        quotes={RULES: "Other rules leave the event as it is"},
        samples=(Sample(event="loose", properties={"env": "text"}),),
        rules=({"match": {"event": "loose"}, "set": {".properties.env.name": 1}},),
        check=checks.stays_as_it_is,
    ),
    PromiseRow(
        name="a rule that says what fails",
        topic=Topic.RULES,
        quotes={RULES: "unless they say `on_error: dead_letter`"},
        samples=(Sample(event="strict", properties={"env": "text"}),),
        rules=(
            {
                "name": "strictly",
                "match": {"event": "strict"},
                "set": {".properties.env.name": 1},
                "on_error": "dead_letter",
            },
        ),
        check=checks.is_a_letter_of_a_rule,
    ),
    PromiseRow(
        name="routes",
        topic=Topic.ROUTES,
        quotes={
            DESTINATIONS: "The first route that matches decides. Events that no route matches go "
            "to the first destination."
        },
        samples=(
            Sample(event="eu only", to=frozenset({"eu"})),
            Sample(event="both of them", to=frozenset({"us", "eu"})),
            Sample(event="like all others"),
        ),
        routes=(
            {"match": {"event": "eu *"}, "to": ["eu"]},
            {"match": {"event": ["both *", "eu *"]}, "to": ["us", "eu"]},
        ),
        check=checks.goes_where_its_route_says,
    ),
    PromiseRow(
        name="routes by share",
        topic=Topic.ROUTES,
        quotes={
            DESTINATIONS: "With `sample`, a share of all people goes there, each person with all "
            "events or with none"
        },
        samples=tuple(
            Sample(
                event="shared",
                distinct_id=people(sampled=sampled),
                to=frozenset({"us", "eu"} if sampled else {"us"}),
            )
            for sampled in (True, False)
        ),
        routes=({"match": {"event": "shared"}, "to": ["us", {"eu": {"sample": SHARE}}]},),
        check=checks.sample_of_a_route,
    ),
    PromiseRow(
        name="keys",
        topic=Topic.KEYS,
        quotes={DESTINATIONS: "`api_keys` maps a sender's project key to that destination's"},
        samples=(Sample(event="both of a key", to=frozenset({"us", "eu"})),),
        check=checks.keys_are_translated,
    ),
    PromiseRow(
        name="no key is shown",
        topic=Topic.KEYS,
        quotes={
            OPERATIONS: "Log, metrics and status pages never contain a project key: a lane is "
            "shown as `phc_…`",
            LETTERS: "Project keys are shown as their lanes' labels or names.",
        },
        samples=(Sample(event="with a key"),),
        check=checks.no_key_is_shown,
    ),
    PromiseRow(
        name="an event that is too large",
        topic=Topic.LIMITS,
        quotes={
            WHEN: "the large event becomes a dead letter `too_large`; the others are delivered"
        },
        samples=(
            Sample(event="larger than an event", properties={"big": BIG}),
            Sample(event="small enough"),
        ),
        check=checks.is_too_large,
    ),
    PromiseRow(
        name="a body that is too large",
        topic=Topic.LIMITS,
        quotes={
            WHEN: "gets 413 for a body over `sources.http.max_body`, compressed or decompressed",
        },
        check=checks.exceeding_is_rejected,
    ),
    PromiseRow(
        name="books",
        topic=Topic.BOOKS,
        quotes={
            README: "For each project key: received = delivered + buffered + dead-lettered + "
            "dropped. `forwarder audit` checks it.",
            OPERATIONS: "They count accepted copies",
        },
        check=checks.books_balance,
    ),
    PromiseRow(
        name="drops are in the books",
        topic=Topic.BOOKS,
        quotes={RULES: "Dropped events are in the books: `forwarder audit`"},
        samples=(
            Sample(event="counted", is_dropped=True),
            Sample(event="counted", is_dropped=True),
        ),
        rules=({"name": "counted", "match": {"event": "counted"}, "drop": True},),
        check=checks.drops_are_counted,
    ),
    PromiseRow(
        name="an event without an id",
        topic=Topic.DEAD_LETTERS,
        quotes={
            WHEN: "Only that event becomes a dead letter; the others are delivered once.",
            DESTINATIONS: "What is rejected at receipt is a dead letter of each destination",
        },
        samples=(Sample(event="with an id"), Sample(event="without an id", distinct_id="")),
        check=checks.is_rejected_alone,
    ),
    PromiseRow(
        name="own uuid",
        topic=Topic.UUID,
        quotes={README: "An event's bytes stay as they were sent"},
        samples=(Sample(event="with a uuid"),),
        check=checks.keeps_its_uuid,
    ),
    PromiseRow(
        name="missing uuid",
        topic=Topic.UUID,
        quotes={
            README: "a missing uuid or timestamp is added, so that a repeated delivery is the "
            "same event"
        },
        samples=(
            Sample(event="without uuid", has_uuid=False, properties={"n": 1}),
            Sample(event="without uuid", has_uuid=False, properties={"n": 2}),
        ),
        check=checks.gets_a_uuid,
    ),
    PromiseRow(
        name="own timestamp",
        topic=Topic.TIMESTAMP,
        quotes={
            README: "delivers every one of them, unchanged and on time, to the analytics service"
        },
        samples=(Sample(event="with a time"),),
        check=checks.keeps_its_time,
    ),
    PromiseRow(
        name="missing timestamp",
        topic=Topic.TIMESTAMP,
        quotes={README: "a missing uuid or timestamp is added"},
        samples=(Sample(event="without time", timestamp=None),),
        check=checks.gets_the_time_of_receipt,
    ),
    PromiseRow(
        name="the text of a time",
        topic=Topic.TIMESTAMP,
        quotes={README: "An event's bytes stay as they were sent"},
        samples=(Sample(event="with an odd time", timestamp="2023-03-16 20:53:20 UTC"),),
        check=checks.keeps_the_text_of_its_time,
    ),
    PromiseRow(
        name="acknowledgement",
        topic=Topic.ACKNOWLEDGEMENT,
        quotes={
            README: "**Nothing that was answered 200 is lost**, however long the service is down.",
            DESTINATIONS: "The same holds for offsets of Kafka and positions in logs.",
            WHEN: "with a disk buffer, everything answered at level `disk` or `delivered` is "
            "there at the next start",
        },
        samples=(Sample(event="asked for"),),
        check=checks.is_acknowledged,
    ),
    PromiseRow(
        name="replay",
        topic=Topic.DEAD_LETTERS,
        quotes={
            LETTERS: "An event keeps its bytes exactly, with its own uuid and timestamp.",
            WHEN: "`forwarder dead-letters replay NUMBER --edit JQ` sends a repaired event",
        },
        samples=(Sample(event=TOO_BIG, properties={"big": BIG}),),
        check=checks.is_replayed,
    ),
    PromiseRow(
        name="rules on replay",
        topic=Topic.DEAD_LETTERS,
        quotes={RULES: "Rules are also applied to replayed dead letters that no rule has seen"},
        samples=(
            Sample(
                event=TOO_BIG,
                properties={"big": BIG, "password": SECRET, "email": "ann@example.com"},
            ),
        ),
        check=checks.replayed_letters_follow_rules,
    ),
    PromiseRow(
        name="rules by key on replay",
        topic=Topic.DEAD_LETTERS,
        quotes={RULES: "Rules are also applied to replayed dead letters that no rule has seen"},
        samples=(Sample(event=TOO_BIG, properties={"big": BIG}),),
        check=checks.has_property(keyed=True),
    ),
    PromiseRow(
        name="where a dead letter came from",
        topic=Topic.DEAD_LETTERS,
        quotes={
            LETTERS: "stored with its original bytes, the reason, the time, its lane and its origin"
        },
        samples=(Sample(event="of no use", properties={"big": BIG}),),
        check=checks.says_where_it_came_from,
    ),
    PromiseRow(
        name="where a letter of a failed rule came from",
        topic=Topic.DEAD_LETTERS,
        quotes={
            LETTERS: "`show` prints a record's topic, partition, offset, key and headers",
            WHEN: "the record becomes a dead letter with file and line",
        },
        samples=(Sample(event="guarded", properties={"n": 2}),),
        check=checks.failure_says_where_it_came_from,
    ),
    PromiseRow(
        name="tap",
        topic=Topic.TAP,
        quotes={
            OPERATIONS: "events as they pass, as lines of JSON, for clients on the same machine"
        },
        samples=(Sample(event="tap seen", properties={"n": 1}),),
        check=checks.is_tapped,
    ),
    PromiseRow(
        name="tap of drops",
        topic=Topic.TAP,
        quotes={RULES: "`forwarder tap --outcome dropped` shows what is dropped"},
        samples=(Sample(event="tap noise", is_dropped=True),),
        rules=({"name": "tap-noise", "match": {"event": "tap noise"}, "drop": True},),
        check=checks.drop_is_tapped,
    ),
    PromiseRow(
        name="tap of dead letters",
        topic=Topic.TAP,
        quotes={OPERATIONS: "| `/tap` | events as they pass"},
        samples=(Sample(event="tap too big", properties={"big": BIG}),),
        check=checks.letter_is_tapped,
    ),
    PromiseRow(
        name="secrets in a tap",
        topic=Topic.TAP,
        quotes={SECURITY: "Before anything leaves the daemon, secrets are hidden"},
        samples=(Sample(event="tap secret", properties={"client_secret": SECRET}),),
        check=checks.secrets_are_hidden,
    ),
    PromiseRow(
        name="explain: buffered",
        topic=Topic.EXPLAIN,
        quotes={
            DESTINATIONS: "`forwarder explain UUID` says of which destination a copy is",
            WHEN: "stay in the buffer. The same bytes are retried with growing backoff",
        },
        samples=(Sample(event="sought"),),
        check=checks.is_found_while_it_is_buffered,
    ),
    PromiseRow(
        name="explain: dead letter",
        topic=Topic.EXPLAIN,
        quotes={
            OPERATIONS: "`forwarder explain UUID`: where one event is; exit code 1 when it isn't "
            "here"
        },
        samples=(Sample(event="explained", properties={"big": BIG}),),
        check=checks.letter_is_explained,
    ),
    PromiseRow(
        name="bytes stay",
        topic=Topic.MORE,
        quotes={
            README: "**Nothing is changed.** An event's bytes stay as they were sent",
            RULES: "Events that no rule changes keep their bytes.",
        },
        samples=(Sample(event="as it is", verbatim=VERBATIM),),
        check=checks.is_unchanged,
    ),
    PromiseRow(
        name="each event once",
        topic=Topic.MORE,
        quotes={
            WHEN: "are retried with growing backoff, the same bytes",
            DESTINATIONS: "An event for two destinations is stored in both.",
        },
        samples=tuple(Sample(event="one of three", properties={"n": n}) for n in range(3)),
        check=checks.each_once,
    ),
)


def rules_of(promises: Sequence[PromiseRow]) -> Iterator[Mapping[str, Any]]:
    """The rules that promises need, in the order of the rows."""
    for promise in promises:
        yield from promise.rules
