"""What a browser's SDK asks before it begins: a project's settings, as JSON and as a script, and bundles that the sandbox doesn't have.

Everything that can be switched on is off, since the sandbox has nothing to do with it: replay, surveys, heat maps, dead clicks, web vitals.
So the SDK loads no bundle of its own from `/static/`, which the sandbox answers with 404 and a word about where the SDK comes from.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from forwarder.sandbox.answers import Answer, Refusal, management_error
from forwarder.sandbox.decoding import Received
from forwarder.sandbox.judging import checked_token
from forwarder.sandbox.management.call import not_found
from forwarder.sandbox.recording import Rules, keep, keep_refusal, record_of
from forwarder.sandbox.store import Store

SCRIPT: Final = "application/javascript"
_NO_BUNDLES: Final = "The sandbox has no SDK bundles: install posthog-js as a package, or point its assets elsewhere.\n"
_LISTS: Final[dict[str, Any]] = {
    "/api/surveys": {"surveys": [], "survey_config": None},
    "/api/early_access_features": {"earlyAccessFeatures": []},
    "/api/product_tours": {"product_tours": []},
    "/api/web_experiments": {"experiments": []},
}
LIST_PATHS: Final = tuple(_LISTS)
"""What else browsers' SDKs ask of a project: lists that are empty here."""


def remote_config(api_key: str) -> dict[str, Any]:
    """A project's settings."""
    return {
        "token": api_key,
        "hasFeatureFlags": False,
        "supportedCompression": ["gzip", "gzip-js"],
        "analytics": {"endpoint": "/i/v0/e/"},
        "elementsChainAsString": True,
        "defaultIdentifiedOnly": True,
        "isAuthenticated": False,
        "toolbarParams": {},
        "siteApps": [],
        "autocapture_opt_out": False,
        "autocaptureExceptions": False,
        "captureDeadClicks": False,
        "capturePerformance": False,
        "errorTracking": {"autocaptureExceptions": False, "suppressionRules": []},
        "heatmaps": False,
        "sessionRecording": False,
        "surveys": False,
    }


def configure(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Answer `/array/{token}/config` with JSON."""
    return _for_project(received, at, rules, store, lambda api_key: Answer(200, json.dumps(remote_config(api_key))))


def configure_by_script(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Answer `/array/{token}/config.js` with a script that leaves the settings where the SDK looks for them."""
    return _for_project(received, at, rules, store, lambda api_key: Answer(200, _script(api_key), SCRIPT))


def list_nothing(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Answer what a browser's SDK asks of a project beside its settings."""
    return _for_project(received, at, rules, store, lambda _: Answer(200, json.dumps(_LISTS[received.path])))


def no_bundle(received: Received, at: float, _rules: Rules, store: Store) -> Answer:
    """Answer a request for a bundle of the SDK itself: there is none here."""
    record = record_of(received, datetime.fromtimestamp(at, UTC))
    return keep(store, record, Answer(404, _NO_BUNDLES, "text/plain", error="no SDK bundles here"), None)


def _for_project(received: Received, at: float, rules: Rules, store: Store, answer: Callable[[str], Answer]) -> Answer:
    record = record_of(received, datetime.fromtimestamp(at, UTC))
    try:
        api_key = checked_token(_token(received))
    except Refusal as refusal:
        return keep_refusal(store, record, refusal)
    if not rules.keys.knows(api_key):
        return keep(store, record, management_error(not_found()), api_key)
    return keep(store, record, answer(api_key), api_key)


def _token(received: Received) -> str | None:
    """The key in the path `/array/{token}/…`, else in the query."""
    parts = received.full_path.split("/")
    return unquote(parts[2]) if parts[1] == "array" else received.parameter("token")


def _script(api_key: str) -> str:
    settings = json.dumps({"config": remote_config(api_key), "siteApps": []}).replace("<", "\\u003c")
    key = json.dumps(api_key).replace("<", "\\u003c")
    return f"(function(all){{all[{key}]={settings}}})(window._POSTHOG_REMOTE_CONFIG=window._POSTHOG_REMOTE_CONFIG||{{}});\n"
