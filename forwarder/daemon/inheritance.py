"""Descriptors that a process inherits: listening sockets from systemd, and after a restart in
place sockets and locks from itself.

Invariants: every inherited descriptor is close-on-exec from `inherit` on, so that a child has it
only if it is passed explicitly; the variables that announce them are removed from the environment,
and count only for the process that they name.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import structlog

from forwarder.config.settings import Settings
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError

VARIABLE: Final = "_FORWARDER_INHERITED"

FIRST: Final = 3
"""The first descriptor that systemd passes (sd_listen_fds(3))."""

ADMIN: Final = "admin"
"""The name, in `LISTEN_FDNAMES`, of sockets for the admin server; all others are for events."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class InheritedDescriptors:
    """Descriptors that a process has from before its start."""

    sockets: tuple[int, ...] = ()
    """Listening sockets for events."""
    admin: tuple[int, ...] = ()
    locks: tuple[tuple[str, int], ...] = ()
    """Locked directories, each with its lock's descriptor."""
    listen: str = ""
    """The configured address that `sockets` are for; empty if systemd chose it."""
    admin_listen: str = ""
    """The same for `admin`."""
    process: int = 0

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All of them."""
        return (*self.sockets, *self.admin, *(descriptor for _, descriptor in self.locks))

    def without_locks(self) -> InheritedDescriptors:
        """The sockets alone; the locks are released."""
        _close(tuple(descriptor for _, descriptor in self.locks))
        return replace(self, locks=())

    def close(self) -> None:
        """Close them all."""
        for descriptor in self.descriptors:
            os.close(descriptor)

    def fitting(self, settings: Settings) -> InheritedDescriptors:
        """Those that match the settings; the others are closed, because their address
        has changed.
        """
        fitting = self
        if self.listen not in ("", settings.sources.http.listen):
            _close(self.sockets)
            fitting = replace(fitting, sockets=(), listen="")
        if self.admin_listen not in ("", settings.admin.listen):
            _close(self.admin)
            fitting = replace(fitting, admin=(), admin_listen="")
        return fitting

    def announce(self) -> None:
        """Log what was inherited, if anything."""
        if self.descriptors:
            whence = "the process before the restart" if self.process else "systemd"
            _log.info(
                "sockets were inherited",
                whence=whence,
                ingestion=len(self.sockets),
                admin=len(self.admin),
                locks=len(self.locks),
            )


NOTHING: Final = InheritedDescriptors()


def inherit(environment: MutableMapping[str, str]) -> InheritedDescriptors:
    """What this process inherits, by its environment, from which the variables are removed.

    Raises `ConfigurationError` if descriptors are announced that aren't open.
    """
    own = environment.pop(VARIABLE, "")
    listen = {
        name: environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
    }
    inherited = NOTHING
    if own:
        inherited = msgspec.json.decode(own, type=InheritedDescriptors)
        inherited = inherited if inherited.process == os.getpid() else NOTHING
    elif listen["LISTEN_PID"] == str(os.getpid()) and listen["LISTEN_FDS"].isdecimal():
        inherited = _from_systemd(int(listen["LISTEN_FDS"]), listen["LISTEN_FDNAMES"].split(":"))
    for descriptor in inherited.descriptors:
        try:
            os.set_inheritable(descriptor, False)
        except OSError as error:
            raise ConfigurationError(
                (
                    f"descriptor {descriptor} was announced as inherited, but can't be used: "
                    f"{error_text(error)}"
                ),
                hint=(
                    "LISTEN_FDS counts the sockets that a service manager passes, from "
                    "descriptor 3 on."
                ),
            ) from error
    return inherited


def announced(inherited: InheritedDescriptors) -> dict[str, str]:
    """The variable that announces `inherited` to the next program of this very process."""
    return {VARIABLE: msgspec.json.encode(replace(inherited, process=os.getpid())).decode()}


def _from_systemd(count: int, names: list[str]) -> InheritedDescriptors:
    descriptors = range(FIRST, FIRST + count)
    admin = tuple(
        descriptor for descriptor, name in zip(descriptors, names, strict=False) if name == ADMIN
    )
    return InheritedDescriptors(
        tuple(descriptor for descriptor in descriptors if descriptor not in admin), admin
    )


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
