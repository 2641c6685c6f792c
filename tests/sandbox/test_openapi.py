"""`/openapi.json` is held against the application: what is served is in it, and what is in it is served so."""

from __future__ import annotations

import jsonschema
import pytest

from forwarder.sandbox import Sandbox
from forwarder.sandbox.openapi import LISTINGS, document
from tests.sandbox.client import batch, event, talking

VALUES = {"since": "2025-01-01", "until": "2025-01-01", "integer": "1", "boolean": "true"}


async def test_every_endpoint_is_in_it() -> None:
    """Each path and method of the application is described, the page's files and browsers' questions apart, and nothing else is."""
    served = set()
    async with Sandbox() as sandbox:
        application = sandbox._application(frozenset())
    for route in application.router.routes():
        path = route.resource.canonical if route.resource is not None else ""
        if route.method in ("GET", "POST", "DELETE") and not path.startswith(("/page", "/openapi")) and path != "/":
            served.add((path.rstrip("/"), route.method.lower()))
    assert served == {(path, method) for path, methods in document()["paths"].items() for method in methods}


@pytest.mark.parametrize("path", LISTINGS)
async def test_listings_are_as_described(path: str) -> None:
    """Each listing fits its schema, and takes each parameter that is described."""
    async with talking() as client:
        properties = {"$groups": {"company": "x"}, "$survey_id": "s", "$survey_response": "good", "$set": {"a": 1}}
        known = {"$group_type": "company", "$group_key": "x", "$feature_flag": "beta"}
        names = ("survey sent", "$groupidentify", "$feature_flag_called", "")
        await client.post("/batch/", batch(*[event(event=name, properties={**properties, **known}) for name in names]))
        described = (await client.get("/openapi.json"))["paths"][path]["get"]
        listing = await client.get(path)
        jsonschema.Draft202012Validator(described["responses"]["200"]["content"]["application/json"]["schema"]).validate(listing)
        assert listing["results"] or path == "/sandbox/conflicts"
        for parameter in described["parameters"]:
            value = VALUES.get(parameter["name"], VALUES.get(parameter["schema"].get("type"), "x"))
            answer = await client.ask("GET", f"{path}?{parameter['name']}={value}")
            assert (answer.status, set(answer.json)) == (200, {"count", "results"})
