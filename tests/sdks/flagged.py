"""An upstream with one flag: in front of a sandbox, which has none, and takes everything else."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from tests.sdks.rig import SdkSandbox

FLAG: Final = "new-checkout"
DEFINITION: Final[dict[str, Any]] = {
    "id": 1,
    "team_id": 1,
    "name": "",
    "key": FLAG,
    "active": True,
    "deleted": False,
    "ensure_experience_continuity": False,
    "version": 1,
    "filters": {
        "groups": [{"properties": [], "rollout_percentage": 100, "variant": None}],
        "multivariate": None,
        "payloads": {},
    },
}
DEFINITIONS: Final = {"flags": [DEFINITION], "group_type_mapping": {}, "cohorts": {}}
_EVALUATED: Final = {
    "key": FLAG,
    "enabled": True,
    "variant": None,
    "reason": {"code": "condition_match", "condition_index": 0, "description": "matched"},
    "metadata": {"id": 1, "version": 1, "payload": None, "description": None},
}
_HOP_BY_HOP: Final = frozenset({"host", "connection", "transfer-encoding", "content-length"})


class Flagged(SdkSandbox):
    """The upstream. `silent`: it takes requests for flags, and never answers them."""

    max_body = 20_000_000

    def __init__(self, database: Path) -> None:
        super().__init__(database)
        self.silent = False
        self._behind = ""
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._client: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Listen: the first time on any port, afterwards on the same."""
        if self._client is None:
            await super().start()
            self._behind = self.url
            self._client = aiohttp.ClientSession(auto_decompress=False)
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            auto_decompress=False,
            shutdown_timeout=0.1,
            lingering_time=0,  # a browser may be gone within a recording
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Listen no more; connections are refused."""
        runner = self._runner
        self._runner = None
        if runner is not None:
            await runner.cleanup()

    async def close(self) -> None:
        """Stop, and the sandbox with it."""
        await self.stop()
        if self._client is not None:
            await self._client.close()
        await super().stop()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=self.max_body)
        for path in ("/flags/definitions", "/api/feature_flag/local_evaluation"):
            application.router.add_get(f"{path}{{slash:/?}}", self._define)
        application.router.add_post("/flags{slash:/?}", self._evaluate)
        application.router.add_route("*", "/{rest:.*}", self._relay)
        return application

    async def _define(self, _request: web.Request) -> web.Response:
        return web.json_response(DEFINITIONS, headers={"ETag": '"one"'})

    async def _evaluate(self, _request: web.Request) -> web.Response:
        if self.silent:
            await asyncio.Event().wait()
        return web.json_response(
            {"flags": {FLAG: _EVALUATED}, "errorsWhileComputingFlags": False, "requestId": "r-1"}
        )

    async def _relay(self, request: web.Request) -> web.Response:
        assert self._client is not None
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _HOP_BY_HOP
        }
        url = self._behind + request.raw_path
        async with self._client.request(
            request.method, url, data=io.BytesIO(await request.read()), headers=headers
        ) as answer:
            body = await answer.read()
            return web.Response(
                status=answer.status,
                body=body,
                headers={"Content-Type": answer.headers.get("Content-Type", "text/plain")},
            )
