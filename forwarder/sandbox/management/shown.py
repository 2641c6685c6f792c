"""What `/sandbox/organizations`, `projects`, `members`, `invites`, `domains`, `dashboards` and `batch-exports` show.

The resources as the management API answers them, with what they belong to and what else a person wants to know of them. Nothing is a
secret: project keys are masked, of a personal key there is its label and what it is good for, and destinations come without their secrets.
"""

from __future__ import annotations

from typing_extensions import TypedDict

from forwarder.contract.kinds import Timestamp, Uuid
from forwarder.contract.payloads import NewProject
from forwarder.contract.resources import BatchExport, Dashboard, Domain, Invite, Member


class Owner(TypedDict):
    """The organization that something belongs to."""

    id: Uuid
    name: str


class InProject(TypedDict):
    """The project that something belongs to."""

    id: int
    name: str


class ShownOrganization(TypedDict):
    """An organization, and how much it has; of invites those that haven't expired."""

    id: Uuid
    name: str
    created_at: Timestamp
    members: int
    projects: int
    domains: int
    pending_invites: int


class ShownProject(TypedDict):
    """A project, and how much it has; of dashboards those that aren't deleted. In `settings` the address of a webhook is `…`."""

    id: int
    uuid: Uuid
    organization: Owner
    name: str
    api_key: str
    created_at: Timestamp
    updated_at: Timestamp
    ingested_event: bool
    dashboards: int
    batch_exports: int
    settings: NewProject


class ShownKey(TypedDict):
    """A personal API key, without the key. The scope `*` is all of them."""

    label: str
    scopes: list[str]
    created_at: Timestamp


class ShownMember(Member):
    """Somebody in an organization."""

    organization: Owner
    level_name: str
    personal_api_keys: list[ShownKey]


class ShownInvite(Invite):
    """Somebody who was asked to join."""

    organization: Owner
    level_name: str
    expires_at: Timestamp


class DnsRecord(TypedDict):
    """What the DNS must say for a domain to be verified."""

    type: str
    name: str
    value: str


class ShownDomain(Domain):
    """A domain of an organization."""

    organization: Owner
    dns_record: DnsRecord


class ShownDashboard(Dashboard):
    """A dashboard of a project, and whether it is the project's `primary_dashboard`."""

    organization: Owner
    project: InProject
    is_primary: bool


class ShownBatchExport(BatchExport):
    """A batch export with its latest runs, and how many there are in all."""

    organization: Owner
    project: InProject
    runs: int
