"""`/openapi.json` is compared with the application: what is served is in it, and what is in it is
served so.
"""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from forwarder.contract.endpoints import ENDPOINTS
from forwarder.contract.ingestion import INGESTION
from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.openapi import LISTINGS, document
from forwarder.sandbox.openapi.schemas import PUBLISHED_NAMES
from tests.sandbox.client import UUID, batch, event, talking
from tests.support.cases import cases
from tests.support.management import TOKEN, seeded

VALUES = {"date-time": "2025-01-01", "integer": "1", "boolean": "true"}
BOTH_MODES = pytest.mark.parametrize("strict", [False, True], ids=["contract", "strict"])
PROPERTIES = {
    "$groups": {"company": "x"},
    "$survey_id": "s",
    "$survey_response": "good",
    "$set": {"a": 1},
    "$group_type": "company",
    "$group_key": "x",
    "$feature_flag": "beta",
    "$import_job_id": "some import",
}
NAMES = ("survey sent", "$groupidentify", "$feature_flag_called", "")
EVENTS = [
    *(event(event=name, properties=PROPERTIES) for name in NAMES),
    event(uuid=UUID),
    event(uuid=UUID, event="another"),
    event(properties={"$process_person_profile": "odd"}),
]
"""Something for each listing of what events bring: two contradict each other."""
ENDLESS = ("/sandbox/live", "get")
"""Is left out: what follows the document would wait for its end."""


def operations(described: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The operations by path, without the slash at its end, and method."""
    return {
        (path.rstrip("/"), method): operation
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }


@BOTH_MODES
async def test_every_endpoint_is_in_it(strict: bool) -> None:
    """Each path and method that is served is described, but for the page, browsers' questions and
    the endless stream; nothing else is.
    """
    served = set()
    async with talking(SandboxOptions(strict=strict)) as client:
        application = client.sandbox._application(frozenset(), lambda _key: None)
        paths = {resource.canonical for resource in application.router.resources()}
        for path in {
            path
            for path in paths
            if not path.startswith(("/page", "/openapi")) and path not in ("/", "/api")
        }:
            refused = await client.ask("TRACE", re.sub(r"\{\w+\}", "1", path))
            if refused.status == 405:
                served |= {
                    (path.rstrip("/"), method.strip().lower())
                    for method in refused.headers["Allow"].split(",")
                }
    served = {(path, method) for path, method in served if method not in ("head", "options")}
    assert served - {ENDLESS} == set(operations(document(strict=strict)))


@BOTH_MODES
def test_it_is_an_openapi_document(strict: bool) -> None:
    """It has the form that OpenAPI 3.1 prescribes, its schemas that of JSON Schema, names are
    unique, and all references lead somewhere.
    """
    described = document(strict=strict)
    # only now: it takes a second
    definitions = import_module("schemathesis.specs.openapi.definitions")
    definitions.OPENAPI_31_VALIDATOR.validate(described)
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = [operation["operationId"] for operation in operations(described).values()]
    assert len(set(names)) == len(names)
    places = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described)))
    assert places == set(described["components"]["schemas"])


@BOTH_MODES
async def test_it_is_served_for_the_mode(strict: bool) -> None:
    """What is served is the document of the mode in which the sandbox runs."""
    async with talking(SandboxOptions(strict=strict)) as client:
        assert await client.get("/openapi.json") == document(strict=strict)
    assert document(strict=False) != document(strict=True)


@cases("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_a_row_of_the_table_is_an_operation(endpoint: Any) -> None:
    """Each management endpoint has its scope, ids, status, body and errors, and by the contract a
    body only where the table has one.
    """
    described = document()["paths"][endpoint.path][endpoint.method.lower()]
    assert described["security"] == [{"personalKey": [endpoint.scope]}]
    parameters = {(parameter["in"], parameter["name"]) for parameter in described["parameters"]}
    pages = {("query", "limit"), ("query", "offset")} if endpoint.paginated else set()
    assert parameters == {("path", parameter.name) for parameter in endpoint.parameters} | pages
    assert ("requestBody" in described) == endpoint.takes_body
    answers = described["responses"]
    assert ("content" in answers[str(endpoint.status)]) == endpoint.answers_body
    assert [status for status in answers if status < "300"] == [str(endpoint.status)]
    assert {"401", "403", "404"} <= set(answers)
    assert {"413", "415"} <= set(answers) or not endpoint.takes_body


def test_the_contracts_ingestion_is_in_it() -> None:
    """Decide, capture and batch take the body, and answer with the fields, that the
    contract has.
    """
    described = document()
    for endpoint in INGESTION:
        one = described["paths"][endpoint.path]["post"]
        assert one["requestBody"]["content"]["application/json"]["schema"] == {
            "$ref": f"#/components/schemas/{endpoint.request.__name__}"
        }
        response = PUBLISHED_NAMES.get(endpoint.response.__name__, endpoint.response.__name__)
        assert f"#/components/schemas/{response}" in json.dumps(one["responses"]["200"])


@cases("path", LISTINGS)
async def test_listings_are_as_described(path: str, tmp_path: Path) -> None:
    """Each listing fits its schema, and takes each parameter that is described."""
    async with talking(seeded(tmp_path)) as client:
        await client.post("/batch/", {"api_key": TOKEN, "batch": EVENTS})
        whole = await client.get("/openapi.json")
        described = whole["paths"][path]["get"]
        listing = await client.get(path)
        schema = {
            **described["responses"]["200"]["content"]["application/json"]["schema"],
            "components": whole["components"],
        }
        jsonschema.Draft202012Validator(schema).validate(listing)
        assert listing["results"]
        for parameter in described["parameters"]:
            schema = parameter["schema"]
            value = VALUES.get(schema.get("format"), VALUES.get(schema.get("type"), "x"))
            answer = await client.ask("GET", f"{path}?{parameter['name']}={value}")
            assert (answer.status, set(answer.json)) == (200, {"count", "results"})


async def test_a_person_is_as_described() -> None:
    """What is shown of one person, with sources, merges, groups and a warning, fits its schema."""
    said = {"$anon_distinct_id": "anon", "$process_person_profile": "odd", **PROPERTIES}
    async with talking() as client:
        await client.post("/batch/", batch(event(event="$identify", properties=said)))
        [person] = (await client.get("/sandbox/persons"))["results"]
        shown = await client.get(f"/sandbox/persons/{person['id']}")
        assert all(shown.values())
        described = document()["components"]
        schema = {"$ref": "#/components/schemas/PersonDetails", "components": described}
        jsonschema.Draft202012Validator(schema).validate(shown)
