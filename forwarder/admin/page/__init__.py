"""The `/status` page for a browser: the same facts as the document, readable without scripts, in light and dark.

Invariants: every value that came from outside is escaped; nothing is in it that isn't in the snapshot; style and script are files of their
own, so that a browser needs to be allowed nothing inline. `status.js` asks for the page again and puts in what changed, so each part has a
name of its own (`data-part`), and figures that rates are made of say what they count (`data-count`, `data-of`).
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from forwarder.admin.page.flow import flow
from forwarder.admin.page.head import head, notes
from forwarder.admin.page.kafka import kafka
from forwarder.admin.page.tables import lanes, passed, rejected, senders, upstream, workers
from forwarder.pages import files
from forwarder.telemetry.snapshot import Snapshot, by_label

REFRESH_SECONDS: Final = 5
"""How often a browser without scripts asks again."""
PREFIX: Final = "/status/"
"""Where style, icon and script are."""
_NAMES: Final = ("status.css", "status.js")


def page(snapshot: Snapshot) -> str:
    """The whole page."""
    own = by_label(snapshot.lanes)
    parts = [
        notes(snapshot, own),
        flow(snapshot, own),
        kafka(snapshot),
        lanes(own),
        f'<div class="pair">{upstream(snapshot)}{senders(snapshot)}</div>',
        rejected(snapshot),
        passed(snapshot),
        workers(snapshot),
    ]
    return f"{_opening()}{head(snapshot)}<main>{''.join(parts)}</main>{_closing()}"


def routes() -> list[web.AbstractRouteDef]:
    """The files that the page needs."""
    return [*files.routes(PREFIX, "forwarder.admin.page", _NAMES), *files.shared(PREFIX)]


def _opening() -> str:
    """Everything up to the body. Addresses are relative, so that a proxy may put the page under a path of its own."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>forwarder</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<noscript><meta http-equiv="refresh" content="{REFRESH_SECONDS}"></noscript>'
        '<link rel="icon" type="image/svg+xml" href="status/icon.svg"><link rel="stylesheet" href="status/base.css">'
        '<link rel="stylesheet" href="status/status.css"><script type="module" src="status/status.js"></script></head><body>'
    )


def _closing() -> str:
    return (
        '<footer class="soft">The same for programs: <a href="status">/status</a> as JSON, <a href="metrics">/metrics</a> for Prometheus.'
        "</footer></body></html>"
    )
