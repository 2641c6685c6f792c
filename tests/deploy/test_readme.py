"""What the README and the page of uses tell people to use, used."""

from __future__ import annotations

import re
from pathlib import Path

from forwarder.config.load import load_settings
from tests.support.cases import cases
from tests.support.documents import text_of
from tests.support.repository import ROOT

README = (ROOT / "README.md").read_text()
USES = text_of("uses")


@cases("block", re.findall(r"```yaml\n(.*?)```", USES, re.DOTALL))
def test_its_configurations_are_valid(block: str, tmp_path: Path) -> None:
    """Every configuration can be used as it stands; files that it names are made up."""
    keys = tmp_path / "project-keys"
    keys.write_text("phc_0123456789abcdef0123456789abcdef\n")
    password = tmp_path / "password"
    password.write_text("secret\n")
    file = tmp_path / "forwarder.yaml"
    made = {
        "/etc/forwarder/project-keys": keys,
        "/run/secrets/kafka": password,
        "/etc/forwarder/salt": password,
    }
    for named, path in made.items():
        block = block.replace(named, str(path))
    file.write_text(block)
    assert load_settings(file, {}).settings.upstream.url


def test_its_environment_names_are_settings() -> None:
    """Every FORWARDER_ name with a value in it is a setting."""
    named = dict(re.findall(r"(FORWARDER_[A-Z_]+)=(https?://[\w./:-]+)", README))
    assert (
        load_settings(None, named, default_file=Path("/nonexistent")).settings.upstream.url
        == "https://us.i.example.com"
    )


def test_it_is_read_in_a_minute_or_two() -> None:
    """What doesn't fit has a page of its own."""
    assert len(README.split()) <= 900
