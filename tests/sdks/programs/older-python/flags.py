"""An application with an older `posthog` that decides its visitors' flags: from the definitions,
and by asking.

    python flags.py --host http://127.0.0.1:8320 --key phc_… --secret-key phx_… --asked 20 <
    visitors.jsonl

Each line of input is a visitor: distinct_id, person_properties, groups, group_properties. For each
a line is written: what the definitions give (`flags`, `payloads`; what the SDK can't decide by
itself is absent), and for the first `--asked` what the service says (`answered`).
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from posthog import Posthog


def decided(client: Posthog, visitor: dict[str, Any], *, locally: bool) -> dict[str, Any]:
    """All flags of a visitor."""
    said = client.get_all_flags_and_payloads(
        visitor["distinct_id"],
        groups=visitor["groups"],
        person_properties=visitor["person_properties"],
        group_properties=visitor["group_properties"],
        only_evaluate_locally=locally,
    )
    return {"flags": said["featureFlags"], "payloads": said["featureFlagPayloads"]}


def main() -> None:
    """Read the command line, and decide."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--host", "--key", "--secret-key"):
        parser.add_argument(name, required=True)
    parser.add_argument("--asked", type=int, default=0)
    args = parser.parse_args()
    deciding = Posthog(
        args.key,
        host=args.host,
        personal_api_key=args.secret_key,
        send=False,
        feature_flags_request_timeout_seconds=30,
    )
    asking = Posthog(args.key, host=args.host, send=False, feature_flags_request_timeout_seconds=30)
    deciding.load_feature_flags()  # type: ignore[no-untyped-call]
    for number, line in enumerate(sys.stdin):
        visitor = json.loads(line)
        said = {"distinct_id": visitor["distinct_id"], **decided(deciding, visitor, locally=True)}
        if number < args.asked:
            said["answered"] = decided(asking, visitor, locally=False)
        print(json.dumps(said))
    for client in (deciding, asking):
        client.shutdown()


if __name__ == "__main__":
    main()
