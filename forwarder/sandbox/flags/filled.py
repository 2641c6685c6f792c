"""Person properties that the service fills in before it evaluates flags: what a person has of the
first visit (`$initial_…`) and of the system (`$os`, `$os_name`) is often known by another name
before it is stored.

The source: `populate_os_aliases` and `populate_missing_initial_properties` of the service
(rust/feature-flags/src/flags/flag_matching.rs, commit 0da8f8c35ac1, and flag_matching_utils.rs,
commit 031a66e3d579, in PostHog/posthog).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_OF_EVENTS: Final = """
    app_build app_name app_namespace app_version browser browser_version current_url device_type
    os os_version pathname raw_user_agent referrer referring_domain screen_height screen_width
    viewport_height viewport_width
"""
_OF_CAMPAIGNS: Final = """
    _kx dclid epik fbclid gad_source gbraid gclid gclsrc igshid irclid li_fat_id mc_cid msclkid
    qclid rdt_cid sccid ttclid twclid utm_campaign utm_content utm_medium utm_source utm_term
    wbraid
"""
_INITIAL: Final[Mapping[str, str]] = {
    **{f"${name}": f"$initial_{name}" for name in _OF_EVENTS.split()},
    **{name: f"$initial_{name}" for name in _OF_CAMPAIGNS.split()},
}
"""The property of the first visit by the one that it comes from."""


def fill_in(properties: Mapping[str, Any]) -> dict[str, Any]:
    """A person's properties with those that are missing but known by another name."""
    filled = dict(properties)
    for name, other in (("$os", "$os_name"), ("$os_name", "$os")):
        if name not in filled and other in filled:
            filled[name] = filled[other]
    for name in filled.keys() & _INITIAL.keys():
        filled.setdefault(_INITIAL[name], filled[name])
    return filled
