"""The table of the management endpoints (interface document, "A. Management API"): one row each.

Nothing else repeats a path, scope or status.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from forwarder.contract.payloads import (
    BatchExportChange,
    DomainChange,
    MemberChange,
    NewDomain,
    NewInvite,
    NewProject,
    RunChange,
)
from forwarder.contract.resources import (
    ADMIN,
    MEMBER,
    BatchExport,
    Dashboard,
    Domain,
    Invite,
    Member,
    Project,
    ProjectItem,
)

Q = TypeVar("Q")
R = TypeVar("R")


class Method(StrEnum):
    """An HTTP method."""

    GET = "GET"
    POST = "POST"
    PATCH = "PATCH"
    DELETE = "DELETE"


class KeyScope(StrEnum):
    """What a personal API key permits; write implies read (interface document, Authentication 2;
    wire facts).
    """

    BATCH_EXPORT_READ = "batch_export:read"
    BATCH_EXPORT_WRITE = "batch_export:write"
    ORGANIZATION_READ = "organization:read"
    ORGANIZATION_WRITE = "organization:write"
    MEMBER_READ = "organization_member:read"
    MEMBER_WRITE = "organization_member:write"
    PROJECT_READ = "project:read"
    PROJECT_WRITE = "project:write"
    DASHBOARD_READ = "dashboard:read"


class IdKind(StrEnum):
    """The type of an id in a path; a text of another form is an unknown id."""

    UUID = "uuid"
    INTEGER = "integer"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One id in a path."""

    name: str
    kind: IdKind


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Q, R]):
    """One row of the table. `Q` is the request's body, `R` the response's; None: no body."""

    resource: str
    """Its group, as commands spell it: `batch-exports`."""
    verb: str
    method: Method
    path: str
    """With its ids in braces, by the names of the interface document; and the slash at its end."""
    scope: KeyScope
    summary: str
    """One line, for commands and documents."""
    request: type[Q]
    """The type of the accepted body; `type(None)`: no body."""
    response: type[R]
    """The type of what it answers, for a list that of one item."""
    status: int = 200
    paginated: bool = False
    level: int = MEMBER
    """The required membership level (gap `levels`)."""
    several: bool = False
    """Whether an array of bodies is accepted as well."""

    @property
    def name(self) -> str:
        """`resource verb`, as it is typed."""
        return f"{self.resource} {self.verb}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The ids in the path, in order."""
        return tuple(
            Parameter(name, self._kind(name)) for name in re.findall(r"\{(\w+)\}", self.path)
        )

    @property
    def destructive(self) -> bool:
        """Whether it deletes something."""
        return self.method is Method.DELETE

    @property
    def takes_body(self) -> bool:
        """Whether it accepts fields."""
        return self.request is not type(None)

    @property
    def answers_body(self) -> bool:
        """Whether the contract has a body in the answer."""
        return self.response is not type(None)

    def _kind(self, name: str) -> IdKind:
        return (
            IdKind.INTEGER
            if name == "project_id" or (name == "id" and self.resource == "projects")
            else IdKind.UUID
        )


_ORGANIZATION: Final = "/api/organizations/{organization_id}/"
_ENVIRONMENT: Final = "/api/environments/{project_id}/"
_GET, _POST, _PATCH, _DELETE = Method
_NOTHING: Final = type(None)

PAUSE_ORGANIZATION_BATCH_EXPORT = Endpoint(
    "organization-batch-exports",
    "pause",
    _POST,
    _ORGANIZATION + "batch_exports/{id}/pause/",
    KeyScope.BATCH_EXPORT_WRITE,
    "Pause a batch export of any project of an organization.",
    BatchExportChange,
    _NOTHING,
)
UNPAUSE_ORGANIZATION_BATCH_EXPORT = Endpoint(
    "organization-batch-exports",
    "unpause",
    _POST,
    _ORGANIZATION + "batch_exports/{id}/unpause/",
    KeyScope.BATCH_EXPORT_WRITE,
    "Resume a paused batch export of any project of an organization.",
    BatchExportChange,
    _NOTHING,
)

LIST_DOMAINS = Endpoint(
    "domains",
    "list",
    _GET,
    _ORGANIZATION + "domains/",
    KeyScope.ORGANIZATION_READ,
    "List the domains of an organization.",
    _NOTHING,
    Domain,
    paginated=True,
)
CREATE_DOMAIN = Endpoint(
    "domains",
    "create",
    _POST,
    _ORGANIZATION + "domains/",
    KeyScope.ORGANIZATION_WRITE,
    "Add a domain, to be verified afterwards.",
    NewDomain,
    Domain,
    201,
    level=ADMIN,
)
GET_DOMAIN = Endpoint(
    "domains",
    "get",
    _GET,
    _ORGANIZATION + "domains/{id}/",
    KeyScope.ORGANIZATION_READ,
    "Show a domain.",
    _NOTHING,
    Domain,
)
UPDATE_DOMAIN = Endpoint(
    "domains",
    "update",
    _PATCH,
    _ORGANIZATION + "domains/{id}/",
    KeyScope.ORGANIZATION_WRITE,
    "Change the single sign-on of a domain.",
    DomainChange,
    Domain,
    level=ADMIN,
)
DELETE_DOMAIN = Endpoint(
    "domains",
    "delete",
    _DELETE,
    _ORGANIZATION + "domains/{id}/",
    KeyScope.ORGANIZATION_WRITE,
    "Remove a domain.",
    _NOTHING,
    _NOTHING,
    204,
    level=ADMIN,
)
VERIFY_DOMAIN = Endpoint(
    "domains",
    "verify",
    _POST,
    _ORGANIZATION + "domains/{id}/verify/",
    KeyScope.ORGANIZATION_WRITE,
    "Verify a domain by its challenge in the DNS.",
    DomainChange,
    _NOTHING,
    level=ADMIN,
)

LIST_INVITES = Endpoint(
    "invites",
    "list",
    _GET,
    _ORGANIZATION + "invites/",
    KeyScope.MEMBER_READ,
    "List the invites of an organization.",
    _NOTHING,
    Invite,
    paginated=True,
)
CREATE_INVITE = Endpoint(
    "invites",
    "create",
    _POST,
    _ORGANIZATION + "invites/",
    KeyScope.MEMBER_WRITE,
    "Invite a person to an organization.",
    NewInvite,
    Invite,
    201,
)
DELETE_INVITE = Endpoint(
    "invites",
    "delete",
    _DELETE,
    _ORGANIZATION + "invites/{id}/",
    KeyScope.MEMBER_WRITE,
    "Delete an invite.",
    _NOTHING,
    _NOTHING,
    204,
)
BULK_INVITE = Endpoint(
    "invites",
    "bulk",
    _POST,
    _ORGANIZATION + "invites/bulk/",
    KeyScope.MEMBER_WRITE,
    "Invite up to 20 people, all or none.",
    NewInvite,
    _NOTHING,
    several=True,
)

LIST_MEMBERS = Endpoint(
    "members",
    "list",
    _GET,
    _ORGANIZATION + "members/",
    KeyScope.MEMBER_READ,
    "List the members of an organization.",
    _NOTHING,
    Member,
    paginated=True,
)
UPDATE_MEMBER = Endpoint(
    "members",
    "update",
    _PATCH,
    _ORGANIZATION + "members/{user__uuid}/",
    KeyScope.MEMBER_WRITE,
    "Change the level of a member.",
    MemberChange,
    Member,
    level=ADMIN,
)
DELETE_MEMBER = Endpoint(
    "members",
    "delete",
    _DELETE,
    _ORGANIZATION + "members/{user__uuid}/",
    KeyScope.MEMBER_WRITE,
    "Remove a member, or leave.",
    _NOTHING,
    _NOTHING,
    204,
)

LIST_PROJECTS = Endpoint(
    "projects",
    "list",
    _GET,
    _ORGANIZATION + "projects/",
    KeyScope.PROJECT_READ,
    "List the projects of an organization.",
    _NOTHING,
    ProjectItem,
    paginated=True,
)
CREATE_PROJECT = Endpoint(
    "projects",
    "create",
    _POST,
    _ORGANIZATION + "projects/",
    KeyScope.PROJECT_WRITE,
    "Add a project; events are sent with its api_token.",
    NewProject,
    Project,
    201,
    level=ADMIN,
)
GET_PROJECT = Endpoint(
    "projects",
    "get",
    _GET,
    _ORGANIZATION + "projects/{id}/",
    KeyScope.PROJECT_READ,
    "Show a project.",
    _NOTHING,
    Project,
)

GET_BATCH_EXPORT = Endpoint(
    "batch-exports",
    "get",
    _GET,
    _ENVIRONMENT + "batch_exports/{id}/",
    KeyScope.BATCH_EXPORT_READ,
    "Show a batch export with its latest runs.",
    _NOTHING,
    BatchExport,
)
UPDATE_BATCH_EXPORT = Endpoint(
    "batch-exports",
    "update",
    _PATCH,
    _ENVIRONMENT + "batch_exports/{id}/",
    KeyScope.BATCH_EXPORT_WRITE,
    "Change a batch export.",
    BatchExportChange,
    BatchExport,
)
DELETE_BATCH_EXPORT = Endpoint(
    "batch-exports",
    "delete",
    _DELETE,
    _ENVIRONMENT + "batch_exports/{id}/",
    KeyScope.BATCH_EXPORT_WRITE,
    "Remove a batch export with its runs.",
    _NOTHING,
    _NOTHING,
    204,
)
BACKFILL_BATCH_EXPORT = Endpoint(
    "batch-exports",
    "backfill",
    _POST,
    _ENVIRONMENT + "batch_exports/{id}/backfill/",
    KeyScope.BATCH_EXPORT_WRITE,
    "Export a time range again, from start_at to end_at.",
    BatchExportChange,
    _NOTHING,
)
PAUSE_BATCH_EXPORT = Endpoint(
    "batch-exports",
    "pause",
    _POST,
    _ENVIRONMENT + "batch_exports/{id}/pause/",
    KeyScope.BATCH_EXPORT_WRITE,
    "Pause a batch export.",
    BatchExportChange,
    _NOTHING,
)
UNPAUSE_BATCH_EXPORT = Endpoint(
    "batch-exports",
    "unpause",
    _POST,
    _ENVIRONMENT + "batch_exports/{id}/unpause/",
    KeyScope.BATCH_EXPORT_WRITE,
    "Resume a paused batch export.",
    BatchExportChange,
    _NOTHING,
)
LOGS_OF_BATCH_EXPORT = Endpoint(
    "batch-exports",
    "logs",
    _GET,
    _ENVIRONMENT + "batch_exports/{id}/logs/",
    KeyScope.BATCH_EXPORT_READ,
    "Show the log of a batch export.",
    _NOTHING,
    _NOTHING,
)
RETRY_BATCH_EXPORT_RUN = Endpoint(
    "batch-export-runs",
    "retry",
    _POST,
    _ENVIRONMENT + "batch_exports/{batch_export_id}/runs/{id}/retry/",
    KeyScope.BATCH_EXPORT_WRITE,
    "Retry a run of a batch export.",
    RunChange,
    _NOTHING,
)

LIST_DASHBOARDS = Endpoint(
    "dashboards",
    "list",
    _GET,
    _ENVIRONMENT + "dashboards/",
    KeyScope.DASHBOARD_READ,
    "List the dashboards of a project.",
    _NOTHING,
    Dashboard,
    paginated=True,
)

ENDPOINTS: Final[tuple[Endpoint[Any, Any], ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Endpoint)
)
"""All of them, in the order of the interface document."""
