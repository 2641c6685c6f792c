"""What memory is limited to, what counts against the limit, and whether full buffers fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from forwarder.config.settings import Settings
from forwarder.daemon.memory import (
    ProcessMemory,
    anonymous_memory,
    cgroup_limit,
    find_memory,
    memory_risks,
)
from forwarder.daemon.roles import Role
from tests.support.cases import cases

MIB = 1 << 20
STATUS = (
    "Name:\tpython\nVmRSS:\t  90000 kB\nRssAnon:\t  {} kB\nRssFile:\t  20000 kB\nRssShmem:\t 8 kB\n"
)


def write(root: Path, **files: str) -> Path:
    """Files below a root, by their paths with `__` for each slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def cgroup_file(root: Path, path: str, text: str) -> None:
    """A file of a cgroup."""
    file = root / "sys/fs/cgroup" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")


def settings(**sections: Any) -> Settings:
    """Settings with these sections."""
    return Settings.parse(sections)


def process(root: Path, number: int | str, anonymous: int) -> None:
    """A process with so many KiB of anonymous memory, beside 8 that it shares."""
    write(root, **{f"proc__{number}__status": STATUS.format(anonymous)})


def version_2(root: Path, limit: str = "max", anonymous: int = 50 * MIB) -> Path:
    """A machine with cgroups of version 2: this process is in a service within a slice."""
    write(root, proc__self__cgroup="0::/app.slice/forwarder.service\n")
    process(root, "self", 60_000)
    cgroup_file(root, "app.slice/forwarder.service/memory.max", f"{limit}\n")
    text = f"anon {anonymous}\nfile 900000000\nkernel 5\nanon_thp 7\n"
    cgroup_file(root, "app.slice/forwarder.service/memory.stat", text)
    return root


def test_a_cgroup_of_version_2_counts_its_anonymous_memory(tmp_path: Path) -> None:
    """The limit is the cgroup's, and its page cache doesn't count."""
    version_2(tmp_path, str(200 * MIB), 50 * MIB)
    memory = find_memory(settings(), Role(), lambda: None, tmp_path)
    assert memory is not None
    assert (memory.limit, memory.used()) == (200 * MIB, 50 * MIB)
    assert memory.origin.endswith("sys/fs/cgroup/app.slice/forwarder.service")


def test_the_tightest_limit_above_counts_with_its_own_total(tmp_path: Path) -> None:
    """A slice that is smaller than its services kills first, by what all of them take."""
    version_2(tmp_path, str(300 * MIB))
    cgroup_file(tmp_path, "app.slice/memory.max", f"{200 * MIB}\n")
    cgroup_file(tmp_path, "app.slice/memory.stat", f"anon {150 * MIB}\n")
    memory = cgroup_limit(tmp_path)
    assert memory is not None
    assert (memory.limit, memory.used()) == (200 * MIB, 150 * MIB)


def test_the_cgroup_that_is_nearest_to_its_limit_is_watched(tmp_path: Path) -> None:
    """A slice that others fill up is killed in, though the service's own limit is lower."""
    version_2(tmp_path, str(100 * MIB), 10 * MIB)
    cgroup_file(tmp_path, "app.slice/memory.max", f"{110 * MIB}\n")
    cgroup_file(tmp_path, "app.slice/memory.stat", f"anon {104 * MIB}\nshmem {5 * MIB}\n")
    memory = find_memory(settings(), Role(), lambda: None, tmp_path)
    assert memory is not None
    assert (memory.used(), memory.limit) == (109 * MIB, 110 * MIB)
    assert memory.origin.endswith("app.slice")
    cgroup_file(tmp_path, "app.slice/memory.stat", f"anon {10 * MIB}\n")
    assert (memory.used(), memory.limit) == (10 * MIB, 100 * MIB)


def test_a_container_that_sees_only_its_own_cgroup(tmp_path: Path) -> None:
    """The path is the host's, or leads out of the container; what is mounted is its own."""
    for path in ("/kubepods/burstable/pod1/abc", "/../../other"):
        write(tmp_path, proc__self__cgroup=f"0::{path}\n")
        cgroup_file(tmp_path, "memory.max", f"{64 * MIB}\n")
        cgroup_file(tmp_path, "memory.stat", "anon 1000\n")
        memory = cgroup_limit(tmp_path)
        assert memory is not None
        assert (memory.limit, memory.used()) == (64 * MIB, 1000)


def test_a_cgroup_of_version_1_counts_its_resident_memory(tmp_path: Path) -> None:
    """The controller of memory has a folder of its own; an absurd limit of those above is none."""
    write(tmp_path, proc__self__cgroup="9:name=systemd:/x\n4:cpu,memory:/docker/abc\n0::/\n")
    cgroup_file(tmp_path, "memory/docker/abc/memory.limit_in_bytes", f"{128 * MIB}\n")
    cgroup_file(tmp_path, "memory/memory.limit_in_bytes", "9223372036854771712\n")
    cgroup_file(tmp_path, "memory/docker/abc/memory.stat", "rss 5\ncache 9\ntotal_rss 7000\n")
    memory = cgroup_limit(tmp_path)
    assert memory is not None
    assert (memory.limit, memory.used()) == (128 * MIB, 7000)


def test_without_a_limit_the_processes_are_measured(tmp_path: Path) -> None:
    """No limit of a cgroup and none in the settings: figures for metrics, and nothing rejected."""
    memory = find_memory(settings(), Role(), lambda: None, version_2(tmp_path))
    assert memory is not None
    assert (memory.limit, memory.used()) == (0, 60_008 * 1024)


def test_limits_memory_counts_the_processes_of_the_daemon(tmp_path: Path) -> None:
    """A worker compares itself, its decoder process and its part of the supervisor with its share;
    others in the cgroup don't count.
    """
    version_2(tmp_path, str(100 * MIB), 99 * MIB)
    process(tmp_path, 77, 10_000)
    process(tmp_path, os.getppid(), 40_000)
    configured = settings(limits={"memory": "400MiB"}, workers=2)
    memory = find_memory(configured, Role(workers=2), lambda: 77, tmp_path)
    assert memory is not None
    assert memory.limit == 200 * MIB
    assert memory.used() == (60_008 + 10_008 + 40_008 // 2) * 1024
    assert memory.origin == "limits.memory"


def test_a_decoder_process_that_has_ended_takes_nothing(tmp_path: Path) -> None:
    """Between its end and the moment when that is known, only the daemon counts."""
    process(tmp_path, "self", 1000)
    assert ProcessMemory(MIB, lambda: 77, root=tmp_path).used() == 1008 * 1024


def test_workers_share_a_cgroup(tmp_path: Path) -> None:
    """The sums over all workers are the cgroup's own figures."""
    version_2(tmp_path, str(400 * MIB), 100 * MIB)
    memory = find_memory(settings(workers=4), Role(workers=4), lambda: None, tmp_path)
    assert memory is not None
    assert (memory.limit, memory.used()) == (100 * MIB, 25 * MIB)


def test_a_system_without_such_figures(tmp_path: Path) -> None:
    """Nothing is measured, and a limit that was set is said to have no effect."""
    configured = settings(limits={"memory": "400MiB"})
    assert find_memory(configured, Role(), lambda: None, tmp_path) is None
    (risk,) = memory_risks(configured, tmp_path)
    assert risk.key == "limits.memory"
    assert "can't be watched on this system" in risk.message
    assert list(memory_risks(configured, tmp_path, elsewhere=True)) == []


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc")
def test_this_process_takes_memory() -> None:
    """What is written into memory counts, and counts no longer once it is given back."""
    before = anonymous_memory("self")
    block = bytearray(b"x") * (64 * MIB)
    assert anonymous_memory("self") - before > 48 * MIB
    del block
    assert anonymous_memory("self") - before < 32 * MIB


@cases(
    ("sections", "message", "hint"),
    [
        ({"limits": {"memory": "183MiB"}}, "", ""),
        (
            {"limits": {"memory": "170MiB"}},
            "doesn't fit: full buffers take 64MiB of memory, forwarder up to 96MiB beside them, "
            "and from 153MiB on, nine tenths of limits.memory, new events get 503",
            "raise limits.memory to 178MiB, or lower buffer.max_bytes to 57MiB",
        ),
        (
            {"limits": {"memory": "183MiB"}, "buffer": {"kind": "disk", "max_bytes": "10GiB"}},
            "",
            "",
        ),
        (
            {"limits": {"memory": "100MiB"}, "buffer": {"kind": "disk", "max_bytes": "10GiB"}},
            "doesn't fit: full buffers take 64MiB of memory, forwarder up to 96MiB beside them, "
            "and from 90MiB on, nine tenths of limits.memory, new events get 503",
            "raise limits.memory to 178MiB",
        ),
        (
            {"limits": {"memory": "200MiB"}, "workers": 2},
            "doesn't fit: full buffers take 64MiB of memory, forwarder up to 239MiB beside them, "
            "and from 180MiB on, nine tenths of limits.memory, new events get 503",
            "raise limits.memory to 337MiB, or lower workers",
        ),
    ],
)
def test_full_buffers_have_to_fit(
    tmp_path: Path, sections: dict[str, Any], message: str, hint: str
) -> None:
    """What they take with all beside them stays below the point where events are rejected; else it
    is said which figure to set.
    """
    process(tmp_path, "self", 1000)
    risks = [(risk.message, risk.hint) for risk in memory_risks(settings(**sections), tmp_path)]
    assert risks == ([(message, hint)] if message else [])


def test_full_buffers_have_to_fit_into_the_cgroup(tmp_path: Path) -> None:
    """Without `limits.memory` the cgroup's limit counts, unless the machine is another one."""
    version_2(tmp_path, str(128 * MIB))
    (risk,) = memory_risks(settings(), tmp_path)
    assert risk.key == "buffer.max_bytes"
    assert "nine tenths of the limit of the cgroup" in risk.message
    assert risk.hint == (
        "raise the cgroup's limit (a container's memory limit) to 178MiB, or lower "
        "buffer.max_bytes to 19MiB"
    )
    assert list(memory_risks(settings(), tmp_path, elsewhere=True)) == []


def test_a_limit_above_the_cgroups_protects_nothing(tmp_path: Path) -> None:
    """The kernel would kill before events are rejected."""
    version_2(tmp_path, str(256 * MIB))
    (risk,) = memory_risks(settings(limits={"memory": "400MiB"}), tmp_path)
    assert risk.key == "limits.memory"
    assert "is 400MiB, more than the cgroup" in risk.message
    assert "(256MiB)" in risk.message
