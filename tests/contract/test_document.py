"""`interface.md` and the contract package say the same, in both directions, and neither leaves out
what the interface has.
"""

from __future__ import annotations

import re
from typing import Any, Final, get_args

from pydantic import TypeAdapter

from forwarder.contract import ingestion, payloads, resources
from forwarder.contract.endpoints import ENDPOINTS, KeyScope
from forwarder.contract.gaps import GAPS
from forwarder.contract.resources import (
    LARGEST_PAGE,
    LEVELS,
    PAGE_SIZE,
    ErrorBody,
    ErrorType,
    PageEnvelope,
)
from forwarder.sandbox.exports import export_records
from forwarder.sandbox.manage.validation import LARGEST_BODY
from tests.contract import names
from tests.contract.reading_schema import fields as contract_fields
from tests.contract.reading_schema import kind
from tests.contract.tables import (
    DOCUMENT,
    FieldRow,
    endpoints,
    fields,
    headings,
    plain,
    rows,
    spans,
)
from tests.support.cases import cases
from tests.support.documents import anchors, links
from tests.support.repository import ROOT, files

RESOURCES: Final[dict[str, Any]] = {
    "Domain": resources.Domain,
    "User": resources.User,
    "Invite": resources.Invite,
    "ProjectAccess": resources.ProjectAccess,
    "Member": resources.Member,
    "Project": resources.Project,
    "ProjectItem": resources.ProjectItem,
    "BatchExport": resources.BatchExport,
    "Destination": resources.Destination,
    "BatchExportRun": resources.BatchExportRun,
    "Dashboard": resources.Dashboard,
}
PAYLOADS: Final[dict[tuple[str, str], Any]] = {
    ("Domain", "create"): payloads.NewDomain,
    ("Domain", "update"): payloads.DomainChange,
    ("Invite", "create"): payloads.NewInvite,
    ("ProjectAccess", "create"): payloads.AccessToProject,
    ("Member", "update"): payloads.MemberChange,
    ("Project", "create"): payloads.NewProject,
    ("BatchExport", "update"): payloads.BatchExportChange,
    ("Destination", "update"): payloads.DestinationChange,
    ("Retry", "retry"): payloads.RunChange,
}
INGESTED: Final[dict[str, Any]] = {
    "Decide request": ingestion.DecideRequest,
    "Decide answer": ingestion.DecideResponse,
    "DecideConfig": ingestion.DecideConfig,
    "Capture request": ingestion.CaptureRequest,
    "Batch request": ingestion.BatchRequest,
    "BatchEvent": ingestion.BatchEvent,
    "Answer to events": ingestion.AcceptedEvents,
}
SILENT: Final = {"invites bulk"}
"""What both modes answer without a body."""
_SAME: Final = {"AccessToProject": "ProjectAccess", "DestinationChange": "Destination"}


def _of(heading: str, operation: str) -> dict[str, FieldRow]:
    return {field.name: field for field in fields(heading) if operation in field.written_by}


def _name(typed: Any) -> str | None:
    return (
        None
        if typed is type(None)
        else next(name for name, resource in RESOURCES.items() if resource is typed)
    )


def test_every_endpoint_is_a_row() -> None:
    """The table of endpoints is the contract's, row by row: method, path, scope, level, body,
    status, answer, pages.
    """
    bodies = {typed: where for where, typed in PAYLOADS.items()}
    table = [
        (
            row.call,
            row.method,
            row.path,
            row.scope,
            row.level,
            row.body,
            row.several,
            row.status,
            row.answer,
            row.pages,
        )
        for row in endpoints()
    ]
    assert table == [
        (
            endpoint.name,
            endpoint.method,
            endpoint.path,
            endpoint.scope,
            LEVELS[endpoint.level],
            bodies.get(endpoint.request),
            endpoint.several,
            endpoint.status,
            _name(endpoint.response),
            endpoint.paginated,
        )
        for endpoint in ENDPOINTS
    ]


def test_no_endpoint_of_the_interface_is_missing() -> None:
    """All 27 are there, with the scopes, statuses and answers that the interface has,
    in its order.
    """
    listed = [
        (
            f"{row.method} {row.path.replace('{', ':').replace('}', '')} {row.scope} {row.status} "
            f"{row.answer or '-'}{'...' * row.pages}"
        )
        for row in endpoints()
    ]
    assert listed == names.ENDPOINTS.strip().splitlines()
    assert len(listed) == 27


@cases("heading", RESOURCES)
def test_every_field_is_a_row(heading: str) -> None:
    """The table of a resource has the contract's fields, each with its type and whether it can be
    null; and an answer always has them.
    """
    known = contract_fields(RESOURCES[heading])
    assert {row.name: (row.type, row.null != "no") for row in fields(heading)} == {
        name: tuple(field.kind) for name, field in known.items()
    }
    assert all(field.needed for field in known.values())


@cases(("heading", "operation"), PAYLOADS, ids=map("-".join, PAYLOADS))
def test_every_accepted_field_is_marked(heading: str, operation: str) -> None:
    """What an operation accepts is marked in the table, with its type, its rule, and whether it is
    needed; nothing else is.
    """
    known = contract_fields(PAYLOADS[heading, operation])
    marked = _of(heading, operation)
    assert {
        name: (row.written_by[operation], row.type, row.null != "no")
        for name, row in marked.items()
    } == {
        name: (
            field.needed,
            re.sub(r"\w+$", lambda match: _SAME.get(match[0], match[0]), field.kind.type),
            field.kind.null,
        )
        for name, field in known.items()
    }
    ruled = {
        name: field.rule.replace("at most", "1 to") if name == "domain" else field.rule
        for name, field in known.items()
    }
    assert {
        name: row.rule for name, row in marked.items() if not row.rule.startswith(ruled[name])
    } == {}


def test_only_known_operations_write() -> None:
    """No table has an operation that no payload is for."""
    tables = [heading for heading in headings() if "written by" in rows(heading)[0]]
    assert {
        (heading, operation)
        for heading in tables
        for row in fields(heading)
        for operation in row.written_by
    } == set(PAYLOADS)
    assert set(tables) == {*RESOURCES, "Retry"}


@cases("heading", names.FIELDS)
def test_no_field_of_the_interface_is_missing(heading: str) -> None:
    """Each table has all fields of the interface, named to the letter, with its types, in its
    order, and no other.
    """
    assert [(plain(row["field"]), plain(row["type"])) for row in rows(heading)] == names.listed(
        names.FIELDS[heading]
    )


@cases(("heading", "operation"), names.ACCEPTED, ids=map("-".join, names.ACCEPTED))
def test_no_accepted_field_of_the_interface_is_missing(heading: str, operation: str) -> None:
    """Each operation accepts all that the interface lists for it, and nothing else."""
    assert set(_of(heading, operation)) == names.named(names.ACCEPTED[heading, operation])


def test_no_resource_of_the_interface_is_missing() -> None:
    """What is listed by hand is everything: each table of fields is either compared with the
    interface or explained here.
    """
    ours = {"Retry", "ProjectAccess", "BatchEvent", "Answer to events", "Error body"}
    assert {heading for heading in headings() if "field" in rows(heading)[0]} == {
        *names.FIELDS,
        *ours,
    }


def test_gaps_are_rows() -> None:
    """The gaps of the contract package are the document's, word for word, each once."""
    table = [tuple(row.values()) for row in rows("Gaps")]
    assert table == [
        (f"`{gap.name}`", gap.place, gap.open, gap.known or "—", gap.decided) for gap in GAPS
    ]
    assert len({gap.name for gap in GAPS}) == len(GAPS)


def test_no_gap_of_the_interface_is_missing() -> None:
    """All that the interface leaves open, or the service does otherwise, has a decision."""
    decided = {gap.name: gap.decided for gap in GAPS}
    assert {question: gap for question, gap in names.OPEN.items() if not decided.get(gap)} == {}


def test_gaps_that_the_code_names_exist() -> None:
    """A comment that refers to a gap leads to one."""
    named = {
        name
        for file in files(".py", "forwarder")
        for name in re.findall(r"gaps? `([a-z-]+)`", file.read_text("utf-8"))
    }
    assert named - {gap.name for gap in GAPS} == set()
    assert len(named) > 4


def test_strict_answers_are_of_the_calls_without_a_body() -> None:
    """The calls that only the service answers with a body are tabulated, but those that it answers
    without one too.
    """
    without = [
        endpoint.name
        for endpoint in ENDPOINTS
        if not endpoint.answers_body and endpoint.status == 200
    ]
    assert [plain(row["call"]) for row in rows("Strict answers")] == [
        name for name in without if name not in SILENT
    ]


def test_scopes_and_levels() -> None:
    """The tables have every scope and level, and no other."""
    assert [plain(row["scope"]) for row in rows("Scopes")] == list(KeyScope)
    assert {int(row["level"]): row["name"] for row in rows("Levels")} == LEVELS


def test_pages_and_errors_have_their_form() -> None:
    """Envelope, error body, types of errors and sizes of pages are as the
    contract package has them.
    """
    assert [plain(row["field"]) for row in rows("Envelope")] == list(PageEnvelope.__annotations__)
    known = {name: tuple(field.kind) for name, field in contract_fields(ErrorBody).items()}
    assert {
        plain(row["field"]): (row["type"], row["null"] != "no") for row in rows("Error body")
    } == known
    assert spans(rows("Error body")[0]["rule"]) == list(ErrorType)
    assert {plain(row["type"]) for row in rows("Errors")} <= set(ErrorType)
    limit, offset = rows("Pages")
    assert (limit["default"], limit["at most"], offset["default"]) == (
        str(PAGE_SIZE),
        str(LARGEST_PAGE),
        "0",
    )


def test_statuses_of_runs() -> None:
    """All statuses are listed, spelled exactly."""
    listed = [plain(row["status"]) for row in rows("Statuses of a run")]
    assert listed == list(get_args(resources.RunStatus)) == names.STATUSES.split(", ")
    for heading in ("BatchExportRun", "Retry"):
        assert listed == spans(next(row.rule for row in fields(heading) if row.name == "status"))


def test_keys_of_destinations() -> None:
    """What is read of a destination's config is tabulated, and nothing else."""
    read = r'(?:config\.get\(|_text\(config, |_choice\(config, )"(\w+)"'
    modules = (ROOT / "forwarder" / "sandbox" / "exports").glob("*.py")
    used = {name for file in modules for name in re.findall(read, file.read_text("utf-8"))}
    assert {plain(row["key"]) for row in rows("Destination config")} == used | set(
        export_records.NAMED_EVENTS
    )


def test_every_ingestion_endpoint_is_a_row() -> None:
    """The three endpoints have the contract's method, path, query, header, body,
    status and answer.
    """
    typed = {contract_type: heading for heading, contract_type in INGESTED.items()}
    assert [tuple(plain(cell) for cell in row.values()) for row in rows("Ingestion endpoints")] == [
        (
            endpoint.name,
            str(endpoint.method),
            endpoint.path,
            "&".join(f"{name}={value}" for name, value in endpoint.query.items()),
            ", ".join(endpoint.headers),
            typed[endpoint.request],
            str(endpoint.status),
            typed[endpoint.response],
        )
        for endpoint in ingestion.INGESTION
    ]
    assert [endpoint.url for endpoint in ingestion.INGESTION] == [
        "/decide?v=3",
        "/capture/",
        "/batch/",
    ]


@cases("heading", INGESTED)
def test_every_field_of_ingestion_is_a_row(heading: str) -> None:
    """What is sent to the ingestion API, and what it answers, is documented field by field, with
    type and need.
    """
    known = contract_fields(INGESTED[heading])
    assert {plain(row["field"]): plain(row["type"]) for row in rows(heading)} == {
        name: field.kind.type for name, field in known.items()
    }
    if "needed" in rows(heading)[0]:
        assert {plain(row["field"]) for row in rows(heading) if row["needed"] == "yes"} == {
            name for name in known if known[name].needed
        }


def test_places_failures_and_limits() -> None:
    """GeoIP properties, failures and limits are those of the contract package."""
    assert (
        {plain(row["property"]) for row in rows("Places")}
        == set(ingestion.GEOIP_PROPERTIES)
        == names.named(names.PLACES)
    )
    known = [
        (str(failure.status), failure.when, ", ".join(failure.endpoints))
        for failure in ingestion.FAILURES
    ]
    assert [tuple(row.values()) for row in rows("Failures")] == known
    limits = {row["what"]: row["limit"] for row in rows("Limits")}
    assert limits["a request's body, ingestion"] == f"below {ingestion.BODY_LIMIT:,} bytes"
    assert (limits["events of a batch"], limits["a request's body, management"]) == (
        "none",
        f"at most {LARGEST_BODY:,} bytes",
    )
    assert (limits["a page"], limits["invites of a bulk"]) == (
        f"{LARGEST_PAGE:,}",
        str(payloads.MOST_INVITES),
    )


def test_every_event_is_a_row() -> None:
    """The table of events is the contract's, and has every name and property of the interface's."""
    assert [
        (", ".join(spans(row["event"])), row["properties"], row["what it does"])
        for row in rows("Events")
    ] == [
        (
            ", ".join(rule.names),
            ", ".join(_property(event_property) for event_property in rule.properties) or "—",
            rule.effect,
        )
        for rule in ingestion.EVENTS
    ]
    assert [
        (", ".join(spans(row["event"])), " ".join(spans(row["properties"])))
        for row in rows("Events")
    ] == names.EVENTS


def _property(declared: ingestion.EventProperty) -> str:
    schema = TypeAdapter(declared.type).json_schema()
    said = kind(schema, schema.get("$defs", {})).type if "type" in schema else "JSON"
    return f"`{declared.name}` {said}{' (needed)' if declared.required else ''}"


def test_links_of_the_document_lead_somewhere() -> None:
    """Each link names a file of the repository, and a heading of it."""
    assert [
        str(target)
        for target, anchor in links(DOCUMENT)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ] == []
