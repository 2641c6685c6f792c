"""What an answer of 2xx holds: a resource, a page of a list, or nothing, where contract and service may differ in which."""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast

from forwarder.contract.errors import Envelope
from forwarder.management.refusals import Asked, unreadable
from forwarder.management.replies import Reply
from forwarder.management.told import is_page


def value_of(asked: Asked, reply: Reply) -> Any:
    """What the endpoint answered; None if nothing, where the contract has nothing. Raises `ApiError`."""
    if asked.endpoint.paginated:
        return page_of(asked, reply)
    if asked.endpoint.answers_body:
        return _resource_of(asked, reply)
    if is_page(reply):
        raise unreadable(asked, reply, "what the service answers")
    value = _json(reply.body)
    return value if isinstance(value, dict | list) else None


def page_of(asked: Asked, reply: Reply) -> Envelope[Any]:
    """A page of a list. Raises `ApiError`."""
    body = _json(reply.body)
    if not (isinstance(body, dict) and isinstance(body.get("results"), list) and all(isinstance(item, dict) for item in body["results"])):
        raise unreadable(asked, reply, "a page of a list")
    count = body.get("count")
    links = {name: body.get(name) for name in ("next", "previous")}
    if not isinstance(count, int) or isinstance(count, bool) or not all(isinstance(link, str | None) for link in links.values()):
        raise unreadable(asked, reply, "a page of a list")
    return cast("Envelope[Any]", {"count": count, **links, **body})


def _resource_of(asked: Asked, reply: Reply) -> dict[str, Any]:
    body = _json(reply.body)
    if not isinstance(body, dict):
        raise unreadable(asked, reply, "a resource")
    return body


def _json(body: bytes) -> Any:
    """The body as JSON; None if it isn't."""
    try:
        return json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} isn't JSON")
