"""What a supervisor hands to its workers."""

from __future__ import annotations

from pathlib import Path

from forwarder.config.environment import read_environment
from forwarder.config.settings import Settings
from forwarder.daemon.roles import Role
from forwarder.workers.assignment import Assignment, assignment

SETTINGS = Settings.parse(
    {
        "upstream": {"url": "https://a.example.com"},
        "buffer": {"kind": "disk", "path": "/var/lib/one"},
        "workers": 4,
        "dead_letters": {"path": "/d"},
    }
)
GIVEN = Assignment.of(SETTINGS, Role(3, 4, descriptors=(9,)), 7, "127.0.0.1:4711")


def test_it_goes_through_the_environment() -> None:
    """What is written into a process's environment is what the process reads; nobody else's is an assignment, nor a setting."""
    assert assignment(GIVEN.variable()) == GIVEN
    assert assignment({}) is None
    assert not read_environment(GIVEN.variable()).problems


def test_the_supervisors_word_holds() -> None:
    """A worker that reads another configuration than its supervisor keeps the address, the directories and the number of workers."""
    other = Settings.parse({"upstream": {"url": "https://a.example.com"}, "batch": {"max_age": "9s"}})
    applied = GIVEN.applied(other)
    assert (applied.workers, applied.sources.http.listen) == (4, "127.0.0.1:4711")
    assert (applied.buffer.kind, applied.buffer.path, applied.dead_letters.path) == ("disk", Path("/var/lib/one"), Path("/d"))
    assert applied.batch.max_age == 9.0
