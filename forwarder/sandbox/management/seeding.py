"""The organizations of a seed, with all that the contract has no endpoint to make: members with their personal keys, batch exports,
dashboards. `planting` puts them into the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from forwarder.contract.endpoints import Scope
from forwarder.contract.kinds import LEVELS, OWNER, Json, JsonObject
from forwarder.contract.payloads import Address, Count, Interval, Line, NewInvite, NewProject, Text
from forwarder.contract.resources import Model, RunStatus
from forwarder.sandbox.management.call import ManagementError
from forwarder.sandbox.management.domains import host_name
from forwarder.sandbox.management.projects import is_timezone
from forwarder.sandbox.management.validation import accepted_fields, fault_of
from forwarder.sandbox.sections import Id, Key, Name, Section, Time

SETTINGS: Final = "settings"
"""Where the fields of a payload are gathered; a person doesn't write it, and messages don't say it."""
_NUMBERS: Final = {name: number for number, name in LEVELS.items()}


def _number(level: Any) -> Any:
    return _NUMBERS.get(level, level) if isinstance(level, str) else level


def _scope(name: str) -> str:
    if name != "*" and name not in list(Scope):
        raise ValueError(f"there is no such scope; there are *, {', '.join(Scope)}")
    return name


def _domain(text: str) -> str:
    try:
        return host_name(text)
    except ManagementError as error:
        raise ValueError(error.detail) from None


def folded(email: str) -> str:
    """An address as the database compares it: the case of ASCII letters doesn't count."""
    return email.encode().lower().decode()


Level: TypeAlias = Annotated[Literal[1, 8, 15], BeforeValidator(_number)]
PersonalKey: TypeAlias = Annotated[str, StringConstraints(min_length=16, max_length=200, pattern=r"^phx_[!-~]+$"), Field(repr=False)]


class SeedKey(Section):
    """A personal key of a member, and what it is good for."""

    key: PersonalKey
    label: Line = ""
    scopes: Annotated[list[Annotated[str, AfterValidator(_scope)]], Field(min_length=1)]


class SeedMember(Section):
    """A user, and a member of the organization."""

    email: Address
    uuid: Id | None = None
    distinct_id: Name | None = None
    first_name: Line = ""
    last_name: Line = ""
    level: Level = 1
    is_email_verified: bool = True
    is_2fa_enabled: bool = False
    has_social_auth: bool = False
    last_login: Time | None = None
    joined_at: Time | None = None
    hedgehog_config: JsonObject = Field(default_factory=dict)
    role_at_organization: Line = ""
    personal_api_keys: list[SeedKey] = Field(default_factory=list)


class SeedDomain(Section):
    """A domain; with a time at which it was verified it is."""

    id: Id | None = None
    domain: Annotated[str, AfterValidator(_domain)]
    verified_at: Time | None = None
    verification_challenge: Name | None = None
    jit_provisioning_enabled: bool = False
    sso_enforcement: Annotated[str, StringConstraints(max_length=28)] = ""
    saml_entity_id: Annotated[str, StringConstraints(max_length=512)] = ""
    saml_acs_url: Annotated[str, StringConstraints(max_length=512)] = ""
    saml_x509_cert: Text = ""

    @model_validator(mode="after")
    def _verified(self) -> SeedDomain:
        if self.verified_at is None and (self.jit_provisioning_enabled or self.sso_enforcement):
            raise ValueError("jit_provisioning_enabled and sso_enforcement are for a domain that is verified (verified_at)")
        return self


class SeedRun(Section):
    """A run of a batch export."""

    id: Id | None = None
    status: RunStatus
    latest_error: Text = ""
    records_completed: Count = 0
    records_total_count: Count | None = None
    data_interval_start: Time | None = None
    data_interval_end: Time | None = None
    cursor: Text = ""
    created_at: Time | None = None
    finished_at: Time | None = None


class SeedDestination(Section):
    """Where a batch export goes."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    config: Annotated[Json, Field(repr=False)] = None


class SeedExport(Section):
    """A batch export."""

    id: Id | None = None
    name: Name
    model: Model = "events"
    destination: SeedDestination
    interval: Interval = "hour"
    paused: bool = False
    start_at: Time | None = None
    end_at: Time | None = None
    hogql_query: Text = ""
    filters: Json = None
    schema_: Annotated[Json, Field(alias="schema")] = None
    created_at: Time | None = None
    runs: list[SeedRun] = Field(default_factory=list)

    @model_validator(mode="after")
    def _in_order(self) -> SeedExport:
        if self.start_at is not None and self.end_at is not None and self.start_at >= self.end_at:
            raise ValueError("start_at has to be before end_at")
        return self


class SeedDashboard(Section):
    """A dashboard."""

    name: Name
    description: Text = ""
    pinned: bool = False
    tags: list[Json] = Field(default_factory=list)
    is_shared: bool = False
    deleted: bool = False
    creation_mode: Name = "default"
    restriction_level: Literal[21, 37] = 21
    created_by: Address | None = None
    created_at: Time | None = None


def _gathered(payload: Any, content: Any) -> Any:
    """An entry with the fields of a payload put together."""
    if not isinstance(content, dict) or SETTINGS in content:
        return content
    names = payload.__required_keys__ | payload.__optional_keys__
    gathered = {name: value for name, value in content.items() if name in names}
    return {**{name: value for name, value in content.items() if name not in names}, SETTINGS: gathered}


def _checked(payload: Any, content: Any) -> dict[str, Any]:
    """The fields of a payload, as an endpoint would take them."""
    try:
        return cast("dict[str, Any]", accepted_fields(payload, content))
    except ManagementError as error:
        raise ValueError(f"{error.attr}: {error.detail}") from None


def _project_fields(content: Any) -> dict[str, Any]:
    fields = _checked(NewProject, content)
    if not is_timezone(fields.get("timezone", "UTC")):
        raise ValueError("timezone: there is no such time zone; one is Europe/Berlin")
    if "primary_dashboard" in fields:
        raise ValueError("primary_dashboard: it is the first of the dashboards")
    return fields


def _invite_fields(content: Any) -> dict[str, Any]:
    return _checked(NewInvite, {**content, "level": _number(content["level"])} if "level" in content else content)


class SeedInvite(Section):
    """An invite, with the fields that its endpoint accepts."""

    id: Id | None = None
    created_at: Time | None = None
    created_by: Address | None = None
    settings: Annotated[dict[str, Any], AfterValidator(_invite_fields)]

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, content: Any) -> Any:
        return _gathered(NewInvite, content)


class SeedProject(Section):
    """A project, with the fields that its endpoint accepts."""

    api_key: Key
    uuid: Id | None = None
    settings: Annotated[dict[str, Any], AfterValidator(_project_fields)]
    dashboards: list[SeedDashboard] | None = None
    """None: the one that every project begins with."""
    batch_exports: list[SeedExport] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, content: Any) -> Any:
        return _gathered(NewProject, content)


class SeedOrganization(Section):
    """An organization, with everything in it."""

    id: Id | None = None
    name: Name
    members: list[SeedMember] = Field(default_factory=list)
    domains: list[SeedDomain] = Field(default_factory=list)
    invites: list[SeedInvite] = Field(default_factory=list)
    projects: list[SeedProject] = Field(default_factory=list)

    @property
    def owner(self) -> SeedMember:
        """The first of its owners."""
        return next(member for member in self.members if member.level == OWNER)

    @model_validator(mode="before")
    @classmethod
    def _keepable(cls, content: Any) -> Any:
        if (fault := fault_of(content)) is not None:
            raise ValueError(fault)
        return content

    @model_validator(mode="after")
    def _whole(self) -> SeedOrganization:
        if not any(member.level == OWNER for member in self.members):
            raise ValueError("one of its members has to be an owner (level: owner)")
        emails = {folded(member.email) for member in self.members}
        makers = [invite.created_by for invite in self.invites]
        makers += [dashboard.created_by for project in self.projects for dashboard in project.dashboards or ()]
        if not all(maker is None or folded(maker) in emails for maker in makers):
            raise ValueError("created_by is the email of one of its members")
        return self


def unique_values(organizations: list[SeedOrganization]) -> Iterator[tuple[str, str, str]]:
    """What may stand there only once: its place, the kind of thing it is, and its value."""
    for index, organization in enumerate(organizations):
        place = f"organizations[{index}]"
        yield place, "organization", str(organization.id or f"named {organization.name}")
        yield from _unique_among_members(place, organization)
        for number, domain in enumerate(organization.domains):
            yield f"{place}.domains[{number}]", f"domain of {place}", domain.domain
            if domain.verified_at is not None:
                yield f"{place}.domains[{number}]", "verified domain", domain.domain
            yield f"{place}.domains[{number}].id", "id", str(domain.id or "")
        for number, invite in enumerate(organization.invites):
            yield f"{place}.invites[{number}].target_email", f"invite of {place}", folded(invite.settings["target_email"])
            yield f"{place}.invites[{number}].id", "id", str(invite.id or "")
        for number, project in enumerate(organization.projects):
            yield from _unique_in_project(f"{place}.projects[{number}]", project)


def _unique_among_members(place: str, organization: SeedOrganization) -> Iterator[tuple[str, str, str]]:
    for number, member in enumerate(organization.members):
        yield f"{place}.members[{number}].email", f"member of {place}", folded(member.email)
        for position, key in enumerate(member.personal_api_keys):
            yield f"{place}.members[{number}].personal_api_keys[{position}].key", "personal key", key.key


def _unique_in_project(place: str, project: SeedProject) -> Iterator[tuple[str, str, str]]:
    yield f"{place}.api_key", "project", project.api_key
    yield f"{place}.uuid", "id", str(project.uuid or "")
    for number, export in enumerate(project.batch_exports):
        yield f"{place}.batch_exports[{number}].id", "id", str(export.id or "")
        for position, run in enumerate(export.runs):
            yield f"{place}.batch_exports[{number}].runs[{position}].id", "id", str(run.id or "")
