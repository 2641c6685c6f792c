"""The properties that the service lifts from events onto their persons.

Source in PostHog/posthog: `nodejs/src/common/persons/person-property-utils.ts` (07eec2a), the set
`eventToPersonProperties`; `nodejs/src/common/utils/db/utils.ts` (07eec2a) also lifts `$os_name`,
as `$os`.
"""

from __future__ import annotations

from typing import Final

LIFTED: Final = frozenset(
    {
        *("$app_build", "$app_name", "$app_namespace", "$app_version"),
        *("$browser", "$browser_version", "$device_type", "$raw_user_agent"),
        *("$current_url", "$pathname", "$referrer", "$referring_domain"),
        *("$os", "$os_name", "$os_version"),
        *("$screen_height", "$screen_width", "$viewport_height", "$viewport_width"),
        *("utm_source", "utm_medium", "utm_campaign", "utm_content", "utm_name", "utm_term"),
        *("gclid", "gad_source", "gclsrc", "dclid", "gbraid", "wbraid", "fbclid", "msclkid"),
        *("twclid", "li_fat_id", "mc_cid", "igshid", "ttclid", "rdt_cid", "irclid", "_kx"),
        *("epik", "qclid", "sccid"),
    }
)
"""Properties of an event that its person gets: with `$set`, and as `$initial_…` with `$set_once`.
"""
