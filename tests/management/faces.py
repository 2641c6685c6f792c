"""Both faces of the client, called the same way: by the name of an endpoint, whose method it is
that does it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from forwarder.contract.endpoints import ENDPOINTS
from forwarder.management import ApiError, Client, SyncClient
from tests.contract.calls import ROWS, CalledSandbox, ids_of, least, serving
from tests.support import management as seed
from tests.support.waiting import in_thread

BY_NAME: Final = {endpoint.name: endpoint for endpoint in ENDPOINTS}
LISTS: Final = [endpoint.name for endpoint in ENDPOINTS if endpoint.paginated]

Doing = Callable[[Any], Any]


def method_of(client: object, name: str) -> Callable[..., Any]:
    """The method of an endpoint."""
    endpoint = BY_NAME[name]
    method: Callable[..., Any] = getattr(
        getattr(client, endpoint.resource.replace("-", "_")), endpoint.verb
    )
    return method


def arguments(
    name: str, body: Any, *, other: bool = False, ids: Mapping[str, object] | None = None
) -> tuple[list[object], dict[str, Any]]:
    """How the method is called: ids in the order of the path, the seed's unless `ids` says
    otherwise, and the fields of the body.
    """
    every = {**ids_of(ROWS[name], other=other), **(ids or {})}
    positional = [every[parameter.name] for parameter in BY_NAME[name].parameters]
    if BY_NAME[name].several:
        return [*positional, body if isinstance(body, list) else [body]], {}
    return positional, body or {}


class Face:
    """A client of the seed's sandbox, of either kind."""

    def __init__(self, service: CalledSandbox, kind: str) -> None:
        self.service = service
        self._kind = kind

    async def do(
        self, name: str, body: Any = ..., *, key: str = seed.OWNER_KEY, **where: Any
    ) -> Any:
        """What the method of an endpoint returns, a list as its items; `...`: with the least body.
        Raises `ApiError`.
        """
        positional, fields = arguments(name, (least(ROWS[name]) if body is ... else body), **where)
        return await self.using(lambda client: method_of(client, name)(*positional, **fields), key)

    async def using(self, what: Doing, key: str = seed.OWNER_KEY) -> Any:
        """What comes of doing something with a client. A list is read."""
        url = self.service.client.sandbox.url
        if self._kind == "blocking":
            return await in_thread(lambda: _blocking(url, key, what))
        async with Client(url, key) as client:
            result = what(client)
            return [item async for item in result] if hasattr(result, "__aiter__") else await result

    async def refused(self, name: str, body: Any = ..., **how: Any) -> ApiError:
        """The error that it raises."""
        try:
            result = await self.do(name, body, **how)
        except ApiError as error:
            return error
        raise AssertionError(f"{name} returned {result!r}")

    async def everything(self) -> dict[str, Any]:
        """All that both organizations have, by plain HTTP."""
        lists = {name: await self.service.items(name) for name in LISTS}
        exports = {
            key: (await self.service.call("batch-exports get", id=key)).json
            for key in (seed.EXPORT, seed.PAUSED_EXPORT)
        }
        return {**lists, **exports}


def _blocking(url: str, key: str, what: Doing) -> Any:
    with SyncClient(url, key) as client:
        result = what(client)
        return (
            list(result)
            if hasattr(result, "__iter__") and not isinstance(result, dict | list)
            else result
        )


@asynccontextmanager
async def facing(kind: str, folder: Path, **options: Any) -> AsyncIterator[Face]:
    """A client of a kind, and a sandbox with the seed."""
    async with serving(folder, **options) as service:
        yield Face(service, kind)
