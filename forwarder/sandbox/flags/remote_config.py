"""What a browser's SDK requests on startup: a project's settings, as JSON and as a script, its
surveys and early access features, and bundles that the sandbox does not have.

Optional features that the sandbox does not serve are off: replay, heat maps, dead clicks, web
vitals. So the SDK loads no bundle for them from `/static/`, which the sandbox answers with 404 and
a pointer to the package. Surveys are on where a project has any; whether one is displayed the SDK
decides, by the flags that the survey names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from forwarder.sandbox.flags.stored import ProjectDefinitions, project_definitions
from forwarder.sandbox.ingest.decoding import ReceivedRequest
from forwarder.sandbox.ingest.recording import Exchange
from forwarder.sandbox.ingest.validation import check_token
from forwarder.sandbox.protocol.http import ServiceResponse, management_error_response, not_found
from forwarder.sandbox.store.database import Store

SCRIPT: Final = "application/javascript"
_NO_BUNDLES: Final = (
    "The sandbox has no SDK bundles: install posthog-js as a package, or point its assets "
    "elsewhere.\n"
)


def _surveys(project: ProjectDefinitions, _received: ReceivedRequest) -> dict[str, Any]:
    """Archived surveys are left out; those that have not started or have ended are left to the
    SDK, as in the real service.
    """
    return {
        "surveys": [survey for survey in project.surveys if survey.get("archived") is not True],
        "survey_config": None,
    }


def _early_access_features(
    project: ProjectDefinitions, received: ReceivedRequest
) -> dict[str, Any]:
    """The features in the stages that the query names, by default those in beta."""
    stages = parse_qs(received.query).get("stage") or ["beta"]
    return {
        "earlyAccessFeatures": [
            feature for feature in project.early_access_features if feature["stage"] in stages
        ]
    }


def _web_experiments(project: ProjectDefinitions, _received: ReceivedRequest) -> dict[str, Any]:
    """Experiments that change pages by themselves; the others are flags to a browser."""
    return {
        "experiments": [
            experiment for experiment in project.experiments if experiment.get("type") == "web"
        ]
    }


def _product_tours(_project: ProjectDefinitions, _received: ReceivedRequest) -> dict[str, Any]:
    return {"product_tours": []}


_LISTS: Final[Mapping[str, Callable[[ProjectDefinitions, ReceivedRequest], dict[str, Any]]]] = {
    "/api/surveys": _surveys,
    "/api/early_access_features": _early_access_features,
    "/api/product_tours": _product_tours,
    "/api/web_experiments": _web_experiments,
}
LIST_PATHS: Final = tuple(_LISTS)
"""Further lists that browsers' SDKs request."""


def remote_config(store: Store, api_key: str) -> dict[str, Any]:
    """A project's settings."""
    project = project_definitions(store, api_key)
    flags = any(flag.active and not flag.deleted for flag in project.flags.values())
    return {
        **common_settings(api_key),
        "hasFeatureFlags": flags,
        "surveys": _has_surveys(project.surveys),
    }


def common_settings(api_key: str) -> dict[str, Any]:
    """The settings of a project without flags and surveys."""
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
    return _for_project(
        exchange,
        lambda api_key: ServiceResponse(200, json.dumps(remote_config(exchange.store, api_key))),
    )


def serve_config_script(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer `/array/{token}/config.js` with a script that leaves the settings where the SDK looks
    for them.
    """
    return _for_project(
        exchange,
        lambda api_key: ServiceResponse(
            200, _script(remote_config(exchange.store, api_key)), SCRIPT
        ),
    )


def serve_list(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer with one of the lists."""
    received = exchange.received
    store = exchange.store
    return _for_project(
        exchange,
        lambda api_key: ServiceResponse(
            200, json.dumps(_LISTS[received.path](project_definitions(store, api_key), received))
        ),
    )


def serve_no_bundle(_exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a request for a bundle of the SDK with 404."""
    return ServiceResponse(404, _NO_BUNDLES, "text/plain", error="no SDK bundles here"), None


def _has_surveys(surveys: Sequence[Mapping[str, Any]]) -> bool:
    return any(survey.get("archived") is not True for survey in surveys)


def _for_project(
    exchange: Exchange, answer: Callable[[str], ServiceResponse]
) -> tuple[ServiceResponse, str | None]:
    api_key = check_token(_token(exchange.received))
    if not exchange.policy.keys.knows(api_key):
        return management_error_response(not_found()), api_key
    return answer(api_key), api_key


def _token(received: ReceivedRequest) -> str | None:
    """The key in the path `/array/{token}/…`, else in the query."""
    parts = received.full_path.split("/")
    return unquote(parts[2]) if parts[1] == "array" else received.parameter("token")


def _script(config: Mapping[str, Any]) -> str:
    settings = json.dumps({"config": config, "siteApps": []}).replace("<", "\\u003c")
    key = json.dumps(config["token"]).replace("<", "\\u003c")
    return (
        f"(function(all){{all[{key}]={settings}}})"
        "(window._POSTHOG_REMOTE_CONFIG=window._POSTHOG_REMOTE_CONFIG||{});\n"
    )
