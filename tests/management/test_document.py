"""What docs/how-to/manage.md says "From Python" runs as it stands there, against a sandbox, and
names what there is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from forwarder.management import ApiError
from forwarder.management.client import TIMEOUT
from tests.contract.calls import serving
from tests.support import management as seed
from tests.support.cases import cases
from tests.support.documents import text_of
from tests.support.repository import ROOT
from tests.support.waiting import in_thread

SECTION = text_of("manage-python")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
SHOWN = [
    [
        "Add this TXT record to the DNS: ",
        "olga@example.com 15",
        "mia@example.com 1",
        "domains update: HTTP 400 verification_needed: ",
    ],
    ["Events are sent with phc_", "1 Shop", "2 App"],
    [
        "example.com False",
        "verified.example.com True",
        "domains list organization:read List the domains of an organization.",
    ],
]


def test_the_programs_are_found() -> None:
    """There are as many programs as are expected."""
    assert len(PROGRAMS) == len(SHOWN)


@pytest.mark.slow
@cases("number", range(len(SHOWN)))
async def test_a_program_does_what_it_says(number: int, tmp_path: Path) -> None:
    """Each program works with a sandbox's address and key, and warns of nothing."""
    async with serving(tmp_path) as service:
        program = PROGRAMS[number].replace("https://us.example.com", service.client.sandbox.url)
        command = [sys.executable, "-W", "error", "-c", program]
        environment = {"PERSONAL_API_KEY": seed.OWNER_KEY, "PYTHONPATH": str(ROOT)}
        done = await in_thread(
            lambda: subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=180, check=False
            )
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert [text for text in SHOWN[number] if text not in done.stdout] == []


def test_the_attributes_of_the_error_are_the_tabulated_ones() -> None:
    """The table has every attribute of `ApiError`, and no other."""
    rows = re.findall(r"^\| (`.+?) \|", SECTION, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == vars(
        ApiError("x")
    ).keys() - {"message"}


def test_the_documented_time_limit_is_the_default() -> None:
    """The document says how long a call may take."""
    assert f"`timeout` ({TIMEOUT:g} seconds)" in SECTION
