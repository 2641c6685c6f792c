"""What a seed can hold.

A seed has project keys, persons, groups and events, and organizations with everything that the
management API has no endpoint to create: members with their personal keys, batch exports,
dashboards. What isn't known, or of a wrong type, is an error of pydantic's.
"""

from __future__ import annotations

import json
from datetime import date
from typing import Annotated, Any, Final, Literal, TypeAlias, cast
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from forwarder.contract.endpoints import KeyScope
from forwarder.contract.payloads import Address, Count, Interval, Line, NewInvite, NewProject, Text
from forwarder.contract.resources import LEVELS, OWNER, Json, JsonObject, Model, RunStatus
from forwarder.sandbox.flags.definitions import InvalidDefinition
from forwarder.sandbox.flags.linked import check_entry
from forwarder.sandbox.flags.members import reject_unknown_members
from forwarder.sandbox.flags.stored import DefinitionKind
from forwarder.sandbox.ingest.validation import check_token
from forwarder.sandbox.manage.authorize import ALL_SCOPES, FLAG_SCOPES
from forwarder.sandbox.manage.domains import host_name
from forwarder.sandbox.manage.projects import is_timezone
from forwarder.sandbox.manage.validation import accepted_fields, fault_of
from forwarder.sandbox.protocol.http import ManagementError, RequestRejected

SETTINGS: Final = "settings"
"""The field that collects a payload's fields; it is not in the file, and not in messages."""
_NUMBERS: Final = {name: number for number, name in LEVELS.items()}


class SeedEntry(BaseModel):
    """An entry of a seed: what isn't known, or of another type, is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _check_key(api_key: str) -> str:
    try:
        return check_token(api_key)
    except RequestRejected as rejection:
        raise ValueError(f"this is {rejection.message}") from None


ProjectKey: TypeAlias = Annotated[str, AfterValidator(_check_key)]


SeedName: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"\S")]


SeedTime: TypeAlias = Annotated[AwareDatetime, Field(strict=False)]


SeedId: TypeAlias = Annotated[UUID, Field(strict=False)]


def _definition(kind: DefinitionKind, content: Any) -> Any:
    """A definition as JSON, checked; times are text in it."""
    try:
        definition = json.loads(seed_json(content))
    except (TypeError, ValueError):
        raise ValueError("this can't be written as JSON") from None
    if (fault := fault_of(definition)) is not None:
        raise ValueError(fault)
    try:
        reject_unknown_members(kind, definition)
        check_entry(kind, definition)
    except InvalidDefinition as error:
        raise ValueError(f"{error.path}: {error.what}" if error.path else error.what) from None
    return definition


def _of_kind(kind: DefinitionKind) -> BeforeValidator:
    return BeforeValidator(lambda content: _definition(kind, content))


class SeedDefinitions(SeedEntry):
    """What a project's flags are decided by, in the service's own forms. Flags and cohorts have no
    other members; of the rest, fields that the sandbox doesn't know are kept.
    """

    flags: list[Annotated[dict[str, Any], _of_kind(DefinitionKind.FLAG)]] = Field(
        default_factory=list
    )
    cohorts: list[Annotated[dict[str, Any], _of_kind(DefinitionKind.COHORT)]] = Field(
        default_factory=list
    )
    surveys: list[Annotated[dict[str, Any], _of_kind(DefinitionKind.SURVEY)]] = Field(
        default_factory=list
    )
    early_access_features: list[
        Annotated[dict[str, Any], _of_kind(DefinitionKind.EARLY_ACCESS_FEATURE)]
    ] = Field(default_factory=list)
    experiments: list[Annotated[dict[str, Any], _of_kind(DefinitionKind.EXPERIMENT)]] = Field(
        default_factory=list
    )
    group_types: list[SeedName] = Field(default_factory=list)
    """The types of groups from index 0 on."""

    @model_validator(mode="after")
    def _once(self) -> SeedDefinitions:
        for section, name in (("flags", "key"), ("cohorts", "id")):
            names = [entry[name] for entry in getattr(self, section)]
            if (
                repeated := next((text for text in names if names.count(text) > 1), None)
            ) is not None:
                raise ValueError(f"{section}: {name} {repeated} stands there already")
        return self


class SeedProjectKey(SeedDefinitions):
    """A project that exists."""

    api_key: ProjectKey
    name: str = ""


class SeedPerson(SeedEntry):
    """A person with its main distinct id, its further ones, and its properties."""

    distinct_id: SeedName
    distinct_ids: list[SeedName] = Field(default_factory=list)
    properties: dict[str, Any] = Field(default_factory=dict)
    created_at: SeedTime | None = None
    api_key: ProjectKey | None = None


class SeedGroup(SeedEntry):
    """A group."""

    group_type: SeedName
    group_key: SeedName
    properties: dict[str, Any] = Field(default_factory=dict)
    created_at: SeedTime | None = None
    api_key: ProjectKey | None = None


class SeedEvent(SeedEntry):
    """An event; without a timestamp it happens when the seed is planted first."""

    event: SeedName
    distinct_id: SeedName
    properties: dict[str, Any] = Field(default_factory=dict)
    timestamp: SeedTime | None = None
    uuid: SeedId | None = None
    api_key: ProjectKey | None = None


def folded(email: str) -> str:
    """An address as the database compares it: ignoring the case of ASCII letters."""
    return email.encode().lower().decode()


def _number(level: Any) -> Any:
    return _NUMBERS.get(level, level) if isinstance(level, str) else level


def _scope(name: str) -> str:
    scopes = (ALL_SCOPES, *KeyScope, *FLAG_SCOPES)
    if name not in scopes:
        raise ValueError(f"there is no such scope; there are {', '.join(scopes)}")
    return name


def _domain(text: str) -> str:
    try:
        return host_name(text)
    except ManagementError as error:
        raise ValueError(error.detail) from None


SeedLevel: TypeAlias = Annotated[Literal[1, 8, 15], BeforeValidator(_number)]


PersonalKey: TypeAlias = Annotated[
    str,
    StringConstraints(min_length=16, max_length=200, pattern=r"^phx_[!-~]+$"),
    Field(repr=False),
]


class SeedKey(SeedEntry):
    """A personal key of a member, and what it is good for."""

    key: PersonalKey
    label: Line = ""
    scopes: Annotated[list[Annotated[str, AfterValidator(_scope)]], Field(min_length=1)]


class SeedMember(SeedEntry):
    """A user, and a member of the organization."""

    email: Address
    uuid: SeedId | None = None
    distinct_id: SeedName | None = None
    first_name: Line = ""
    last_name: Line = ""
    level: SeedLevel = 1
    is_email_verified: bool = True
    is_2fa_enabled: bool = False
    has_social_auth: bool = False
    last_login: SeedTime | None = None
    joined_at: SeedTime | None = None
    hedgehog_config: JsonObject = Field(default_factory=dict)
    role_at_organization: Line = ""
    personal_api_keys: list[SeedKey] = Field(default_factory=list)


class SeedDomain(SeedEntry):
    """A domain; with a time at which it was verified it is."""

    id: SeedId | None = None
    domain: Annotated[str, AfterValidator(_domain)]
    verified_at: SeedTime | None = None
    verification_challenge: SeedName | None = None
    jit_provisioning_enabled: bool = False
    sso_enforcement: Annotated[str, StringConstraints(max_length=28)] = ""
    saml_entity_id: Annotated[str, StringConstraints(max_length=512)] = ""
    saml_acs_url: Annotated[str, StringConstraints(max_length=512)] = ""
    saml_x509_cert: Text = ""

    @model_validator(mode="after")
    def _verified(self) -> SeedDomain:
        if self.verified_at is None and (self.jit_provisioning_enabled or self.sso_enforcement):
            raise ValueError(
                "jit_provisioning_enabled and sso_enforcement are for a domain that is verified "
                "(verified_at)"
            )
        return self


class SeedRun(SeedEntry):
    """A run of a batch export."""

    id: SeedId | None = None
    status: RunStatus
    latest_error: Text = ""
    records_completed: Count = 0
    records_total_count: Count | None = None
    data_interval_start: SeedTime | None = None
    data_interval_end: SeedTime | None = None
    cursor: Text = ""
    created_at: SeedTime | None = None
    finished_at: SeedTime | None = None


class SeedDestination(SeedEntry):
    """Where a batch export goes."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    config: Annotated[Json, Field(repr=False)] = None


class SeedExport(SeedEntry):
    """A batch export."""

    id: SeedId | None = None
    name: SeedName
    model: Model = "events"
    destination: SeedDestination
    interval: Interval = "hour"
    paused: bool = False
    start_at: SeedTime | None = None
    end_at: SeedTime | None = None
    hogql_query: Text = ""
    filters: Json = None
    schema_: Annotated[Json, Field(alias="schema")] = None
    created_at: SeedTime | None = None
    runs: list[SeedRun] = Field(default_factory=list)

    @model_validator(mode="after")
    def _in_order(self) -> SeedExport:
        if self.start_at is not None and self.end_at is not None and self.start_at >= self.end_at:
            raise ValueError("start_at has to be before end_at")
        return self


class SeedDashboard(SeedEntry):
    """A dashboard."""

    name: SeedName
    description: Text = ""
    pinned: bool = False
    tags: list[Json] = Field(default_factory=list)
    is_shared: bool = False
    deleted: bool = False
    creation_mode: SeedName = "default"
    restriction_level: Literal[21, 37] = 21
    created_by: Address | None = None
    created_at: SeedTime | None = None


def _gather_fields(payload: Any, content: Any) -> Any:
    """An entry with the fields of a payload in one mapping."""
    if not isinstance(content, dict) or SETTINGS in content:
        return content
    names = payload.__required_keys__ | payload.__optional_keys__
    gathered = {name: value for name, value in content.items() if name in names}
    return {
        **{name: value for name, value in content.items() if name not in names},
        SETTINGS: gathered,
    }


def _check_payload(payload: Any, content: Any) -> dict[str, Any]:
    """The fields of a payload, validated as its endpoint does."""
    try:
        return cast("dict[str, Any]", accepted_fields(payload, content))
    except ManagementError as error:
        raise ValueError(f"{error.attr}: {error.detail}") from None


def _project_fields(content: Any) -> dict[str, Any]:
    fields = _check_payload(NewProject, content)
    if not is_timezone(fields.get("timezone", "UTC")):
        raise ValueError("timezone: there is no such time zone; one is Europe/Berlin")
    if "primary_dashboard" in fields:
        raise ValueError("primary_dashboard: it is the first of the dashboards")
    return fields


def _invite_fields(content: Any) -> dict[str, Any]:
    return _check_payload(
        NewInvite,
        {**content, "level": _number(content["level"])} if "level" in content else content,
    )


class SeedInvite(SeedEntry):
    """An invite, with the fields that its endpoint accepts."""

    id: SeedId | None = None
    created_at: SeedTime | None = None
    created_by: Address | None = None
    settings: Annotated[dict[str, Any], AfterValidator(_invite_fields)]

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, content: Any) -> Any:
        return _gather_fields(NewInvite, content)


class SeedProject(SeedDefinitions):
    """A project, with the fields that its endpoint accepts."""

    api_key: ProjectKey
    uuid: SeedId | None = None
    settings: Annotated[dict[str, Any], AfterValidator(_project_fields)]
    dashboards: list[SeedDashboard] | None = None
    """None: the one that every project begins with."""
    batch_exports: list[SeedExport] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, content: Any) -> Any:
        return _gather_fields(NewProject, content)


class SeedOrganization(SeedEntry):
    """An organization, with everything in it."""

    id: SeedId | None = None
    name: SeedName
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
        makers += [
            dashboard.created_by
            for project in self.projects
            for dashboard in project.dashboards or ()
        ]
        if not all(maker is None or folded(maker) in emails for maker in makers):
            raise ValueError("created_by is the email of one of its members")
        return self


class Seed(SeedEntry):
    """A whole file."""

    organizations: list[SeedOrganization] = Field(default_factory=list)
    projects: list[SeedProjectKey] = Field(default_factory=list)
    persons: list[SeedPerson] = Field(default_factory=list)
    groups: list[SeedGroup] = Field(default_factory=list)
    events: list[SeedEvent] = Field(default_factory=list)

    @property
    def api_keys(self) -> frozenset[str]:
        """The projects that the seed names."""
        return frozenset(self._api_keys())

    @property
    def only_project(self) -> str | None:
        """The key of the only project that the seed names; None if there are none or several."""
        api_keys = self._api_keys()
        return api_keys[0] if len(api_keys) == 1 else None

    @property
    def all_projects(self) -> list[SeedProjectKey | SeedProject]:
        """The projects of both forms."""
        return [
            *self.projects,
            *(project for organization in self.organizations for project in organization.projects),
        ]

    def _api_keys(self) -> list[str]:
        return [project.api_key for project in self.all_projects]


def seed_json(value: Any) -> str:
    """A value as JSON; dates and times are ISO 8601 in it. Raises `TypeError` or `ValueError` for
    what JSON hasn't.
    """
    return json.dumps(value, allow_nan=False, default=_time)


def _time(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError
