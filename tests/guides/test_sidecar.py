"""config/sidecar.yaml: what it shows is in effect, and what stands in its comments can be used."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from forwarder.config.load import load_settings
from forwarder.config.settings import Settings
from tests.support.repository import ROOT

FILE = ROOT / "config" / "sidecar.yaml"
TEXT = FILE.read_text("utf-8")


def uncommented() -> str:
    """The file with its alternatives instead of what they are alternatives to."""
    [buffer] = re.findall(r"^#\s+(buffer: \{.*\})$", TEXT, re.MULTILINE)
    text = re.sub(r"^buffer:\n(?:  .*\n)+", f"{buffer}\n", TEXT, flags=re.MULTILINE)
    return re.sub(
        r"^(\s+)# (\w+: [^#\n]*\S)(\s+#.*)$", r"\1\2\3", text, flags=re.MULTILINE
    ).replace("phc_…", "phc_abcdefghijklmnop")


def test_it_says_the_defaults() -> None:
    """But for the upstream's address, it changes nothing: it shows where to turn."""
    shown = load_settings(FILE, {}).settings
    plain = load_settings(
        None, {"FORWARDER_UPSTREAM__URL": shown.upstream.url}, default_file=Path("/nonexistent")
    ).settings
    assert shown.buffer_share == plain.buffer_share
    unset = Settings().buffer
    assert replace(shown, buffer=unset) == replace(plain, buffer=unset)


def test_its_comments_can_be_used(tmp_path: Path) -> None:
    """The disk buffer, the address of assets and the list of keys that stand in
    comments are valid together.
    """
    file = tmp_path / "sidecar.yaml"
    file.write_text(uncommented(), "utf-8")
    settings = load_settings(file, {}).settings
    assert (settings.buffer.kind, settings.buffer.path.as_posix()) == ("disk", "/var/lib/forwarder")
    assert settings.upstream.assets_url.startswith("https://")
    assert len(settings.sources.http.api_keys) == 1
