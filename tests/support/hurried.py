"""`python -m tests.support.hurried run …`: forwarder that looks at its cluster twice a second: for
tests that wait for what it sees.
"""

from __future__ import annotations

from forwarder.cli.main import main
from forwarder.sources.kafka import client, membership

if __name__ == "__main__":
    client.METADATA_SECONDS = 0.5  # type: ignore[misc]
    membership.CHECK_SECONDS = 0.5  # type: ignore[misc]
    membership.AGAIN_SECONDS = 0.5  # type: ignore[misc]
    main()
