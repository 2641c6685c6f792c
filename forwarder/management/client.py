"""The asynchronous client of the management API, with its operations by resource: one method for
each row of the endpoint table.

Ids come first, in the order of the path; fields are keywords. Every method raises `ApiError`.
Cancelling one drops its connection; a change may have been made by then. Where the contract has no
body in the response, a method returns what the service sent nevertheless, or None.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, cast
from uuid import UUID

from typing_extensions import Unpack

from forwarder.contract import endpoints as table
from forwarder.contract.endpoints import Endpoint
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
    BatchExport,
    Dashboard,
    Domain,
    Invite,
    JsonObject,
    Member,
    Project,
    ProjectItem,
)
from forwarder.core.clock import Clock, SystemClock
from forwarder.core.errors import ConfigurationError
from forwarder.management.addresses import base_address, check_key, check_proxy_url, tls_context
from forwarder.management.calling import EndpointCaller
from forwarder.management.errors import InvalidCall
from forwarder.management.pages import Pages
from forwarder.management.transport import ConnectionSettings

R = TypeVar("R")
TIMEOUT: Final = 30.0
CLOCK: Final = SystemClock()
Id: TypeAlias = str | int | UUID


class Client:
    """The management API of one service, with one key. It belongs to the event loop that first
    uses it, and ends with `close`.

    Its groups have a method for each operation; `call` and `pages` take a row of
    `forwarder.contract.endpoints` instead.
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        timeout: float = TIMEOUT,
        ca_file: str | Path | None = None,
        proxy: str | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        """`timeout`: seconds for one call with all its attempts, or for one page of a list.
        `ca_file`: the authorities to trust, in place of the system's. Raises `ConfigurationError`.
        """
        if not (math.isfinite(timeout) and timeout > 0):
            raise ConfigurationError(f"timeout: it must be more than 0 seconds, not {timeout!r}")
        base = base_address(url)
        access = ConnectionSettings(
            base, check_key(api_key), tls_context(base, ca_file), check_proxy_url(proxy)
        )
        self._caller = EndpointCaller(access, timeout, clock)
        self.organization_batch_exports = OrganizationBatchExportOperations(self._caller)
        self.domains = DomainOperations(self._caller)
        self.invites = InviteOperations(self._caller)
        self.members = MemberOperations(self._caller)
        self.projects = ProjectOperations(self._caller)
        self.batch_exports = BatchExportOperations(self._caller)
        self.batch_export_runs = BatchExportRunOperations(self._caller)
        self.dashboards = DashboardOperations(self._caller)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._caller.base}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client holds a key and connections: it can't be copied or pickled")

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; calls are rejected from then on. Cancellation leaves the closing
        to the garbage collector.
        """
        await self._caller.close()

    async def call(
        self, endpoint: Endpoint[Any, Any], ids: Mapping[str, object], body: Any = None
    ) -> Any:
        """What an endpoint answers (of a list: its first page); None if nothing. Raises `ApiError`.

        Cancellation drops the connection: what was sent may have been done.
        """
        return await self._caller.call(endpoint, ids, body)

    def pages(
        self, endpoint: Endpoint[Any, R], ids: Mapping[str, object], page_size: int | None = None
    ) -> Pages[R]:
        """The list that an endpoint gives."""
        return pages_of(self._caller, endpoint, ids, page_size)


class OperationGroup:
    """The operations of one resource."""

    def __init__(self, caller: EndpointCaller) -> None:
        self._caller = caller

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._caller.base}>"

    async def _call(self, endpoint: Endpoint[Any, R], body: object, *ids: Id) -> R:
        """The response that the contract has."""
        return cast(R, await self._caller.call(endpoint, _named(endpoint, ids), body))

    async def _do(self, endpoint: Endpoint[Any, None], body: object, *ids: Id) -> Any:
        """The response, where the contract has none."""
        return await self._caller.call(endpoint, _named(endpoint, ids), body)

    async def _act(
        self, endpoint: Endpoint[Any, None], body: object, *ids: Id
    ) -> JsonObject | None:
        """As `_do`, where nothing or an object is expected."""
        answer = await self._do(endpoint, body, *ids)
        return answer if isinstance(answer, dict) else None

    def _list(self, endpoint: Endpoint[Any, R], page_size: int | None, *ids: Id) -> Pages[R]:
        return pages_of(self._caller, endpoint, _named(endpoint, ids), page_size)


def pages_of(
    caller: EndpointCaller,
    endpoint: Endpoint[Any, R],
    ids: Mapping[str, object],
    page_size: int | None,
) -> Pages[R]:
    """The list that an endpoint gives. Raises `InvalidCall` if it gives none."""
    if not endpoint.paginated:
        raise InvalidCall(f"{endpoint.name}: it doesn't answer a list")
    given_ids = dict(ids)
    return Pages(
        endpoint.name, lambda query: caller.call(endpoint, given_ids, query=query), page_size
    )


def _named(endpoint: Endpoint[Any, Any], ids: Sequence[Id]) -> dict[str, object]:
    return {
        parameter.name: value for parameter, value in zip(endpoint.parameters, ids, strict=True)
    }


class OrganizationBatchExportOperations(OperationGroup):
    """Batch exports of any project of an organization."""

    async def pause(
        self, organization_id: Id, export_id: Id, /, **fields: Unpack[BatchExportChange]
    ) -> JsonObject | None:
        """Pause one."""
        return await self._act(
            table.PAUSE_ORGANIZATION_BATCH_EXPORT, fields, organization_id, export_id
        )

    async def unpause(
        self, organization_id: Id, export_id: Id, /, **fields: Unpack[BatchExportChange]
    ) -> JsonObject | None:
        """Resume a paused one."""
        return await self._act(
            table.UNPAUSE_ORGANIZATION_BATCH_EXPORT, fields, organization_id, export_id
        )


class DomainOperations(OperationGroup):
    """Domains of an organization, for single sign-on."""

    def list(self, organization_id: Id, /, *, page_size: int | None = None) -> Pages[Domain]:
        """All of them."""
        return self._list(table.LIST_DOMAINS, page_size, organization_id)

    async def create(self, organization_id: Id, /, **fields: Unpack[NewDomain]) -> Domain:
        """Add one. Its `verification_challenge` belongs in a TXT record of the DNS."""
        return await self._call(table.CREATE_DOMAIN, fields, organization_id)

    async def get(self, organization_id: Id, domain_id: Id, /) -> Domain:
        """One of them."""
        return await self._call(table.GET_DOMAIN, None, organization_id, domain_id)

    async def update(
        self, organization_id: Id, domain_id: Id, /, **fields: Unpack[DomainChange]
    ) -> Domain:
        """Change its single sign-on."""
        return await self._call(table.UPDATE_DOMAIN, fields, organization_id, domain_id)

    async def delete(self, organization_id: Id, domain_id: Id, /) -> None:
        """Remove one."""
        await self._do(table.DELETE_DOMAIN, None, organization_id, domain_id)

    async def verify(
        self, organization_id: Id, domain_id: Id, /, **fields: Unpack[DomainChange]
    ) -> Domain | None:
        """Have the service look up the challenge. `get` returns the result, where the response
        does not have it.
        """
        return cast(
            "Domain | None",
            await self._act(table.VERIFY_DOMAIN, fields, organization_id, domain_id),
        )


class InviteOperations(OperationGroup):
    """Invitations to an organization."""

    def list(self, organization_id: Id, /, *, page_size: int | None = None) -> Pages[Invite]:
        """All of them, expired ones too."""
        return self._list(table.LIST_INVITES, page_size, organization_id)

    async def create(self, organization_id: Id, /, **fields: Unpack[NewInvite]) -> Invite:
        """Invite a person."""
        return await self._call(table.CREATE_INVITE, fields, organization_id)

    async def delete(self, organization_id: Id, invite_id: Id, /) -> None:
        """Delete an invite."""
        await self._do(table.DELETE_INVITE, None, organization_id, invite_id)

    async def bulk(
        self, organization_id: Id, invites: Sequence[NewInvite], /
    ) -> builtins.list[Invite] | None:
        """Invite several people, all or none."""
        answer = await self._do(table.BULK_INVITE, [*invites], organization_id)
        return answer if isinstance(answer, builtins.list) else None


class MemberOperations(OperationGroup):
    """Memberships in an organization. A member is named by the user's uuid, not by the
    membership's id.
    """

    def list(self, organization_id: Id, /, *, page_size: int | None = None) -> Pages[Member]:
        """All of them."""
        return self._list(table.LIST_MEMBERS, page_size, organization_id)

    async def update(
        self, organization_id: Id, user_uuid: Id, /, **fields: Unpack[MemberChange]
    ) -> Member:
        """Change a member's level."""
        return await self._call(table.UPDATE_MEMBER, fields, organization_id, user_uuid)

    async def delete(self, organization_id: Id, user_uuid: Id, /) -> None:
        """Remove a member; oneself: leave."""
        await self._do(table.DELETE_MEMBER, None, organization_id, user_uuid)


class ProjectOperations(OperationGroup):
    """Projects of an organization."""

    def list(self, organization_id: Id, /, *, page_size: int | None = None) -> Pages[ProjectItem]:
        """All of them, with fewer fields than `get` has."""
        return self._list(table.LIST_PROJECTS, page_size, organization_id)

    async def create(self, organization_id: Id, /, **fields: Unpack[NewProject]) -> Project:
        """Add one. Events are sent with its `api_token`."""
        return await self._call(table.CREATE_PROJECT, fields, organization_id)

    async def get(self, organization_id: Id, project_id: Id, /) -> Project:
        """One of them, in full."""
        return await self._call(table.GET_PROJECT, None, organization_id, project_id)


class BatchExportOperations(OperationGroup):
    """Batch exports of a project."""

    async def get(self, project_id: Id, export_id: Id, /) -> BatchExport:
        """One of them, with its latest runs."""
        return await self._call(table.GET_BATCH_EXPORT, None, project_id, export_id)

    async def update(
        self, project_id: Id, export_id: Id, /, **fields: Unpack[BatchExportChange]
    ) -> BatchExport:
        """Change one. Secrets that `destination` leaves out stay."""
        return await self._call(table.UPDATE_BATCH_EXPORT, fields, project_id, export_id)

    async def delete(self, project_id: Id, export_id: Id, /) -> None:
        """Remove one with its runs."""
        await self._do(table.DELETE_BATCH_EXPORT, None, project_id, export_id)

    async def backfill(
        self, project_id: Id, export_id: Id, /, **fields: Unpack[BatchExportChange]
    ) -> JsonObject | None:
        """Export the range from `start_at` to `end_at` again."""
        return await self._act(table.BACKFILL_BATCH_EXPORT, fields, project_id, export_id)

    async def pause(
        self, project_id: Id, export_id: Id, /, **fields: Unpack[BatchExportChange]
    ) -> JsonObject | None:
        """Pause one."""
        return await self._act(table.PAUSE_BATCH_EXPORT, fields, project_id, export_id)

    async def unpause(
        self, project_id: Id, export_id: Id, /, **fields: Unpack[BatchExportChange]
    ) -> JsonObject | None:
        """Resume a paused one."""
        return await self._act(table.UNPAUSE_BATCH_EXPORT, fields, project_id, export_id)

    async def logs(self, project_id: Id, export_id: Id, /) -> JsonObject | None:
        """Its log, where the service answers with one."""
        return await self._act(table.LOGS_OF_BATCH_EXPORT, None, project_id, export_id)


class BatchExportRunOperations(OperationGroup):
    """Runs of a batch export."""

    async def retry(
        self, project_id: Id, export_id: Id, run_id: Id, /, **fields: Unpack[RunChange]
    ) -> JsonObject | None:
        """Run one again."""
        return await self._act(table.RETRY_BATCH_EXPORT_RUN, fields, project_id, export_id, run_id)


class DashboardOperations(OperationGroup):
    """Dashboards of a project."""

    def list(self, project_id: Id, /, *, page_size: int | None = None) -> Pages[Dashboard]:
        """All of them."""
        return self._list(table.LIST_DASHBOARDS, page_size, project_id)
