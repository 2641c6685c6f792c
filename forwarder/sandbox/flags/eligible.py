"""Which of a project's flags a request can get: by where it comes from, by the contexts that it
names, and whether it asks for the flags of surveys alone.

The rules are the service's (`fetch_and_filter` in `rust/feature-flags/src/handler/flags.rs`, read
in its copy at capyai-agent-test2/posthog 1d6c9152b8f6, and `utils/user_agent.rs` of
PostHog/posthog at 166ee8c906fd). A flag with `evaluation_runtime` `server` or `client` is for
requests from there. A request is from where its field `evaluation_runtime` says; else from where
its `User-Agent` is known to run; else from a browser if it has a header that browsers alone send;
else from a server.

A flag that a request can't get is off for the flags that depend on it, as an inactive one is, and
in no answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from forwarder.sandbox.flags.definitions import Flag

SURVEY_PREFIX: Final = "survey-targeting-"
"""How the keys of flags begin that decide who is shown a survey."""
_SDK: Final = re.compile(r"posthog-([^/]+)/.").match
_SERVER_SDKS: Final = frozenset(
    ("python", "ruby", "php", "java", "go", "node", "dotnet", "elixir", "rs", "server")
)
_CLIENT_SDKS: Final = frozenset(("js", "android", "ios", "react-native", "flutter"))
_BROWSERS: Final = ("Mozilla/", "Chrome/", "Safari/", "Firefox/", "Edge/")
_TOOLS: Final = ("python-requests/", "curl/")
_OF_BROWSERS: Final = ("origin", "referer", "sec-fetch-mode", "sec-fetch-site")
"""Headers that browsers alone send."""


class Runtime(StrEnum):
    """Where a flag is for, and where a request is from."""

    ALL = "all"
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Which flags a request can get."""

    runtime: Runtime = Runtime.ALL
    contexts: Collection[str] = ()
    """Flags that name evaluation contexts are for one of them only; none: for all."""
    surveys_only: bool = False

    def includes(self, flag: Flag) -> bool:
        """Whether a request can get an active flag."""
        named = flag.content.get("evaluation_contexts") or flag.content.get("evaluation_tags")
        return (
            (not self.surveys_only or flag.key.startswith(SURVEY_PREFIX))
            and self._runs(parse_runtime(flag.content.get("evaluation_runtime")))
            and (
                not self.contexts
                or not isinstance(named, list)
                or any(name in self.contexts for name in named)
            )
        )

    def apply(self, flags: Mapping[str, Flag]) -> Mapping[str, Flag]:
        """The flags, of which those that a request can't get are inactive."""
        if self == ELIGIBLE_FOR_ALL:
            return flags
        return {
            key: flag if self.includes(flag) else replace(flag, active=False)
            for key, flag in flags.items()
        }

    def _runs(self, runtime: Runtime) -> bool:
        return Runtime.ALL in (runtime, self.runtime) or runtime is self.runtime


ELIGIBLE_FOR_ALL: Final = Eligibility()


def parse_runtime(value: object) -> Runtime:
    """The runtime that a text names, in any case of letters; anything else is all of them."""
    text = value.lower() if isinstance(value, str) else ""
    return Runtime(text) if text in tuple(Runtime) else Runtime.ALL


def caller_runtime(headers: Mapping[str, str]) -> Runtime:
    """Where a request comes from. `headers` have lower-case names."""
    agent = headers.get("user-agent", "")
    if agent.startswith("posthog-"):
        sdk = _SDK(agent)
        name = sdk[1] if sdk else ""
        if name in _SERVER_SDKS:
            return Runtime.SERVER
        if name in _CLIENT_SDKS:
            return Runtime.CLIENT
    elif any(browser in agent for browser in _BROWSERS):
        return Runtime.CLIENT
    elif any(tool in agent for tool in _TOOLS):
        return Runtime.SERVER
    of_browser = any(name in headers for name in _OF_BROWSERS)
    return Runtime.CLIENT if of_browser else Runtime.SERVER
