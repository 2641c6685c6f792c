"""A small database of places in MaxMind's format, of networks that no one has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mmdb_writer import MMDBWriter
from netaddr import IPSet


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """What the database says of a network."""

    code: str
    country: str
    city: str


PLACES: Final[Mapping[str, NamedPlace]] = {
    "203.0.113.0/24": NamedPlace("DE", "Germany", "Berlin"),
    "2001:db8::/32": NamedPlace("JP", "Japan", "Osaka"),
}


def write_places(path: Path, places: Mapping[str, NamedPlace] = PLACES) -> Path:
    """Write the database, with the members of a record that a city database has."""
    writer = MMDBWriter(
        ip_version=6, database_type="GeoLite2-City", languages=["en"], ipv4_compatible=True
    )
    for network, place in places.items():
        record = {
            "city": {"names": {"en": place.city}},
            "continent": {"code": "XX", "names": {"en": f"Continent of {place.country}"}},
            "country": {"iso_code": place.code, "names": {"en": place.country}},
            "location": {"time_zone": f"Example/{place.city}"},
            "postal": {"code": f"{place.code}-1"},
        }
        writer.insert_network(IPSet([network]), record)
    writer.to_db_file(str(path))
    return path
