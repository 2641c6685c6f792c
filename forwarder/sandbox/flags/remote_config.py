"""What a browser's SDK requests on startup: a project's settings, as JSON and as a script, and bundles that the sandbox does not have.

Every optional feature is off, since the sandbox does not serve it: replay, surveys, heat maps, dead clicks, web vitals. So the SDK loads no
bundle from `/static/`, which the sandbox answers with 404 and a pointer to the package.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from forwarder.sandbox.ingest.decoding import ReceivedRequest
from forwarder.sandbox.ingest.recording import Exchange
from forwarder.sandbox.ingest.validation import check_token
from forwarder.sandbox.protocol.http import ServiceResponse, management_error_response, not_found

SCRIPT: Final = "application/javascript"
_NO_BUNDLES: Final = "The sandbox has no SDK bundles: install posthog-js as a package, or point its assets elsewhere.\n"
_LISTS: Final[dict[str, Any]] = {
    "/api/surveys": {"surveys": [], "survey_config": None},
    "/api/early_access_features": {"earlyAccessFeatures": []},
    "/api/product_tours": {"product_tours": []},
    "/api/web_experiments": {"experiments": []},
}
LIST_PATHS: Final = tuple(_LISTS)
"""Further lists that browsers' SDKs request, empty here."""


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


def serve_config(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer `/array/{token}/config` with JSON."""
    return _for_project(exchange, lambda api_key: ServiceResponse(200, json.dumps(remote_config(api_key))))


def serve_config_script(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer `/array/{token}/config.js` with a script that leaves the settings where the SDK looks for them."""
    return _for_project(exchange, lambda api_key: ServiceResponse(200, _script(api_key), SCRIPT))


def serve_empty_list(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer with an empty list."""
    return _for_project(exchange, lambda _: ServiceResponse(200, json.dumps(_LISTS[exchange.received.path])))


def serve_no_bundle(_exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a request for a bundle of the SDK with 404."""
    return ServiceResponse(404, _NO_BUNDLES, "text/plain", error="no SDK bundles here"), None


def _for_project(exchange: Exchange, answer: Callable[[str], ServiceResponse]) -> tuple[ServiceResponse, str | None]:
    api_key = check_token(_token(exchange.received))
    if not exchange.policy.keys.knows(api_key):
        return management_error_response(not_found()), api_key
    return answer(api_key), api_key


def _token(received: ReceivedRequest) -> str | None:
    """The key in the path `/array/{token}/…`, else in the query."""
    parts = received.full_path.split("/")
    return unquote(parts[2]) if parts[1] == "array" else received.parameter("token")


def _script(api_key: str) -> str:
    settings = json.dumps({"config": remote_config(api_key), "siteApps": []}).replace("<", "\\u003c")
    key = json.dumps(api_key).replace("<", "\\u003c")
    return f"(function(all){{all[{key}]={settings}}})(window._POSTHOG_REMOTE_CONFIG=window._POSTHOG_REMOTE_CONFIG||{{}});\n"
