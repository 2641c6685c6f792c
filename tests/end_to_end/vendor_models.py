"""Exports of four vendors with the oddities of real ones, and what each vendor's rules make of
them: a model beside the generator, from the vendors' documents, without the code that is tested.

A generator knows who did what and when; it writes the records as the vendor does, and says which
events, persons and groups there have to be. The sources of the rules are named in
`docs/reference/import-formats.md`.
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

NAMESPACE: Final = UUID("6f1c1d5e-6f0e-5f8f-9f0a-7b1d7f7d6b02")
"""Of derived uuids: it never changes."""
BEGINNING: Final = datetime(2024, 9, 1, 8, tzinfo=UTC)
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """An event that has to be there."""

    event: str
    distinct_id: str
    time: datetime
    properties: Record = field(default_factory=dict)
    """Some of those that it has."""


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
    groups: dict[tuple[str, str], Record] = field(default_factory=dict)
    """The properties of each."""
    silent: int = 0
    """Records that become no event."""
    repeats: int = 0
    refused: int = 0
    person_properties: dict[str, Record] = field(default_factory=dict)
    """By a distinct id: some of those that its person has."""
    sessions: dict[str, str] = field(default_factory=dict)
    """By uuid: the session of an event; others have none."""
    _owners: dict[str, str] = field(default_factory=dict)

    def same(self, one: str, other: str) -> None:
        """Both ids are one person's."""
        first, second = self._owner(one), self._owner(other)
        if first != second:
            self._owners[first] = second

    def _owner(self, name: str) -> str:
        while (owner := self._owners.setdefault(name, name)) != name:
            name = owner
        return name

    @property
    def persons(self) -> set[frozenset[str]]:
        """The ids of each person."""
        found: dict[str, set[str]] = {}
        for name in [*self._owners, *(each.distinct_id for each in self.events.values())]:
            found.setdefault(self._owner(name), set()).add(name)
        return {frozenset(each) for each in found.values()}

    def lines(self) -> str:
        """The records as a file."""
        return "".join(json.dumps(each) + "\n" for each in self.records)


def derived(*parts: object) -> str:
    """The uuid that follows from a vendor's key."""
    return str(uuid5(NAMESPACE, json.dumps(parts, separators=(",", ":"))))


def _moments(dice: random.Random, time: datetime = BEGINNING) -> Iterable[datetime]:
    while True:
        time += timedelta(milliseconds=dice.randrange(1, 900_000))
        yield time


def amplitude(visits: int = 500, seed: int = 1) -> ModelledExport:
    """Visits of a site and an app: devices are used before signing in, some by two users; hours
    overlap, so that records come twice; most visits begin with a session's start.
    """
    dice = random.Random(seed)
    made = ModelledExport("amplitude")
    moments = iter(_moments(dice))
    owners: dict[str, str] = {}
    for visit in range(visits):
        number = dice.randrange(90)
        shared = number // 2 if number % 10 == 1 else number
        device = f"device-{shared}-{'app' if number % 3 == 0 else 'web'}"
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
            made.records.append(record)
            if name.startswith("session"):
                made.silent += 1
                continue
            if dice.random() < 0.05:
                made.records.append(record)
                made.repeats += 1
            wanted = _amplitude_properties(name, number, visit) | {"$device_id": device}
            ours = {"$identify": "$set", "[Amplitude] Page Viewed": "$pageview"}.get(name, name)
            made.events[uuid] = Wanted(ours, user if signed else device, time, wanted)
            if session > 0:
                made.sessions[uuid] = f"{device} {session}"
            group = "company", f"company-{number % 7}"
            if name == "Paid" and group not in made.groups:
                made.groups[group] = {"size": number % 7}
                made.joins += 1
            if name == "Signed In":
                made.joins += device not in owners
                if owners.setdefault(device, user) == user:  # a device is its first user's
                    made.same(device, user)
                    made.person_properties[user] = {
                        "theme": "dark",
                        "$initial_referrer": "https://r.example/",
                    }
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
        "city": "Berlin",
        **software,
    }
    if name == "$identify":
        first = {"initial_utm_source": "EMPTY", "initial_referrer": "https://r.example/"}
        record["user_properties"] = {"$set": {"theme": "dark"}, "$setOnce": first}
    if name == "Paid":
        record["groups"] = {"company": f"company-{number % 7}"}
        record["group_properties"] = {"company": {"size": number % 7}}
    return record


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


def mixpanel(visits: int = 700, seed: int = 2) -> ModelledExport:
    """A project with simplified ID merge, whose epochs are those of Los Angeles, until after clocks
    went back; repeated records, and two users that were merged.
    """
    dice = random.Random(seed)
    zone = "America/Los_Angeles"
    made = ModelledExport("mixpanel", ("--zone", zone))
    moments = iter(_moments(dice, datetime(2024, 10, 28, tzinfo=UTC)))
    paired = set[tuple[str, str]]()

    def add(name: str, distinct_id: str, **more: Any) -> str:
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
        made.records += [record] * (2 if dice.random() < 0.04 else 1)
        made.repeats += len(made.records) > 1 and made.records[-2] is record
        uuid = derived("mixpanel", name, int(time.timestamp()) * 1_000_000, distinct_id, insert)
        ours = {"$mp_web_page_view": "$pageview", "$merge": "$merge_dangerously"}.get(name, name)
        places = {"$geoip_country_code": "GB", "$geoip_country_name": "United Kingdom"}
        made.events[uuid] = Wanted(ours, distinct_id, time, {"$lib": "web", **places})
        return uuid

    for visit in range(visits):
        number = dice.randrange(120)
        device = f"{number:08x}-phone{visit % 2}"
        user = f"user-{number}"
        add("$mp_web_page_view", f"$device:{device}", **{"$device_id": device})
        for _ in range(3):
            add("Played", user, **{"$device_id": device, "$user_id": user})
        if (user, device) not in paired:
            paired.add((user, device))
            made.joins += 1
            made.same(user, f"$device:{device}")
    add("$merge", "user-1", **{"$distinct_ids": ["user-1", "user-2"]})
    made.same("user-1", "user-2")
    add("$identify", "user-3", **{"$identified_id": "user-3", "$anon_id": "old-phone"})
    made.same("user-3", "old-phone")
    return made


def _calls(made: ModelledExport, visits: int, seed: int, *, rudder: bool) -> ModelledExport:
    dice = random.Random(seed)
    moments = iter(_moments(dice))
    for visit in range(visits):
        number = dice.randrange(100)
        anonymous = f"anonymous-{number}"
        user = f"user-{number}"
        session = int(next(moments).timestamp())
        traits = {"email": f"u{number}@example.com", "plan": f"plan-{number % 4}"}
        for kind in ("page", "identify", "track", "group", "screen"):
            time = next(moments)
            time = time.replace(microsecond=time.microsecond // 1000 * 1000)
            message = f"{kind}-{visit}-{seed}"
            stamp = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            signed = kind != "page"
            context: Record = {
                "campaign": {"name": "spring", "source": "mail"},
                "os": {"name": "Windows", "version": "11"},
                "locale": "de-DE",
                "screen": {"width": 1280},
            }
            call: Record = {
                "type": kind,
                "messageId": message,
                "anonymousId": anonymous,
                "userId": user if signed else None,
                "timestamp": stamp,
                "originalTimestamp": "2020-01-01T00:00:00.000Z",
                "receivedAt": stamp,
                "context": context,
            }
            if rudder:
                context["sessionId"] = session
                context["traits"] = traits if signed else {}
                call |= {"channel": "web", "rudderId": "r"}
            elif kind == "identify":
                call["traits"] = traits
            wanted: Record = {"utm_campaign": "spring", "utm_source": "mail", "$os_version": "11"}
            wanted |= {"$locale": "de-DE", "$screen_width": 1280}
            match kind:
                case "track":
                    call["event"] = "Paid"
                    context["groupId"] = f"company-{number % 5}"
                    wanted["$groups"] = {"company": f"company-{number % 5}"}
                case "group":
                    call |= {"groupId": f"company-{number % 5}", "traits": {"size": number % 5}}
                    made.groups["company", f"company-{number % 5}"] = {"size": number % 5}
                case "screen":
                    call["event" if rudder else "name"] = "Cart"
                    wanted["$screen_name"] = "Cart"
            made.records.append(call)
            if dice.random() < 0.03:
                made.records.append(call)
                made.repeats += 1
            names = {"page": "$pageview", "screen": "$screen", "group": "$groupidentify"}
            name = {**names, "identify": "$identify", "track": "Paid"}[kind]
            uuid = derived("segment", message)
            made.events[uuid] = Wanted(name, user if signed else anonymous, time, wanted)
            if rudder:
                made.sessions[uuid] = f"{anonymous} {session * 1000}"
        made.same(user, anonymous)
        made.person_properties[user] = traits
    _add_odd_calls(made)
    return made


def _add_odd_calls(made: ModelledExport) -> None:
    """One of an id that many share, which is sent, and one without a time, which is refused."""
    made.records.append({**made.records[0], "userId": "undefined", "messageId": "odd-1"})
    first, odd = next(iter(made.events)), derived("segment", "odd-1")
    made.events[odd] = replace(made.events[first], distinct_id="undefined")
    if first in made.sessions:
        made.sessions[odd] = made.sessions[first]
    made.records.append({**made.records[0], "timestamp": "soon", "messageId": "odd-2"})
    made.refused = 1


def segment(visits: int = 500, seed: int = 3) -> ModelledExport:
    """Calls of a site: page, identify, track, group, screen; some came twice, two can't be
    imported.
    """
    options = ("--group-type", "company", "--accept", "illegal-ids")
    return _calls(ModelledExport("segment", options), visits, seed, rudder=False)


def rudderstack(visits: int = 500, seed: int = 4) -> ModelledExport:
    """The same with traits in the context, and sessions."""
    options = ("--group-type", "company", "--accept", "illegal-ids")
    return _calls(ModelledExport("segment", options), visits, seed, rudder=True)
