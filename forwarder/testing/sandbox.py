"""The sandbox in tests: the events that arrived at it, its flags, its faults, its clock.

`running_sandbox()` is for programs without pytest, such as tests with unittest; with pytest it is
the fixture `analytics_sandbox`. Calls are blocking HTTP requests: an asynchronous test whose own
loop sends the events calls them by `asyncio.to_thread`.
"""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

from forwarder.contract.flag_form import FLAG
from forwarder.core.error_text import error_text
from forwarder.core.near_names import near_name, propose_name
from forwarder.testing.process import ServerFailed, ServerProcess

TIMEOUT: Final = 10.0
"""Seconds for which `wait_for` waits."""
MARGIN: Final = 30.0
"""Seconds that an answer may take besides."""
PAGE: Final = 10_000
"""Results of one answer at most."""
FILTERS: Final = frozenset(
    (
        *(
            "api_key",
            "arrivals",
            "distinct_id",
            "event",
            "feature",
            "group_key",
            "group_type",
            "historical",
            "import",
            "limit",
        ),
        *("offset", "order", "person", "q", "request", "since", "survey_id", "until", "uuid"),
    )
)
"""The parameters of `/sandbox/events`, which ignores others: a test with a misspelt one would get
every event.
"""
_PAGES: Final = frozenset(("limit", "offset", "order"))
_LISTED: Final[Mapping[str, frozenset[str]]] = {
    "/sandbox/requests": _PAGES | {"path", "status", "api_key"},
    "/sandbox/persons": _PAGES | {"api_key", "distinct_id", "person"},
    "/sandbox/groups": _PAGES | {"api_key", "group_type", "group_key"},
}
"""The same of the other listings."""
_OF_FLAGS: Final = frozenset(("value", "rollout", "payload", "properties", "api_key"))
_IN_FILTERS: Final = frozenset(("properties", "rollout_percentage"))
"""Members of the oldest form of a flag, which count for nothing beside `filters`."""
When: TypeAlias = Literal["before", "after"]
FlagValue: TypeAlias = bool | str | Mapping[str, Any]


class SandboxEvent(dict[str, Any]):
    """An event as `/sandbox/events` shows it: `event["properties"]`, or `event.properties`."""

    def __getattr__(self, name: str) -> Any:
        """A member: event, distinct_id, properties, timestamp, uuid, person, groups, received_at,
        raw, …
        """
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the event has no {name!r}, only {', '.join(self)}") from None


class AnalyticsSandbox:
    """A running sandbox. What it is asked is answered by its own endpoints, under `/sandbox/`."""

    def __init__(self, url: str, api_key: str, server: ServerProcess | None = None) -> None:
        self.url = url
        """The address for SDKs, without a slash at its end."""
        self.api_key = api_key
        """A project key that is valid here. Others are too, unless a seed or `--api-key` names
        those that exist.
        """
        self._server = server
        self._flags: set[tuple[str, str]] = set()

    def __repr__(self) -> str:
        return f"<sandbox at {self.url}>"

    def events(
        self, event: str | None = None, distinct_id: str | None = None, **filters: object
    ) -> list[SandboxEvent]:
        """The events that arrived, in the order of arrival, each once; `filters` are those of
        `/sandbox/events`, such as `person`.

        Raises `TypeError` if there is no such filter.
        """
        _check_filters(filters)
        found = self._listed(
            "/sandbox/events", {"event": event, "distinct_id": distinct_id, **filters}
        )
        return [SandboxEvent(received) for received in found]

    def wait_for(
        self,
        n: int = 1,
        event: str | None = None,
        distinct_id: str | None = None,
        *,
        timeout: float = TIMEOUT,
        **filters: object,
    ) -> list[SandboxEvent]:
        """The events that match, as soon as there are `n` or more. After `timeout` seconds raises
        `AssertionError`: what did arrive.
        """
        __tracebackhide__ = True
        _check_filters(filters)
        query = {
            "count": n,
            "event": event,
            "distinct_id": distinct_id,
            "timeout": timeout,
            **filters,
            "limit": 0,
        }
        status, content = self._exchange("GET", "/sandbox/wait", None, query, timeout + MARGIN)
        if status == 408:
            raise AssertionError(content["detail"])
        _expected(status, content, "GET /sandbox/wait")
        return self.events(event, distinct_id, **filters)

    def requests(self, **filters: object) -> list[dict[str, Any]]:
        """The requests that arrived, rejected ones and those with a fault included; `filters` are
        `path`, `status`, `api_key`. Raises `TypeError` if there is no such filter.
        """
        _check_filters(filters, _LISTED["/sandbox/requests"])
        return self._listed("/sandbox/requests", filters)

    def persons(self, **filters: object) -> list[dict[str, Any]]:
        """The persons that the events made; `filters` are `distinct_id`, `person`, `api_key`.
        Raises `TypeError` if there is no such filter.
        """
        _check_filters(filters, _LISTED["/sandbox/persons"])
        return self._listed("/sandbox/persons", filters)

    def groups(self, **filters: object) -> list[dict[str, Any]]:
        """The groups that the events made; `filters` are `group_type`, `group_key`, `api_key`.
        Raises `TypeError` if there is no such filter.
        """
        _check_filters(filters, _LISTED["/sandbox/groups"])
        return self._listed("/sandbox/groups", filters)

    def set_flag(
        self,
        key: str | Mapping[str, Any],
        value: FlagValue = True,  # noqa: FBT002 - the value of a flag
        *,
        rollout: float = 100,
        payload: object = None,
        properties: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        api_key: str | None = None,
        **members: object,
    ) -> dict[str, Any]:
        """Set a flag, and return it in the service's form.

        See `flag_definition`; `members` of the service's form, such as `active` or `filters`,
        replace what it makes. The whole form can stand in `key`, or in `value`. Raises `TypeError`
        if there is no such member, or if `rollout`, `payload` or `properties` would be lost beside
        them, and `RuntimeError` if the sandbox rejects the flag.
        """
        __tracebackhide__ = True
        _check_members(members)
        whole = isinstance(key, Mapping) or (isinstance(value, Mapping) and "filters" in value)
        if whole or "filters" in members:
            unused = None if rollout == 100 else rollout
            _check_unused(rollout=unused, payload=payload, properties=properties)
        if isinstance(key, Mapping):
            form = {**key, **members}
            key = str(key["key"])
        elif isinstance(value, Mapping) and "filters" in value:
            form = {**value, **members}
        else:
            form = {
                **flag_definition(
                    key, value, rollout=rollout, payload=payload, properties=properties
                ),
                **members,
            }
        project = api_key or self.api_key
        self._flags.add((key, project))
        stored: dict[str, Any] = self.call(
            "PUT", f"/sandbox/flags/{quote(key, safe='')}", form, api_key=project
        )
        return stored

    def remove_flag(self, key: str, *, api_key: str | None = None) -> None:
        """Remove a flag. Raises `RuntimeError` if there is none of this key."""
        __tracebackhide__ = True
        project = api_key or self.api_key
        path = f"/sandbox/flags/{quote(key, safe='')}"
        status, content = self._exchange("DELETE", path, None, {"api_key": project}, MARGIN)
        if status == 404:
            keys = sorted(
                flag["key"] for flag in self._listed("/sandbox/flags", {"api_key": project})
            )
            raise RuntimeError(
                f"there is no flag {key!r}. The project has {', '.join(keys) or 'no flags'}."
            )
        _expected(status, content, "DELETE /sandbox/flags")
        self._flags.discard((key, project))

    def fail_next(
        self,
        status: int = 503,
        times: int | None = None,
        *,
        seconds: float | None = None,
        path: str | Sequence[str] | None = None,
        retry_after: float | None = None,
        body: object = None,
        when: When = "before",
    ) -> None:
        """Answer the next request with `status`, or the next `times`, or all within
        `seconds`; see `add_fault`.
        """
        more = {
            "times": times,
            "seconds": seconds,
            "path": path,
            "retry_after": retry_after,
            "body": body,
            "when": when,
        }
        self.add_fault(status=status, **more)

    def delay_next(
        self,
        delay: float,
        times: int | None = None,
        *,
        seconds: float | None = None,
        path: str | Sequence[str] | None = None,
        when: When = "before",
    ) -> None:
        """Answer the next requests `delay` seconds late; see `add_fault`."""
        self.add_fault(delay=delay, times=times, seconds=seconds, path=path, when=when)

    def reset_next(
        self,
        times: int | None = None,
        *,
        seconds: float | None = None,
        path: str | Sequence[str] | None = None,
        when: When = "before",
    ) -> None:
        """Reset the connections of the next requests; see `add_fault`."""
        self.add_fault(reset=True, times=times, seconds=seconds, path=path, when=when)

    def add_fault(self, **members: object) -> None:
        """Add a fault after those that are there, of requests for events unless `path` names
        others.

        With `when="after"` the events are stored and only the answer is lost.
        docs/how-to/testing.md has the members.
        """
        self.call(
            "POST",
            "/sandbox/faults",
            {name: value for name, value in members.items() if value is not None},
        )

    def faults(self) -> list[dict[str, Any]]:
        """The faults with something left, with how often each was `applied`."""
        return self._listed("/sandbox/faults", {})

    def clear_faults(self) -> None:
        """Remove all faults."""
        self.call("DELETE", "/sandbox/faults")

    @property
    def clock(self) -> datetime:
        """The sandbox's time."""
        return datetime.fromisoformat(self.call("GET", "/sandbox/clock")["now"])

    def move_clock(
        self,
        advance: str | float | timedelta | None = None,
        *,
        now: datetime | str | None = None,
        settle: bool = True,
    ) -> datetime:
        """Move the sandbox's time forward by `advance` (`"1h"`, seconds) or to `now`, and return
        it.

        With `settle` it returns once everything that is due, such as runs of exports, is done.
        """
        by = advance.total_seconds() if isinstance(advance, timedelta) else advance
        to = now.isoformat() if isinstance(now, datetime) else now
        moved = self.call("POST", "/sandbox/clock", {"advance": by, "now": to}, settle=settle)
        return datetime.fromisoformat(moved["now"])

    def clear(self) -> None:
        """Remove everything that arrived, the faults, and the flags that this object has set.
        Organizations and their projects stay.
        """
        self.call("DELETE", "/sandbox/events")
        self.clear_faults()
        for key, project in sorted(self._flags):
            status, content = self._exchange(
                "DELETE",
                f"/sandbox/flags/{quote(key, safe='')}",
                None,
                {"api_key": project},
                MARGIN,
            )
            if status != 404:
                _expected(status, content, "DELETE /sandbox/flags")
        self._flags.clear()

    def call(self, method: str, path: str, body: object = None, /, **query: object) -> Any:
        """Any endpoint's answer, from JSON; parameters that are None are omitted. Raises
        `RuntimeError` if it is an error.
        """
        __tracebackhide__ = True
        status, content = self._exchange(method, path, body, query, MARGIN)
        return _expected(status, content, f"{method} {path}")

    def _listed(self, path: str, filters: Mapping[str, object]) -> list[dict[str, Any]]:
        """All of a listing, page by page, unless `filters` has a `limit`."""
        results: list[dict[str, Any]] = []
        while True:
            page = self.call("GET", path, **{"limit": PAGE, "offset": len(results), **filters})
            results += page["results"]
            if "limit" in filters or not page["results"] or len(results) >= page["count"]:
                return results

    def _exchange(
        self, method: str, path: str, body: object, query: Mapping[str, object], timeout: float
    ) -> tuple[int, Any]:
        text = urlencode(
            {name: _parameter(value) for name, value in query.items() if value is not None}
        )
        data = None if body is None else json.dumps(body).encode()
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=timeout
        )
        try:
            connection.request(
                method,
                f"{path}?{text}" if text else path,
                data,
                {"Content-Type": "application/json"} if data else {},
            )
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            said = "" if self._server is None else f"\n{self._server.tail()}"
            raise ServerFailed(
                f"the sandbox at {self.url} does not answer {method} {path}: "
                f"{error_text(error)}.{said}"
            ) from error
        finally:
            connection.close()
        if answer.headers.get_content_type() == "application/json":
            return answer.status, json.loads(content)
        return answer.status, content.decode(errors="replace")


def _check_filters(filters: Mapping[str, object], known: frozenset[str] = FILTERS) -> None:
    """Raise `TypeError` if there is no such filter."""
    if unknown := sorted(filters.keys() - known):
        raise TypeError(f"there is no filter {unknown[0]!r}, {propose_name(unknown[0], known)}")


def _check_unused(**arguments: object) -> None:
    """Raise `TypeError` if one of these is given."""
    given = next((name for name, value in arguments.items() if value is not None), None)
    if given is not None:
        raise TypeError(f"{given!r} makes the filters of a flag, which are given: set it there")


def _check_members(members: Mapping[str, object]) -> None:
    """Raise `TypeError` for what is neither an argument of `set_flag` nor a member of a flag that
    counts beside `filters`.
    """
    known = (FLAG.keys() | _OF_FLAGS) - (_IN_FILTERS - _OF_FLAGS)
    unknown = next((name for name in members if name not in known), None)
    if unknown is None:
        return
    if near_name(unknown, ("variant", "variants", "multivariate")):
        hint = "a variant, or variants with their percentages, is the value"
    else:
        near = near_name(unknown, _OF_FLAGS) or near_name(unknown, known)
        hint = f"did you mean {near}?" if near else propose_name(unknown, _OF_FLAGS)
    raise TypeError(f"a flag has no {unknown!r}: {hint}")


def flag_definition(
    key: str,
    value: FlagValue = True,  # noqa: FBT002 - the value of a flag
    *,
    rollout: float = 100,
    payload: object = None,
    properties: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
) -> dict[str, Any]:
    """A flag in the service's form, which `/flags/definitions` returns.

    `value` is True, False (for everyone), a variant's name, or variants with their percentages.
    `rollout` is the percentage of persons that get it, among those with these `properties`: values
    by name (a list means any of them), or conditions as the service has them
    (`{key, value, operator}`). `payload` is for True, or for each variant; of several variants it
    may be a mapping by variant.
    """
    if isinstance(value, str):
        split = {value: 100.0}
    else:
        split = dict(value) if isinstance(value, Mapping) else {}
    group = {
        "properties": _conditions(properties),
        "rollout_percentage": rollout if value is not False else 0,
        "variant": None,
    }
    filters: dict[str, Any] = {
        "groups": [group],
        "payloads": _payloads(list(split), payload),
        "multivariate": None,
    }
    if split:
        filters["multivariate"] = {
            "variants": [{"key": name, "rollout_percentage": part} for name, part in split.items()]
        }
    return {"key": key, "name": key, "active": True, "filters": filters}


def _conditions(
    properties: Mapping[str, object] | Sequence[Mapping[str, object]] | None,
) -> list[dict[str, object]]:
    if isinstance(properties, Mapping):
        return [
            {"key": name, "value": value, "operator": "exact", "type": "person"}
            for name, value in properties.items()
        ]
    return [{"operator": "exact", "type": "person", **condition} for condition in properties or ()]


def _payloads(variants: Sequence[str], payload: object) -> dict[str, str]:
    if payload is None:
        return {}
    if len(variants) > 1 and isinstance(payload, Mapping) and payload.keys() <= set(variants):
        return {name: json.dumps(item) for name, item in payload.items()}
    return dict.fromkeys(variants or ["true"], json.dumps(payload))


def _parameter(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _expected(status: int, content: Any, what: str) -> Any:
    __tracebackhide__ = True
    if status >= 400:
        raise RuntimeError(f"{what} was answered {status}: {_said(content)}")
    return content


def _said(content: Any) -> str:
    """An error's text: of the management API's form the member that is wrong, and why."""
    if not isinstance(content, dict) or "detail" not in content:
        return (content if isinstance(content, str) else json.dumps(content)).strip()
    return f"{content['attr']}: {content['detail']}" if content.get("attr") else content["detail"]


def new_api_key() -> str:
    """A project key that no other test has."""
    return f"phc_test_{secrets.token_hex(16)}"


class SandboxServer:
    """A sandbox as a process, which keeps its address when it is started anew."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        """`options` are those of `forwarder sandbox`, such as `--strict`. Raises `ServerFailed`."""
        self._options = options
        self.url = self._start("127.0.0.1:0")

    def sandbox(self, api_key: str) -> AnalyticsSandbox:
        """The sandbox, empty, at the present time, without faults. Raises
        `ServerFailed` if it has ended.
        """
        if not self._process.running:
            raise ServerFailed(f"the sandbox has ended.\n{self._process.tail()}")
        sandbox = AnalyticsSandbox(self.url, api_key, self._process)
        if sandbox.call("GET", "/sandbox/clock")["offset"]:  # it never goes back
            self._process.stop()
            self.url = self._start(urlsplit(self.url).netloc)
            sandbox = AnalyticsSandbox(self.url, api_key, self._process)
        sandbox.clear()
        return sandbox

    def stop(self) -> None:
        """Stop it."""
        self._process.stop()

    def _start(self, listen: str) -> str:
        self._process = ServerProcess(["sandbox", "--listen", listen, *self._options])
        return self._process.line("Sandbox listening on").split()[-1]


@contextmanager
def running_sandbox(*options: str, api_key: str | None = None) -> Iterator[AnalyticsSandbox]:
    """A sandbox of its own, for tests without pytest; `options` are those of `forwarder sandbox`.
    Raises `ServerFailed`.
    """
    server = SandboxServer(options)
    try:
        yield server.sandbox(api_key or new_api_key())
    finally:
        server.stop()
