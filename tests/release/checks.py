"""What an installed forwarder has to do. Each check takes the environment and
raises for what goes wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from tests.release.installed import Installed, ReleaseCheckFailed
from tests.support.typed import commands

KEY: Final = "phc_release_check_000000001"
_NESTED: Final = """
import contextlib, io, sys
from forwarder.cli.app import COMMANDS, load
from forwarder.cli.main import main

def paths(command, words):
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from paths(below, [*words, name])

for words in [words for name in COMMANDS for words in paths(load(name), [name])]:
    sys.argv, shown = ["forwarder", *words, "--help"], io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            main()
    except SystemExit as end:
        if end.code or "Usage:" not in shown.getvalue():
            sys.exit(f"{words}: {end.code} {shown.getvalue()}")
    print(*words)
"""
_PARQUET: Final = """
import pyarrow, pyarrow.parquet
rows = [{"event": "order placed", "distinct_id": f"user-{n}", "timestamp": \
"2024-05-01T10:00:00Z", "total": n} for n in range(500)]
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "orders.parquet")
"""
_MAPPING: Final = """event: .event
distinct_id: .distinct_id
timestamp: .timestamp
properties: {total: .total}
"""
_TEST: Final = """
import json, urllib.request

def test_an_event_arrives(analytics_sandbox):
    body = json.dumps({"api_key": analytics_sandbox.api_key, "batch": [{"event": "login", \
"distinct_id": "ann"}]}).encode()
    request = urllib.request.Request(f"{analytics_sandbox.url}/batch/", body, {"content-type": \
"application/json"})
    assert urllib.request.urlopen(request).status == 200
    analytics_sandbox.wait_for(1, event="login")
"""


def expect(text: str, *wanted: str) -> None:
    """All of `wanted` are in a command's output."""
    missing = [phrase for phrase in wanted if phrase not in text]
    if missing:
        raise ReleaseCheckFailed(f"{missing} not in:\n{text}")


def check_help(installed: Installed) -> None:
    """Each command shows its help, as a process of its own; those below it do in one process."""
    for name in sorted(commands()):
        expect(installed.run("forwarder", name, "--help"), "Usage:")
    shown = installed.run("python", "-c", _NESTED).splitlines()
    if not {"manage projects list", "import status", "config check"} <= set(shown):
        raise ReleaseCheckFailed(f"commands are missing among {shown}")


def check_demo(installed: Installed) -> None:
    """Without the SDK the demo names what to install; with it everything arrives."""
    installed.install_extra(installed.run("forwarder", "demo", "--once", "--port", "0", code=2))
    expect(
        installed.run("forwarder", "demo", "--once", "--port", "0"),
        "0 missing, 0 changed in transit",
        "the books balance",
    )


def check_drill(installed: Installed) -> None:
    """A simulated outage loses nothing."""
    expect(
        installed.run("forwarder", "drill", "--port", "0"),
        "0 missing, 0 changed in transit",
        "the books balance",
    )


def check_parquet(installed: Installed) -> None:
    """A Parquet file is imported into a sandbox; without the extra the
    message names what to install.
    """
    home = installed.folder / "home"
    (home / "mapping.yaml").write_text(_MAPPING)
    (home / "orders.parquet").write_bytes(b"PAR1")
    with installed.serving("forwarder", "sandbox", "--listen", "127.0.0.1:0") as url:
        (home / "migration.yaml").write_text(
            f"upstream: {{url: '{url}'}}\nimport: {{api_key: {KEY}, state: state}}\n"
        )
        configured = ("--config", "migration.yaml")
        words = (
            "forwarder",
            "import",
            "mapping",
            "orders.parquet",
            "--mapping",
            "mapping.yaml",
            *configured,
            "--yes",
        )
        installed.install_extra(installed.run(*words, code=2))
        installed.run("python", "-c", _PARQUET)
        expect(installed.run(*words), "500")
        expect(installed.run("forwarder", "import", "verify", *configured), "500")


def check_manage(installed: Installed) -> None:
    """The management API of a sandbox with the shipped seed answers with the seed's project."""
    key = installed.folder / "home" / "key"
    key.write_text("phx_sandbox_olga_everything_0001")
    key.chmod(0o600)
    with installed.serving(
        "forwarder", "sandbox", "--listen", "127.0.0.1:0", "--seed", "example"
    ) as url:
        where = (
            "--url",
            url,
            "--api-key-file",
            "key",
            "--organization",
            "01900000-0000-7000-8000-000000000001",
        )
        shown = installed.run("forwarder", "manage", "projects", "list", *where, "--output", "json")
    expect(json.dumps(json.loads(shown)), "Shop")


def check_plugin(installed: Installed) -> None:
    """The pytest plugin is there as soon as pytest is."""
    installed.run("python", "-m", "pip", "install", "--quiet", "pytest")
    (installed.folder / "home" / "test_login.py").write_text(_TEST)
    expect(
        installed.run(
            "python", "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_login.py"
        ),
        "1 passed",
    )


def check_shipped(installed: Installed) -> None:
    """Documents and examples are in the package, not in a clone; `config
    init` and `help` show them.
    """
    where = (
        "from forwarder.core.installation import shipped\nfor each in ('config', 'docs'): "
        "print(shipped(each))"
    )
    for folder in installed.run("python", "-P", "-c", where).splitlines():
        if "site-packages" not in folder:
            raise ReleaseCheckFailed(f"shipped files are looked for in {folder}")
    if "help" in commands():
        expect(installed.run("forwarder", "help", "kafka"), "Kafka")
    if re.search(r"^\s+init\b", installed.run("forwarder", "config", "--help"), re.MULTILINE):
        installed.run("forwarder", "config", "init", "sidecar")


CHECKS: Final[Mapping[str, Callable[[Installed], None]]] = MappingProxyType(
    {
        "every command's help": check_help,
        "its files": check_shipped,
        "manage, with the shipped seed": check_manage,
        "demo --once, after installing its extra": check_demo,
        "import of Parquet, after installing its extra": check_parquet,
        "drill": check_drill,
        "the pytest plugin": check_plugin,
    }
)
