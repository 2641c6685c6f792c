"""The files of pages, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from forwarder.admin import page as status_page
from forwarder.pages import files
from forwarder.sandbox.web import page as sandbox_page
from tests.support.cases import cases

MARKUP = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "style=",
    "onclick=",
    "@import",
)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a server that has the shared files under `/page/`."""
    application = web.Application()
    application.add_routes(files.routes("/page/", "forwarder.admin.page", ["status.css"]))
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
        yield client
    await runner.cleanup()


@pytest.mark.parametrize(
    ("name", "content_type"), [("base.css", "text/css"), ("icon.svg", "image/svg+xml")]
)
async def test_a_file_is_served_as_what_it_is(
    session: aiohttp.ClientSession, name: str, content_type: str
) -> None:
    """Each file has its content type, which no browser may guess otherwise, and a policy that
    allows nothing inline and no other host.
    """
    async with session.get(f"/page/{name}") as response:
        assert (response.status, response.content_type) == (200, content_type)
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert await response.read()


async def test_a_file_that_is_known_isnt_sent_again(session: aiohttp.ClientSession) -> None:
    """Who has the file as it is now gets 304; who has another one gets it."""
    async with session.get("/page/base.css") as response:
        tag = response.headers["ETag"]
    for known, status in ((tag, 304), ('"another"', 200)):
        async with session.get("/page/base.css", headers={"If-None-Match": known}) as response:
            assert response.status == status


async def test_nothing_else_is_served(session: aiohttp.ClientSession) -> None:
    """A file that wasn't named isn't there, whatever the path."""
    for path in ("/page/", "/page/files.py", "/page/../page/__init__.py", "/page/%2e%2e/files.py"):
        async with session.get(path) as response:
            assert response.status == 404


@cases("package", [files, sandbox_page, status_page], ids=["shared", "sandbox", "status"])
def test_every_file_of_a_page_is_served_and_packaged(package: object) -> None:
    """What lies in the folder beside the modules is named in them; and none of it asks another
    host, runs something inline, or makes markup of text.
    """
    folder = Path(str(getattr(package, "__file__", ""))).parent
    filenames = {path.name for path in folder.iterdir() if path.suffix in files.TYPES}
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    assert filenames
    assert {name for name in filenames if f'"{name}"' not in source} == set()
    for name in filenames:
        text = (folder / name).read_text()
        assert not [word for word in MARKUP if word in text]
        assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("// ", "")
