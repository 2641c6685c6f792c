"""Where a client is, for flags by places: seven properties of an address, by a database in
MaxMind's format (`--geoip FILE`).

The address is the first one in the header `HTTP_X_FORWARDED_FOR`, literally so called (interface
document: "POST /decide?v=3"), else in `X-Forwarded-For`, wherever it is; a first one that is none
makes it the peer's, as no header does (`extract_client_ip` in
`rust/feature-flags/src/api/endpoint.rs` of PostHog/posthog at 00a9ba8f059a).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final

import maxminddb

from forwarder.core.configured_files import check_file
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError

_HEADERS: Final = ("http_x_forwarded_for", "x-forwarded-for")
_PROPERTIES: Final[Mapping[str, tuple[str, ...]]] = {
    "$geoip_city_name": ("city", "names", "en"),
    "$geoip_country_name": ("country", "names", "en"),
    "$geoip_country_code": ("country", "iso_code"),
    "$geoip_continent_name": ("continent", "names", "en"),
    "$geoip_continent_code": ("continent", "code"),
    "$geoip_postal_code": ("postal", "code"),
    "$geoip_time_zone": ("location", "time_zone"),
}
"""The path of each property in a record of a city database; a database of
countries has some of them.
"""


class Places:
    """An open database of places. Raises `ConfigurationError` if `path` is none."""

    def __init__(self, path: Path) -> None:
        hint = "Name a city or country database in MaxMind's format (.mmdb)."
        try:
            check_file(path)
            self._reader = maxminddb.open_database(path)
        except OSError as error:
            raise ConfigurationError(
                f"{path} can't be read: {error_text(error)}", hint=hint
            ) from None
        except (maxminddb.InvalidDatabaseError, ValueError):
            raise ConfigurationError(f"{path} is not a database of places", hint=hint) from None

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def properties(self, address: str) -> dict[str, str]:
        """The properties of an address that are known; none of an address
        that is not in the database.
        """
        try:
            record: Any = self._reader.get(address)
        except (ValueError, maxminddb.InvalidDatabaseError):
            # an IPv6 address in a database of IPv4, or a damaged record
            return {}
        values = {name: _value(record, path) for name, path in _PROPERTIES.items()}
        return {name: value for name, value in values.items() if isinstance(value, str)}


Locate = Callable[[str], Mapping[str, str]]
"""The GeoIP properties of an address."""


def client_address(headers: Mapping[str, str], peer: str) -> str | None:
    """The address that a request comes from, None if it has none. `headers` have
    lower-case names.
    """
    said = next((headers[name] for name in _HEADERS if headers.get(name, "").strip()), peer)
    address = _address(said.partition(",")[0].strip()) or _address(peer)
    return None if address is None else str(address)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """An address, also with a port, in brackets, or mapped to IPv6."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    with suppress(ValueError):
        address = ip_address(text.partition("%")[0])
        return getattr(address, "ipv4_mapped", None) or address
    return None


def _value(record: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        record = record.get(name) if isinstance(record, dict) else None
    return record
