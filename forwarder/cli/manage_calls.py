"""Makes the calls of `forwarder manage`, and says what comes of them; what goes wrong becomes words and an exit code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from forwarder.cli.asking import may
from forwarder.cli.main import report
from forwarder.cli.manage_access import Access
from forwarder.cli.manage_fields import fields_of
from forwarder.cli.manage_output import Rows, columns_of, inside, print_answer, print_json, print_lines
from forwarder.cli.manage_words import WORDS, endpoint_of
from forwarder.cli.visible import visible, visible_lines
from forwarder.contract.endpoints import GET_DOMAIN, VERIFY_DOMAIN, Endpoint
from forwarder.contract.resources import PAGE_SIZE, Domain
from forwarder.core.errors import ForwarderError
from forwarder.management import ApiError, InvalidCall, Pages

NO: Final = 1
WRONG_USAGE: Final = 2
REFUSED: Final = 3
_NOT_NOW: Final = frozenset({401, 403, 407, 408, 429})
_LOOKED_THROUGH: Final = 1000
"""Items of a page where one is looked for."""


def failed(error: ForwarderError) -> int:
    """Say an error on stderr; the exit code for it."""
    report(ForwarderError(visible_lines(error.message), hint=visible_lines(error.hint)))
    if not isinstance(error, ApiError) or isinstance(error, InvalidCall):
        return WRONG_USAGE
    status = error.status
    return NO if status is not None and 400 <= status < 500 and status not in _NOT_NOW else REFUSED


def call(endpoint: Endpoint[Any, Any], access: Access, ids: Mapping[str, object], body: Any, *, as_table: bool) -> int:
    """Make one call, and print its answer; the exit code for it. What was not applied is said on stderr. Raises `ForwarderError`."""
    value, unverified = asyncio.run(_once(endpoint, access, ids, body))
    if not as_table:
        print_json(value)
    elif unverified is None or value is not None:
        print_answer(endpoint, ids, value)
    sys.stdout.flush()
    if unverified is not None:
        report(_not_verified(unverified))
        return NO
    for line in _not_applied(endpoint, body, value):
        sys.stderr.write(f"{visible(line)}\n")
    return 0


async def _once(endpoint: Endpoint[Any, Any], access: Access, ids: Mapping[str, object], body: Any) -> tuple[Any, Domain | None]:
    """What a call answers; also the domain that was to be verified and isn't. Cancellation drops the connection."""
    async with access.client() as client:
        value = await client.call(endpoint, {**access.ids, **ids}, body)
        if endpoint is not VERIFY_DOMAIN:
            return value, None
        domain = value if isinstance(value, dict) else await client.call(GET_DOMAIN, {**access.ids, **ids})
    return value, None if domain["is_verified"] else cast("Domain", domain)


def _not_verified(domain: Domain) -> ForwarderError:
    record, challenge = visible(f"_posthog-challenge.{domain['domain']}"), visible(domain["verification_challenge"])
    return ForwarderError(
        f"{visible(domain['domain'])} is not verified: no TXT record of {record} has its challenge",
        hint=f"Publish the record with {challenge}, wait until the DNS has it, and verify again.",
    )


def _not_applied(endpoint: Endpoint[Any, Any], body: Any, value: Any) -> Iterator[str]:
    """Which fields were sent and have another value in the answer (gap `ignored-fields`)."""
    if not isinstance(body, dict) or not isinstance(value, dict):
        return
    known = {field.name for field in fields_of(endpoint)}
    unknown = [name for name, sent in body.items() if name not in known and value.get(name) != sent]
    if unknown:
        yield f"Ignored: {', '.join(unknown)}. {endpoint.name} does not accept {'it' if len(unknown) == 1 else 'them'}."
    if endpoint.resource == "domains":  # elsewhere a value may be written in another way in the answer
        ignored = [name for name, sent in body.items() if name in known and _folded(value.get(name)) != _folded(sent)]
        if ignored:
            them = "it" if len(ignored) == 1 else "them"
            yield f"Not applied: {', '.join(ignored)}. Verify the domain, then set {them} by domains update."


def _folded(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def page(endpoint: Endpoint[Any, Any], access: Access, limit: int | None, offset: int | None, *, as_table: bool) -> None:
    """Print one page of a list, and say on stderr if there is more. Raises `ForwarderError`."""

    async def once() -> Any:
        async with access.client() as client:
            return await client.pages(endpoint, access.ids).page(limit, offset)

    envelope = asyncio.run(once())
    if as_table:
        Rows(columns_of(endpoint)).print(envelope["results"])
    else:
        print_json(envelope)
    sys.stdout.flush()
    shown = len(envelope["results"])
    if envelope["next"] is not None:
        after = (offset or 0) + shown
        sys.stderr.write(f"{shown:,} of {envelope['count']:,} are shown; --offset {after} goes on, --all shows all.\n")


def everything(endpoint: Endpoint[Any, Any], access: Access, limit: int | None, *, as_table: bool) -> None:
    """Print a whole list while its pages come, `limit` items each. Raises `ForwarderError`."""
    asyncio.run(_everything(endpoint, access, limit, as_table=as_table))


async def _everything(endpoint: Endpoint[Any, Any], access: Access, limit: int | None, *, as_table: bool) -> None:
    """Items are printed by the page; those that came before an error, too. Cancellation ends it so."""
    rows, waiting = Rows(columns_of(endpoint)), list[Any]()

    def print_waiting() -> None:
        if as_table:
            rows.print(waiting)
        else:
            print_lines(waiting)
        waiting.clear()

    try:
        async with access.client() as client:
            async for item in client.pages(endpoint, access.ids, limit):
                waiting.append(item)
                if len(waiting) >= (limit or PAGE_SIZE):
                    print_waiting()
        if as_table and not rows.begun and not waiting:
            rows.print([])
    finally:
        if waiting:
            print_waiting()


def agreed(endpoint: Endpoint[Any, Any], access: Access, ids: Mapping[str, object], *, yes: bool) -> bool:
    """Whether the thing may go. Raises `ForwarderError` if it isn't there to go."""
    if yes:
        return True
    words, thing = WORDS[endpoint.resource], ", ".join(map(str, ids.values()))
    item = asyncio.run(_look_up(endpoint, access, ids))
    name = inside(item, words.name)
    named = f"{visible(str(name))} ({thing})" if name else thing
    return may(f"Remove {words.thing} {named}?", yes=False)


async def _look_up(endpoint: Endpoint[Any, Any], access: Access, ids: Mapping[str, object]) -> Any:
    """The thing that is meant; None if it can't be told, or a key may not see it. Cancellation drops the connection."""
    one, several = endpoint_of(endpoint.resource, "get"), endpoint_of(endpoint.resource, "list")
    async with access.client() as client:
        try:
            if one is not None:
                return await client.call(one, {**access.ids, **ids})
            if several is not None:
                return await _first(client.pages(several, access.ids, _LOOKED_THROUGH), WORDS[endpoint.resource].id, ids)
        except ApiError as error:
            if error.status != 403:
                raise
    return None


async def _first(items: Pages[Any], path: str, ids: Mapping[str, object]) -> Any:
    """The first item whose id is one of these. Cancellation drops the connection."""
    async for item in items:
        if str(inside(item, path)).lower() in {str(value).lower() for value in ids.values()}:
            return item
    return None
