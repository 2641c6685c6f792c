"""Which flags depend on which, by their conditions on the values of others: the order in which
they are evaluated, and which of them can't be.

The rules are the service's (`_compute_flag_dependencies` in
products/feature_flags/backend/flags_cache.py of PostHog/posthog, commit 03e780349917; with
`PrecomputedDependencyGraph` in rust/feature-flags/src/utils/graph_utils.rs, which reads it): a flag
that depends on one that doesn't exist, directly or through others, is off, whatever its other
conditions. Flags that depend on themselves, and those that depend on such a flag, aren't evaluated
at all. An inactive flag is one that exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from forwarder.sandbox.flags.definitions import Flag


@dataclass(frozen=True, slots=True)
class FlagDependencies:
    """The dependencies of a project's flags, all by key."""

    order: tuple[str, ...]
    """The flags that can be evaluated, each after those that it depends on."""
    needs: Mapping[str, Collection[str]]
    """Of each flag, those that its own conditions name."""
    incomplete: frozenset[str]
    """Those of them that depend on a flag that doesn't exist."""
    circular: frozenset[str]
    """Those that depend on themselves, or on one that does."""

    def with_needed(self, keys: Iterable[str]) -> set[str]:
        """These flags, and all on which they depend."""
        chosen = set[str]()
        todo = list(keys)
        while todo:
            key = todo.pop()
            if key not in chosen:
                chosen.add(key)
                todo.extend(self.needs.get(key, ()))
        return chosen


def find_dependencies(flags: Mapping[str, Flag]) -> FlagDependencies:
    """The dependencies of flags. Deleted ones don't exist."""
    existing = {key: flag for key, flag in flags.items() if not flag.deleted}
    keys = {flag.id: key for key, flag in existing.items() if flag.id}
    keys |= {key: key for key in existing}
    needs = {
        key: {keys[name] for name in flag.needs if name in keys} for key, flag in existing.items()
    }
    incomplete = {
        key for key, flag in existing.items() if any(name not in keys for name in flag.needs)
    }
    dependents = dict[str, list[str]]()
    for key, needed in needs.items():
        for other in needed:
            dependents.setdefault(other, []).append(key)
    open_needs = {key: len(needed) for key, needed in needs.items()}
    order = [key for key, number in open_needs.items() if not number]
    for key in order:
        # It grows while it is read: by those of which this was the last need.
        for dependent in dependents.get(key, ()):
            if key in incomplete:
                incomplete.add(dependent)
            open_needs[dependent] -= 1
            if not open_needs[dependent]:
                order.append(dependent)
    circular = existing.keys() - set(order)
    return FlagDependencies(
        tuple(order), needs, frozenset(incomplete - circular), frozenset(circular)
    )
