"""Where an import keeps its state: not in the folder that it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.core.clock import SystemClock
from forwarder.core.errors import ConfigurationError
from forwarder.imports.job import ImportRun
from tests.imports.imports import line, write
from tests.imports.test_job import request


@pytest.mark.parametrize("inside", [".", "state", "a/state"])
def test_a_state_folder_in_the_source_is_refused(inside: str, tmp_path: Path) -> None:
    """Its files would be records of the next run. Nothing is written there; beside the source it is taken."""
    source = tmp_path / "export"
    source.mkdir()
    write(source / "a.jsonl", [line(0)])
    with pytest.raises(ConfigurationError, match="would be taken for records"):
        ImportRun.open(request("http://127.0.0.1:1", source / inside, source), SystemClock())
    assert [path.name for path in source.iterdir()] == ["a.jsonl"]
    ImportRun.open(request("http://127.0.0.1:1", tmp_path / "export-state", source), SystemClock()).close()
