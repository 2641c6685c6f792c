"""The ingestion endpoints and the events that they accept (interface document, "B. Ingestion API",
"Events"), as data, named to the letter.

Every other field than these is kept as it was sent. What SDKs send in other forms and to other
paths is not of the contract; `docs/reference/http.md` has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Required, TypeVar

from typing_extensions import TypedDict

from forwarder.contract.endpoints import Method
from forwarder.contract.resources import Json, JsonObject, Timestamp

Q = TypeVar("Q")
R = TypeVar("R")

BODY_LIMIT: Final = 20_000_000
"""A request's whole body is smaller than this many bytes; the number of
events in it is not limited.
"""
FORWARDED_FOR: Final = "X-Forwarded-For"
"""The header that the interface document calls by the name that CGI gives it,
`HTTP_X_FORWARDED_FOR`.
"""
GEOIP_PROPERTIES: Final = (
    "$geoip_city_name",
    "$geoip_country_name",
    "$geoip_country_code",
    "$geoip_continent_name",
    "$geoip_continent_code",
    "$geoip_postal_code",
    "$geoip_time_zone",
)
"""What of a person an address in that header decides, for one evaluation."""
ANONYMOUS: Final = "$process_person_profile"
"""A property of an event; false makes it anonymous."""
FEATURE_PREFIX: Final = "$feature/"
"""A property of this prefix and a flag's key has the variant that the event belongs to."""


class DecideRequest(TypedDict, total=False):
    """The user whose flags are requested."""

    api_key: Required[str]
    distinct_id: Required[str]
    groups: dict[str, str]
    person_properties: JsonObject
    group_properties: dict[str, JsonObject]


class DecideConfig(TypedDict):
    """What a client may do."""

    enable_collect_everything: bool


class DecideResponse(TypedDict):
    """The flags of a user."""

    config: DecideConfig
    toolbarParams: JsonObject
    errorsWhileComputingFlags: bool
    isAuthenticated: bool
    supportedCompression: list[str]
    featureFlags: dict[str, bool | str]
    featureFlagPayloads: dict[str, str]


class CaptureRequest(TypedDict, total=False):
    """One event."""

    api_key: Required[str]
    event: Required[str]
    distinct_id: Required[str]
    properties: JsonObject
    timestamp: Timestamp


class BatchEvent(TypedDict, total=False):
    """One of several events; its distinct_id may stand in its properties."""

    event: Required[str]
    distinct_id: str
    properties: JsonObject
    timestamp: Timestamp


class BatchRequest(TypedDict, total=False):
    """Several events."""

    api_key: Required[str]
    historical_migration: bool
    batch: Required[list[BatchEvent]]


class AcceptedEvents(TypedDict):
    """What is answered to events (gap `capture-answer`)."""

    status: str


@dataclass(frozen=True, slots=True)
class IngestionEndpoint(Generic[Q, R]):
    """One of the three; all are POST with a JSON body that has the project key in it."""

    name: str
    path: str
    summary: str
    request: type[Q]
    response: type[R]
    query: Mapping[str, str] = field(default_factory=dict)
    """What stands behind the path."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that it knows, none of them needed, and what each does."""
    method: Method = Method.POST
    status: int = 200

    @property
    def url(self) -> str:
        """Path and query, as the interface document writes them."""
        return self.path + "".join(f"?{name}={value}" for name, value in self.query.items())


DECIDE: Final = IngestionEndpoint(
    "decide",
    "/decide",
    "Evaluate the feature flags of a user.",
    DecideRequest,
    DecideResponse,
    {"v": "3"},
    {FORWARDED_FOR: "The address that the user's place is looked up by, instead of the sender's."},
)
CAPTURE: Final = IngestionEndpoint(
    "capture", "/capture/", "Accept one event.", CaptureRequest, AcceptedEvents
)
BATCH: Final = IngestionEndpoint(
    "batch", "/batch/", "Accept any number of events.", BatchRequest, AcceptedEvents
)
INGESTION: Final[tuple[IngestionEndpoint[Any, Any], ...]] = (DECIDE, CAPTURE, BATCH)


@dataclass(frozen=True, slots=True)
class IngestionFailure:
    """A request that is refused whole (gap `ingestion-failures`); the body is a line
    of plain text.
    """

    status: int
    when: str
    endpoints: tuple[str, ...] = tuple(endpoint.name for endpoint in INGESTION)


FAILURES: Final = (
    IngestionFailure(
        400, "The body isn't JSON, can't be decoded, is empty, or has none of the known shapes."
    ),
    IngestionFailure(400, "No `distinct_id`.", ("decide",)),
    IngestionFailure(
        401, "No project key, a malformed one, one that doesn't exist, or several in one request."
    ),
    IngestionFailure(413, "The body has 20 MB or more."),
)


@dataclass(frozen=True, slots=True)
class EventProperty:
    """A property that an event has a meaning by."""

    name: str
    type: Any
    """Of its value, as a type."""
    required: bool = False


@dataclass(frozen=True, slots=True)
class EventRule:
    """What events of some names do. No name stands for every event."""

    names: tuple[str, ...]
    properties: tuple[EventProperty, ...]
    effect: str


_EVERY: Final = ()
EVENTS: Final = (
    EventRule(_EVERY, (), "Is recorded, whatever its name is."),
    EventRule(("$pageview",), (EventProperty("$current_url", str),), "A page was seen."),
    EventRule(("$screen",), (EventProperty("$screen_name", str),), "A screen of an app was seen."),
    EventRule(
        ("$identify",), (EventProperty("$set", JsonObject),), "Sets properties of the person."
    ),
    EventRule(
        ("$create_alias",),
        (EventProperty("alias", str),),
        "Merges the event's distinct_id into `alias`, which becomes the main one.",
    ),
    EventRule(
        ("$groupidentify",),
        (
            EventProperty("$group_type", str),
            EventProperty("$group_key", str),
            EventProperty("$group_set", JsonObject),
        ),
        "Makes a group, or sets its properties.",
    ),
    EventRule(
        _EVERY, (EventProperty("$groups", dict[str, str]),), "Belongs to these groups; makes none."
    ),
    EventRule(
        ("survey sent", "survey shown", "survey dismissed"),
        (EventProperty("$survey_id", str, required=True), EventProperty("$survey_response", Json)),
        "Counts for a survey; the response belongs to `survey sent`.",
    ),
    EventRule(
        ("$feature_flag_called",),
        (EventProperty("$feature_flag", str), EventProperty("$feature_flag_response", Json)),
        "Counts as a use of a flag.",
    ),
    EventRule(
        _EVERY,
        (EventProperty(f"{FEATURE_PREFIX}<flag_key>", str),),
        "Is attributed to a variant of that flag.",
    ),
    EventRule(
        _EVERY,
        (EventProperty(ANONYMOUS, bool),),
        "Is anonymous if that is false, and identified otherwise.",
    ),
)
"""The rows of the document's table "Events", and below them what its text says of properties of
every event.
"""
