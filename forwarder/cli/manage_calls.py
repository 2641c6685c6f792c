"""Makes the calls of `forwarder manage`, and prints their answers: as JSON, or as tables; an error
becomes words and an exit code.

Invariants: JSON is the whole answer; lists are cut at the width of a terminal only; text of the
service is never read as markup, and its control characters are escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, cast

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.manage_fields import LOG_LINES, RUNS, WORDS, endpoint_of, fields_of
from forwarder.cli.manage_request import ManagementAccess
from forwarder.cli.output import as_json, confirm, report, report_visible, visible
from forwarder.cli.signals import run_to_end
from forwarder.contract.endpoints import GET_DOMAIN, VERIFY_DOMAIN, Endpoint
from forwarder.contract.resources import LEVELS, PAGE_SIZE, Domain
from forwarder.core.errors import ForwarderError
from forwarder.management import ApiError, InvalidCall, Pages

_NOT_NOW: Final = frozenset({401, 403, 407, 408, 429})
_SEARCH_PAGE: Final = 1000
"""Items per page of a search."""
_GAP: Final = 2
"""Spaces between columns."""
_MIN_WIDTH: Final = 8
"""Minimum width of a column; a terminal too narrow for two columns breaks the lines."""
_NAME_WIDTH: Final = 24
"""Other columns are left out before the second one gets narrower than this."""
_LEVEL_FIELDS: Final = ("level", "effective_membership_level")
_TABLES: Final = {"latest_runs": RUNS, "results": LOG_LINES}
"""Fields that are lists with a table of their own, and its columns."""


def failed(error: ForwarderError) -> ExitCode:
    """Report an error; returns the exit code for it."""
    report_visible(error)
    if not isinstance(error, ApiError) or isinstance(error, InvalidCall):
        return ExitCode.WRONG_USAGE
    status = error.status
    return (
        ExitCode.NO
        if status is not None and 400 <= status < 500 and status not in _NOT_NOW
        else ExitCode.UNREACHABLE
    )


def call(
    endpoint: Endpoint[Any, Any],
    access: ManagementAccess,
    ids: Mapping[str, object],
    body: Any,
    *,
    as_table: bool,
) -> ExitCode:
    """Make one call, print its answer, and warn of fields that were not applied; returns the exit
    code. Raises `ForwarderError`.
    """
    value, unverified = run_to_end(_once(endpoint, access, ids, body))
    if not as_table:
        print_json(value)
    elif unverified is None or value is not None:
        print_answer(endpoint, ids, value)
    sys.stdout.flush()
    if unverified is not None:
        report(_not_verified(unverified))
        return ExitCode.NO
    for line in _not_applied(endpoint, body, value):
        sys.stderr.write(f"{visible(line)}\n")
    return ExitCode.DONE


async def _once(
    endpoint: Endpoint[Any, Any], access: ManagementAccess, ids: Mapping[str, object], body: Any
) -> tuple[Any, Domain | None]:
    """The answer of a call, and the domain if it is still not verified.
    Cancellation drops the connection.
    """
    async with access.client() as client:
        value = await client.call(endpoint, {**access.ids, **ids}, body)
        if endpoint is not VERIFY_DOMAIN:
            return value, None
        domain = (
            value
            if isinstance(value, dict)
            else await client.call(GET_DOMAIN, {**access.ids, **ids})
        )
    return value, None if domain["is_verified"] else cast("Domain", domain)


def _not_verified(domain: Domain) -> ForwarderError:
    record = visible(f"_posthog-challenge.{domain['domain']}")
    challenge = visible(domain["verification_challenge"])
    return ForwarderError(
        (
            f"{visible(domain['domain'])} is not verified: {record} has no TXT record with its "
            "challenge"
        ),
        hint=(
            f"Publish the record with {challenge}, wait until the DNS serves it, and verify again."
        ),
    )


def _not_applied(endpoint: Endpoint[Any, Any], body: Any, value: Any) -> Iterator[str]:
    """Warnings for fields whose value in the answer differs from the one
    sent (gap `ignored-fields`).
    """
    if not isinstance(body, dict) or not isinstance(value, dict):
        return
    known = {field.name for field in fields_of(endpoint)}
    unknown = [name for name, sent in body.items() if name not in known and value.get(name) != sent]
    if unknown:
        yield (
            f"Ignored: {', '.join(unknown)}. {endpoint.name} does not accept "
            f"{'it' if len(unknown) == 1 else 'them'}."
        )
    if endpoint.resource == "domains":  # elsewhere the answer may write a value differently
        ignored = [
            name
            for name, sent in body.items()
            if name in known and _folded(value.get(name)) != _folded(sent)
        ]
        if ignored:
            them = "it" if len(ignored) == 1 else "them"
            yield (
                f"Not applied: {', '.join(ignored)}. Verify the domain, then set {them} with "
                "domains update."
            )


def _folded(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def page(
    endpoint: Endpoint[Any, Any],
    access: ManagementAccess,
    limit: int | None,
    offset: int | None,
    *,
    as_table: bool,
) -> None:
    """Print one page of a list, and write to stderr whether there are
    more. Raises `ForwarderError`.
    """

    async def once() -> Any:
        async with access.client() as client:
            return await client.pages(endpoint, access.ids).page(limit, offset)

    envelope = run_to_end(once())
    if as_table:
        PagedTable(columns_of(endpoint)).print(envelope["results"])
    else:
        print_json(envelope)
    sys.stdout.flush()
    shown = len(envelope["results"])
    if envelope["next"] is not None:
        after = (offset or 0) + shown
        sys.stderr.write(
            f"{shown:,} of {envelope['count']:,} are shown; --offset {after} shows the next, "
            "--all shows all.\n"
        )


def everything(
    endpoint: Endpoint[Any, Any], access: ManagementAccess, limit: int | None, *, as_table: bool
) -> None:
    """Print a whole list page by page, `limit` items each. Raises `ForwarderError`."""
    run_to_end(_everything(endpoint, access, limit, as_table=as_table))


async def _everything(
    endpoint: Endpoint[Any, Any], access: ManagementAccess, limit: int | None, *, as_table: bool
) -> None:
    """Prints items by the page, also those received before an error or a cancellation."""
    rows = PagedTable(columns_of(endpoint))
    pending = list[Any]()

    def print_pending() -> None:
        if as_table:
            rows.print(pending)
        else:
            print_lines(pending)
        pending.clear()

    try:
        async with access.client() as client:
            async for item in client.pages(endpoint, access.ids, limit):
                pending.append(item)
                if len(pending) >= (limit or PAGE_SIZE):
                    print_pending()
        if as_table and not rows.begun and not pending:
            rows.print([])
    finally:
        if pending:
            print_pending()


def confirmed(
    endpoint: Endpoint[Any, Any], access: ManagementAccess, ids: Mapping[str, object], *, yes: bool
) -> bool:
    """Ask before the item is removed. Raises `ForwarderError` if it doesn't exist."""
    if yes:
        return True
    words = WORDS[endpoint.resource]
    thing = ", ".join(map(str, ids.values()))
    item = run_to_end(_look_up(endpoint, access, ids))
    name = inside(item, words.name)
    named = f"{visible(str(name))} ({thing})" if name else thing
    return confirm(f"Remove {words.thing} {named}?", yes=False)


async def _look_up(
    endpoint: Endpoint[Any, Any], access: ManagementAccess, ids: Mapping[str, object]
) -> Any:
    """The item; None if no endpoint returns it, or the key may not read it.
    Cancellation drops the connection.
    """
    one = endpoint_of(endpoint.resource, "get")
    several = endpoint_of(endpoint.resource, "list")
    async with access.client() as client:
        try:
            if one is not None:
                return await client.call(one, {**access.ids, **ids})
            if several is not None:
                return await _first(
                    client.pages(several, access.ids, _SEARCH_PAGE),
                    WORDS[endpoint.resource].id,
                    ids,
                )
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


def print_json(value: Any) -> None:
    """Print one JSON document, or nothing for None."""
    if value is not None:
        _write(as_json(value, indent=2))


def print_lines(values: Iterable[Any]) -> None:
    """Print a JSON document per line, and flush."""
    for value in values:
        _write(as_json(value))
    sys.stdout.flush()


def print_answer(endpoint: Endpoint[Any, Any], ids: Mapping[str, object], value: Any) -> None:
    """Print the answer of one call."""
    if not isinstance(value, dict):
        named = " ".join(visible(str(identifier)) for identifier in ids.values())
        _write(
            f"Done: {endpoint.name} {named}".rstrip() if value is None else as_json(value, indent=2)
        )
        return
    tables = {name: value[name] for name in _TABLES if _is_table(value.get(name))}
    print_fields({name: field for name, field in value.items() if name not in tables})
    for name, rows in tables.items():
        _write(f"\n {_title(name)}")
        PagedTable(_TABLES[name]).print(rows)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print a field per line, uncut: ids, keys and challenges are to be copied."""
    names = [visible(name) for name in fields]
    width = max(map(cell_len, names), default=0) + _GAP
    lines = [
        Text.assemble((f" {shown}{' ' * (width - cell_len(shown))}", "dim"), cell(name, value))
        for shown, (name, value) in zip(names, fields.items(), strict=True)
    ]
    Console(highlight=False).print(Text("\n").join(lines), soft_wrap=True)


class PagedTable:
    """A table printed in pieces. On a terminal each has titles and is cut to its width; elsewhere
    only the first has titles, and later ones are at least as wide.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._titles = [_title(column) for column in columns]
        self._widths: list[int] = []

    @property
    def begun(self) -> bool:
        """Whether the titles have been printed."""
        return bool(self._widths)

    def print(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Print a row per item, or that there are none."""
        if not items:
            _write("None.")
            return
        rows = [[cell(column, inside(item, column)) for column in self._columns] for item in items]
        titles = self._titles if sys.stdout.isatty() or not self.begun else []
        widest = zip(self._widths or map(len, self._titles), *rows, strict=True)
        self._widths = [max([width, *map(cell_len, column)]) for width, *column in widest]
        _print(titles, rows, self._widths)


def _print(titles: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    """Print a table; on a terminal cut to its width."""
    screen = Console(highlight=False)
    fitting = _fitting(widths, screen.width) if sys.stdout.isatty() else widths
    table = Table(box=None, pad_edge=True, header_style="dim", show_header=bool(titles))
    for number, width in enumerate(fitting):
        table.add_column(_cut(titles[number], width) if titles else "", width=width, no_wrap=True)
    for row in rows:
        table.add_row(*map(_cut, row, fitting))  # as many as fit
    screen.width = sum(fitting) + _GAP * len(fitting)  # or rich would cut the table differently
    screen.print(table, crop=False)


def _fitting(widths: Sequence[int], room: int) -> list[int]:
    """The widths of the columns that fit: later columns are cut, or left out, first. The first
    column, the id, is never cut; the second, the name, is always present.
    """
    least = [
        *widths[:1],
        *(min(width, _NAME_WIDTH) for width in widths[1:2]),
        *(min(width, _MIN_WIDTH) for width in widths[2:]),
    ]
    fitting = list(
        widths[
            : max(2, sum(total <= room for total in accumulate(width + _GAP for width in least)))
        ]
    )
    for number in range(len(fitting) - 1, 0, -1):
        excess = max(0, sum(fitting) + _GAP * len(fitting) - room)
        fitting[number] = max(min(fitting[number], _MIN_WIDTH), fitting[number] - excess)
    return fitting


def _cut(text: str, width: int) -> Text:
    shown = Text(text)
    shown.truncate(width, overflow="ellipsis")
    return shown


def columns_of(endpoint: Endpoint[Any, Any]) -> tuple[str, ...]:
    """The columns of an endpoint's list."""
    return WORDS[endpoint.resource].columns


def cell(field: str, value: Any) -> str:
    """A value on one line: in words if there are any, else as JSON."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field in _LEVEL_FIELDS and isinstance(value, int):
        return LEVELS.get(value, str(value))
    if isinstance(value, dict) and isinstance(value.get("email"), str):
        return visible(value["email"])
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return visible(", ".join(value))
    return visible(value) if isinstance(value, str) else as_json(value)


def inside(item: Any, path: str) -> Any:
    """A field, or a nested one (`user.email`); None if it is missing."""
    for name in path.split("."):
        item = item.get(name) if isinstance(item, dict) else None
    return item


def _title(path: str) -> str:
    return path.rpartition(".")[2].replace("_", " ")


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
