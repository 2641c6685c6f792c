"""The configured rules of a pipeline: from settings to compiled rules, with the files that they
name; and their reload.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import structlog

from forwarder.config.rule_settings import RuleSettings
from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError

if TYPE_CHECKING:
    from forwarder.rules.event_rules import EventRules
    from forwarder.rules.id_files import IdFiles

_log = structlog.get_logger(__name__)


class ConfiguredRules:
    """The rules that hold now; without rules nothing of their code is loaded."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Reads the files that rules name. Raises `ConfigurationError`."""
        self._clock = clock
        self._max_event = settings.upstream.max_event
        self._settings: Sequence[RuleSettings] = settings.rules
        self._task: asyncio.Task[None] | None = None
        self._files: IdFiles | None = None
        self.compiled: EventRules | None = None
        """None: there are none."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when other rules hold."""
        if settings.rules:
            self._files, self.compiled = self._open(settings.rules)

    def _open(self, settings: Sequence[RuleSettings]) -> tuple[IdFiles, EventRules | None]:
        from forwarder.rules.event_rules import compile_rules  # noqa: PLC0415
        from forwarder.rules.id_files import IdFiles  # noqa: PLC0415 - most have no use for rules

        files = IdFiles(self._clock, self._files)
        counts = None if self.compiled is None else self.compiled.counts
        return files, compile_rules(settings, files, self._max_event, counts)

    def start(self) -> None:
        """Look at the files from now on, on the running loop."""
        if self._files is not None:
            self._files.start()

    async def close(self) -> None:
        """Look at them no more, and end a reload."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._files is not None:
            await self._files.close()

    def reload(self, settings: Sequence[RuleSettings]) -> None:
        """Have other rules hold: at once, or once the files of ids that they name are read. The
        old ones stay if they can't be used.
        """
        if settings == self._settings and not settings:
            return
        if any(rule.match.distinct_id_file for rule in settings):
            if self._task is not None:
                self._task.cancel()
            self._task = asyncio.get_running_loop().create_task(
                self._reload_beside(settings), name="reload of rules"
            )
            return
        try:
            opened = self._open(settings)
        except ConfigurationError as error:
            _report(error)
        else:
            self._use(settings, *opened)

    async def _reload_beside(self, settings: Sequence[RuleSettings]) -> None:
        try:
            opened = await asyncio.to_thread(self._open, settings)
        except ConfigurationError as error:
            _report(error)
        else:
            self._use(settings, *opened)

    def _use(
        self, settings: Sequence[RuleSettings], files: IdFiles, compiled: EventRules | None
    ) -> None:
        if self._files is not None:
            self._files.stop()
        self._settings = settings
        self._files = files
        self.compiled = compiled
        files.start()
        self.on_change()
        _log.info("other rules hold now", rules=len(settings))

    def counts(self) -> dict[tuple[str, str], int]:
        """Events by rule and outcome, since the start; a rule that did nothing has zeros."""
        if self.compiled is None:
            return {}
        from forwarder.rules.event_rules import RuleOutcome  # noqa: PLC0415

        counts = {
            (rule.name, outcome.value): 0 for rule in self.compiled.rules for outcome in RuleOutcome
        }
        return counts | {
            (name, outcome.value): count for (name, outcome), count in self.compiled.counts.items()
        }

    def warnings(self) -> Iterator[str]:
        """Rules that fail on events, and files that can't be read again."""
        for name, why in () if self.compiled is None else self.compiled.errors.items():
            yield (
                f"rule {name} failed on events (forwarder_rule_events_total counts them), the "
                f"last time: {why}"
            )
        for file in () if self._files is None else self._files.files.values():
            if file.failing:
                yield (
                    f"{file.path} can't be read again ({file.failing}): its last content "
                    "stays in force for rules"
                )


def _report(error: ConfigurationError) -> None:
    _log.error("the rules can't be used; the old ones stay", why=error.message, hint=error.hint)
