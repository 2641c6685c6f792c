"""The systemd unit, read as text."""

from __future__ import annotations

import re

from forwarder.config.settings import Settings
from tests.support.repository import ROOT

TEXT = (ROOT / "deploy" / "forwarder.service").read_text()
VALUES = dict(re.findall(r"^(\w+)=(.*)$", TEXT, re.MULTILINE))


def test_it_runs_the_daemon() -> None:
    """It starts `forwarder run`, reloads by SIGHUP, and does not start again what can't be configured."""
    assert VALUES["ExecStart"].endswith("/forwarder run")
    assert VALUES["ExecReload"].endswith("kill -HUP $MAINPID")
    assert VALUES["RestartPreventExitStatus"] == "2"


def test_it_waits_for_the_drain() -> None:
    """systemd gives it longer than the default delay and drain take together."""
    shutdown = Settings().shutdown
    assert int(VALUES["TimeoutStopSec"]) > shutdown.delay + shutdown.drain_timeout


def test_its_state_is_where_the_buffer_is() -> None:
    """The directory that systemd makes for it is the default of `buffer.path`, and nobody else's to read."""
    assert Settings().buffer.path.as_posix() == f"/var/lib/{VALUES['StateDirectory']}"
    assert VALUES["StateDirectoryMode"] == "0700"


def test_it_is_confined() -> None:
    """It runs as a user of its own, without privileges, on a file system that it can't write to but for its own state."""
    wanted = {"DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": ""}
    assert {each: VALUES.get(each) for each in wanted} == wanted
