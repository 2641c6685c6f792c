"""Exports of four vendors with the oddities of real ones, and what each vendor's rules make of
them: a model beside the generator, from the vendors' documents, without the code that is tested.

A generator knows who did what and when; it writes the records as the vendor does, and says which
events and groups there have to be, and what each event says of its person: `person_model` says what
becomes of persons. The sources of the rules are named in `docs/maintainers/sandbox-sources.md`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid5
from zoneinfo import ZoneInfo

from tests.end_to_end.person_model import PersonUpdate

NAMESPACE: Final = UUID("6f1c1d5e-6f0e-5f8f-9f0a-7b1d7f7d6b02")
"""Of derived uuids: it never changes."""
BEGINNING: Final = datetime(2024, 9, 1, 8, tzinfo=UTC)
PLANS: Final = ("free", "pro", "team")
CITIES: Final = ("Berlin", "Paris", "", "Lima")
"""Of which one is none."""
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """An event that has to be there."""

    event: str
    distinct_id: str
    time: datetime
    properties: Record = field(default_factory=dict)
    """Some of those that it has."""
    set: Record = field(default_factory=dict)
    """What it says of its person: see `PersonUpdate`."""
    once: Record = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()
    always: bool = False

    @property
    def said(self) -> PersonUpdate:
        """What it means for its person."""
        about = self.set, self.once, self.unset, self.joins, self.always
        return PersonUpdate(
            self.distinct_id, self.time, *about, carries=self.event != "$groupidentify"
        )


@dataclass(slots=True)
class ModelledExport:
    """Records, and what has to become of them."""

    form: str
    options: tuple[str, ...] = ()
    records: list[Record] = field(default_factory=list)
    events: dict[str, Wanted] = field(default_factory=dict)
    """By uuid: those that a record is."""
    joins: int = 0
    """Events beside them that join a device, or another id, with a user."""
    silent: int = 0
    """Records that become no event."""
    repeats: int = 0
    refused: int = 0
    sessions: dict[str, str] = field(default_factory=dict)
    """By uuid: the session of an event; others have none."""
    group_states: list[tuple[str, tuple[str, str], Record]] = field(default_factory=list)
    """What events say of groups: the event's uuid, the group, its state."""
    _uuids: list[str] = field(default_factory=list)
    """Of each record; an empty text for those that are no event."""

    def add(self, record: Record, uuid: str = "", wanted: Wanted | None = None) -> None:
        """Add a record, and the event that it has to be; the same record again is a repeat."""
        self.records.append(record)
        self._uuids.append(uuid)
        if wanted is not None:
            self.events[uuid] = wanted

    def shuffle(self, near: int, seed: int) -> None:
        """Put records out of the order of time, none further than about so many places."""
        dice = random.Random(seed)
        places = [(at + dice.randrange(near), at) for at in range(len(self.records))]
        order = [at for _, at in sorted(places)]
        self.records = [self.records[at] for at in order]
        self._uuids = [self._uuids[at] for at in order]

    def sent(self, *, is_sorted: bool) -> dict[str, Wanted]:
        """The events in the order in which they are sent."""
        if is_sorted:
            return dict(sorted(self.events.items(), key=lambda item: item[1].time))
        return {uuid: self.events[uuid] for uuid in self._uuids if uuid}

    def groups(self, *, is_sorted: bool) -> dict[tuple[str, str], Record]:
        """The last state of each group, if events are sent in that order."""
        turns = {uuid: turn for turn, uuid in enumerate(self.sent(is_sorted=is_sorted))}
        states = sorted(self.group_states, key=lambda state: turns[state[0]])
        return {group: state for _, group, state in states}

    def lines(self) -> str:
        """The records as a file."""
        return "".join(json.dumps(record) + "\n" for record in self.records)


def derived(*parts: object) -> str:
    """The uuid that follows from a vendor's key."""
    return str(uuid5(NAMESPACE, json.dumps(parts, separators=(",", ":"))))


def _moments(dice: random.Random, time: datetime = BEGINNING) -> Iterable[datetime]:
    while True:
        time += timedelta(milliseconds=dice.randrange(1, 900_000))
        yield time


def amplitude(visits: int = 160, seed: int = 1) -> ModelledExport:
    """Visits of a site and an app: devices are used before signing in, some by two users, and some
    users have two; hours overlap, so that records come twice; most visits begin with a session's
    start. Persons and groups change, also back to what they were.
    """
    dice = random.Random(seed)
    made = ModelledExport("amplitude")
    moments = iter(_moments(dice))
    owners: dict[str, str] = {}
    groups: dict[tuple[str, str], Record] = {}
    for visit in range(visits):
        number = dice.randrange(30)
        shared = number // 2 if number % 10 == 1 else number
        second = "-2" if number % 5 == 2 and visit % 2 else ""
        device = f"device-{shared}-{'app' if number % 3 == 0 else 'web'}{second}"
        user = f"user-{number}@example.com"
        session = int(next(moments).timestamp() * 1000) if visit % 11 else -1
        for name, signed in AMPLITUDE_VISIT:
            time = next(moments)
            uuid = str(UUID(int=dice.getrandbits(128), version=4))
            record = _amplitude_record(name, number, visit) | {
                "user_id": user if signed else dice.choice((None, "")),
                "device_id": device,
                "session_id": session,
                "uuid": uuid,
                "event_time": time.strftime("%Y-%m-%d %H:%M:%S.%f"),
                "server_upload_time": (time + timedelta(seconds=2)).isoformat(" "),
            }
            if name.startswith("session"):
                made.add(record)
                made.silent += 1
                continue
            is_first = signed and device not in owners
            if is_first:  # a device is its first user's
                owners[device] = user
                made.joins += 1
            ours = {"$identify": "$set", "[Amplitude] Page Viewed": "$pageview"}.get(name, name)
            wanted = Wanted(
                ours,
                user if signed else device,
                time,
                _amplitude_properties(name, number, visit) | {"$device_id": device},
                joins=(device,) if is_first else (),
                **_amplitude_person(name, number, visit),
            )
            made.add(record, uuid, wanted)
            if dice.random() < 0.05:
                made.add(record, uuid)
                made.repeats += 1
            if session > 0:
                made.sessions[uuid] = f"{device} {session}"
            if name == "Paid":
                group = "company", f"company-{number % 7}"
                state = {"size": visit // 50 % 3}
                made.joins += groups.get(group) != state
                groups[group] = state
                made.group_states.append((uuid, group, state))
    return made


AMPLITUDE_VISIT: Final = (
    ("session_start", False),
    ("$identify", False),
    ("[Amplitude] Page Viewed", False),
    ("Signed In", True),
    ("Paid", True),
    ("session_end", True),
)
"""The events of a visit, and whether their user has signed in."""


def _amplitude_record(name: str, number: int, visit: int) -> Record:
    is_app = number % 3 == 0
    software = (
        {"platform": "iOS", "os_name": "ios", "os_version": "17.2", "device_type": "Apple iPhone"}
        if is_app
        else {
            "platform": "Web",
            "os_name": "Chrome",
            "os_version": "121",
            "device_type": "Windows",
        }
    )
    page = {
        "[Amplitude] Page URL": f"https://a.example/p/{visit}",
        "[Amplitude] Page Location": f"https://a.example/p/{visit}?q=1",
    }
    record: Record = {
        "event_type": name,
        "event_properties": page if name.startswith("[") else {"n": visit},
        "user_properties": {},
        "city": CITIES[visit % 4],
        **software,
    }
    said = _amplitude_person(name, number, visit)
    person = {key: said["set"][key] for key in said["set"] if key[0] != "$"}
    if name == "$identify":
        first = {"initial_utm_source": "EMPTY", "first_visit": visit}
        first["initial_referrer"] = said["once"]["$initial_referrer"]
        record["user_properties"] = {"$set": person, "$setOnce": first}
        if said["unset"]:
            record["user_properties"]["$unset"] = dict.fromkeys(said["unset"], "-")
    elif person:
        record["user_properties"] = person
    if name == "Paid":
        record["groups"] = {"company": f"company-{number % 7}"}
        record["group_properties"] = {"company": {"size": visit // 50 % 3}}
    return record


def _amplitude_person(name: str, number: int, visit: int) -> dict[str, Any]:
    """What an event says of its person: the place always, an operation, or all that there is."""
    said: dict[str, Any] = {"set": {}, "once": {}, "unset": ()}
    match name:
        case "$identify":
            said["set"]["theme"] = ("dark", "light", "blue")[visit % 3]
            said["once"] = {
                "$initial_referrer": f"https://r.example/{visit % 9}",
                "first_visit": visit,
            }
            if visit % 7 == 3:
                said["set"]["coupon"] = f"c{visit}"
            elif visit % 3 == 0:
                said["unset"] = ("coupon",)
        case "Signed In":
            said["set"] = {"plan": PLANS[(visit // 40 + number) % 3], "address": {"n": number}}
        case "Paid":
            said["set"] = {"plan": PLANS[(visit // 30 + number) % 3], "address": {"n": number}}
            if number % 2:  # what the device said, too, and perhaps something else
                said["set"]["theme"] = ("dark", "light", "blue")[number % 3]
    if city := CITIES[visit % 4]:
        said["set"]["$geoip_city_name"] = city
    return said


def _amplitude_properties(name: str, number: int, visit: int) -> Record:
    wanted: Record = (
        {"$os": "iOS", "$os_version": "17.2", "$device_type": "Mobile"}
        if number % 3 == 0
        else {"$os": "Windows", "$browser": "Chrome", "$browser_version": 121}
        | {"$device_type": "Desktop"}
    )
    if name.startswith("["):
        wanted["$current_url"] = f"https://a.example/p/{visit}?q=1"
    return wanted


def mixpanel(visits: int = 160, seed: int = 2) -> ModelledExport:
    """A project with simplified ID merge, whose epochs are those of Los Angeles, until after clocks
    went back; repeated records, and two users that were merged.
    """
    dice = random.Random(seed)
    zone = "America/Los_Angeles"
    made = ModelledExport("mixpanel", ("--zone", zone))
    moments = iter(_moments(dice, datetime(2024, 10, 28, tzinfo=UTC)))
    paired = set[str]()

    def add(name: str, distinct_id: str, joins: str = "", **more: Any) -> None:
        time = next(moments).replace(microsecond=0)
        shown = int(time.astimezone(ZoneInfo(zone)).replace(tzinfo=UTC).timestamp())
        insert = f"{len(made.records):08x}"
        properties = {
            "time": shown,
            "distinct_id": distinct_id,
            "$insert_id": insert,
            "mp_country_code": "GB",
            "mp_lib": "web",
            "mp_processing_time_ms": int(time.timestamp() * 1000) + 4_321,
            **more,
        }
        record = {"event": name, "properties": properties}
        uuid = derived("mixpanel", name, int(time.timestamp()) * 1_000_000, distinct_id, insert)
        ours = {"$mp_web_page_view": "$pageview", "$merge": "$merge_dangerously"}.get(name, name)
        places = {"$geoip_country_code": "GB", "$geoip_country_name": "United Kingdom"}
        about = {"$lib": "web", **places}
        wanted = Wanted(
            ours, distinct_id, time, about, joins=(joins,) if joins else (), always=name == "$merge"
        )
        made.add(record, uuid, wanted)
        if dice.random() < 0.04:
            made.add(record, uuid)
            made.repeats += 1

    for visit in range(visits):
        number = dice.randrange(40)
        device = f"{number:08x}-phone{visit % 2}"
        user = f"user-{number}"
        add("$mp_web_page_view", f"$device:{device}", **{"$device_id": device})
        for _ in range(3):
            is_first = device not in paired
            if is_first:
                paired.add(device)
                made.joins += 1
            joins = f"$device:{device}" if is_first else ""
            add("Played", user, joins, **{"$device_id": device, "$user_id": user})
    add("$merge", "user-1", "user-2", **{"$distinct_ids": ["user-1", "user-2"]})
    identified = {"$identified_id": "user-3", "$anon_id": "old-phone"}
    add("$identify", "user-3", "old-phone", **identified)
    return made


def _calls(made: ModelledExport, visits: int, seed: int, *, rudder: bool) -> ModelledExport:
    dice = random.Random(seed)
    moments = iter(_moments(dice))
    for visit in range(visits):
        number = dice.randrange(30)
        anonymous = f"anonymous-{number - number % 10 // 9}{'-2' if visit % 5 == 2 else ''}"
        session = int(next(moments).timestamp())
        kinds = ["page", "identify", "track", "group", "screen"]
        if visit % 6 == 1:
            kinds.insert(1, "preferred")
        if number % 10 == 9 and visit % 3:
            kinds.insert(0, "paid")
        for kind in kinds:
            time = next(moments)
            time = time.replace(microsecond=time.microsecond // 1000 * 1000)
            call, wanted = _call(kind, number, visit, anonymous, time, rudder=rudder)
            call["messageId"] = f"{kind}-{visit}-{seed}"
            uuid = derived("segment", call["messageId"])
            if rudder:
                call["context"]["sessionId"] = session
                made.sessions[uuid] = f"{anonymous} {session * 1000}"
            if kind == "group":
                made.group_states.append((uuid, ("company", call["groupId"]), call["traits"]))
            made.add(call, uuid, wanted)
            if dice.random() < 0.03:
                made.add(call, uuid)
                made.repeats += 1
    _add_odd_calls(made)
    return made


def _call(
    kind: str, number: int, visit: int, anonymous: str, time: datetime, *, rudder: bool
) -> tuple[Record, Wanted]:
    """A call of a visit, and the event that it has to be."""
    signed = kind not in {"page", "preferred"}
    user = f"user-{number}"
    stamp = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    context: Record = {
        "campaign": {"name": "spring", "source": "mail"},
        "os": {"name": "Windows", "version": "11"},
        "locale": "de-DE",
        "screen": {"width": 1280},
    }
    call: Record = {
        "type": {"preferred": "identify", "paid": "track"}.get(kind, kind),
        "anonymousId": anonymous,
        "userId": user if signed else None,
        "timestamp": stamp,
        "originalTimestamp": "2020-01-01T00:00:00.000Z",
        "receivedAt": stamp,
        "context": context,
    }
    said: Record = {}
    if kind == "preferred":
        said = {"theme": ("dark", "light", "blue")[visit % 3]}
    elif signed and (rudder or kind == "identify"):
        said = _traits(number, visit)
    if rudder:
        context["traits"] = said
        call |= {"channel": "web", "rudderId": "r"}
    elif said:
        call["traits"] = said
    properties: Record = {"utm_campaign": "spring", "utm_source": "mail"}
    properties |= {"$os_version": "11", "$locale": "de-DE", "$screen_width": 1280}
    company = f"company-{number % 5}"
    match kind:
        case "track" | "paid":
            call["event"] = "Paid"
            context["groupId"] = company
            properties["$groups"] = {"company": company}
        case "group":
            call |= {"groupId": company, "traits": {"size": visit // 30 % 3}}
            said = {}  # the service takes nothing of a person from it
        case "screen":
            call["event" if rudder else "name"] = "Cart"
            properties["$screen_name"] = "Cart"
    return call, Wanted(
        CALLS.get(kind, "Paid"),
        user if signed else anonymous,
        time,
        properties,
        set=said,
        joins=(anonymous,) if kind == "identify" else (),
    )


CALLS: Final = {
    "page": "$pageview",
    "screen": "$screen",
    "group": "$groupidentify",
    "identify": "$identify",
    "preferred": "$set",
}
"""The event of each kind of call; `preferred` is an identify call of a visitor who isn't known."""


def _traits(number: int, visit: int) -> Record:
    """All that a site knows of a user; a coupon that was used is null."""
    traits: Record = {
        "email": f"u{number}@example.com",
        "plan": PLANS[(visit // 30 + number) % 3],
        "address": {"street": number},
    }
    if visit % 5 < 2:
        traits["coupon"] = None if visit % 5 else f"c{visit}"
    if visit % 4 == 0:
        traits["theme"] = "dark"
    return traits


def _add_odd_calls(made: ModelledExport) -> None:
    """One of an id that many share, which is sent, and one without a time, which is refused."""
    first, odd = next(iter(made.events)), derived("segment", "odd-1")
    shared = replace(made.events[first], distinct_id="undefined")
    made.add({**made.records[0], "userId": "undefined", "messageId": "odd-1"}, odd, shared)
    if first in made.sessions:
        made.sessions[odd] = made.sessions[first]
    made.add({**made.records[0], "timestamp": "soon", "messageId": "odd-2"})
    made.refused = 1


def segment(visits: int = 160, seed: int = 3) -> ModelledExport:
    """Calls of a site: page, identify, track, group, screen, some of them out of the order of time;
    some came twice, one can't be imported. Users have several devices, or share one.
    """
    options = ("--group-type", "company", "--accept", "illegal-ids")
    made = _calls(ModelledExport("segment", options), visits, seed, rudder=False)
    made.shuffle(40, seed)
    return made


def rudderstack(visits: int = 160, seed: int = 4) -> ModelledExport:
    """The same with traits in the context, sessions, and in the order of time."""
    options = ("--group-type", "company", "--accept", "illegal-ids")
    return _calls(ModelledExport("segment", options), visits, seed, rudder=True)
