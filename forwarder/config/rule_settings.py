"""What can be configured of rules, and of what they match. Written as `settings.py`, whose section `rules` this is."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from forwarder.config.section import Section
from forwarder.config.values import NonEmpty, OneOrMore, ProjectKey

SourceKind = Literal["http", "otlp", "kafka", "logs", "import"]


@dataclass(frozen=True, kw_only=True)
class MatchSettings(Section):
    """Conditions on an event; all that are set must hold. Without any, every event matches."""

    event: Annotated[tuple[NonEmpty, ...], OneOrMore()] = ()
    """Names of events, or globs of them: `*` stands for any text, `?` for one character, and a backslash before them for themselves."""
    api_key: Annotated[tuple[ProjectKey, ...], OneOrMore()] = field(default=(), repr=False)
    """Project keys."""
    source: Annotated[tuple[SourceKind, ...], OneOrMore()] = ()
    """Where the event came from: http (v1 included), otlp, kafka, logs or import."""
    where: NonEmpty | None = None
    """jq condition on the whole event; false and null don't match."""
    distinct_id_file: Path | None = None
    """File with one distinct_id a line, read again when it changes; with `salt_file`, the lines are HMAC-SHA256 hashes of them in hex."""
    salt_file: Path | None = None
    """File with the key of the hashes in `distinct_id_file`."""
