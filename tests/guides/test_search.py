"""The search of `forwarder help` finds the page of a question, in the words of those who ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import pytest

from forwarder.cli import help as help_command
from forwarder.cli.help import HelpSearch, HelpSection, HelpTopic, sections_of, topics
from tests.support.cases import cases

FIRST: Final = 3
"""The results that a user looks at."""
QUESTIONS: Final = {
    # the questions of a new user
    "stop autocapture": {"stop-autocapture"},
    "disk full": {"what-happens-when"},
    "memory for 8 h at 500/s": {"scaling"},
    "move from US to EU": {"destinations"},
    "did my event arrive?": {"watching"},
    "rotate project key": {"rotate-keys"},
    "two replicas kubernetes": {"deploy-kubernetes"},
    "expose to internet": {"expose"},
    "what is a lane": {"glossary"},
    "upgrade without losing events": {"upgrade"},
    "Grafana dashboard": {"deploy-kubernetes", "deploy"},
    "sampling": {"stop-autocapture", "rules"},
    "delete a person": {"delete-person"},
    "corporate proxy": {"corporate-proxy"},
    "Windows": {"windows"},
    # in other words
    "hot reload": {"restart"},
    "GDPR erasure request": {"delete-person"},
    "roll back to an older version": {"upgrade"},
    "leaked api key": {"rotate-keys"},
    "requests per second rate limit": {"expose"},
    "NTLM login": {"corporate-proxy"},
    "HTTPS_PROXY environment variable": {"corporate-proxy"},
    "powershell": {"windows"},
    "too many clicks and page views": {"stop-autocapture"},
    "change config without restart": {"restart"},
    "renew TLS certificate": {"security", "http", "expose"},
    "run out of disk space": {"what-happens-when"},
    "how many cores": {"workers"},
    "events missing in the service": {"watching"},
    "ad blocker": {"first-party"},
    "copy of all events to S3": {"archive"},
    "why is my lane halted": {"reasons", "delivery", "glossary"},
    "import old data from mixpanel": {"import-formats", "migration"},
    "pager alerts": {"alerts"},
    "forget a user": {"rules", "delete-person"},
    # in words that the pages don't use, or hardly
    "events show up twice": {"operations", "kafka-operate", "logs"},
    "port already in use": {"operations"},
    "sdk timeout": {"operations", "sdks"},
    "lost after deploy": {"operations", "restart"},
    "docker logs to posthog": {"log-recipes"},
    "OOM killed": {"operations"},
    "ECONNREFUSED connection refused": {"operations"},
    "zero downtime restart": {"restart"},
    "anonymize email addresses": {"rules"},
    "wrong timezone in import": {"import-formats", "import-preflight"},
    "unauthorized": {"operations", "http"},
    "mock server for unit tests": {"testing", "testing-http"},
    "switch from self-hosted to cloud": {"destinations"},
    "CORS error in browser console": {"http", "connect-sdks"},
    "save money": {"stop-autocapture"},
    "resend failed events": {"dead-letters"},
    "backup my events": {"archive"},
    "too many open files": {"operations", "http"},
    "throttling": {"expose"},
    "encrypt data at rest": {"security"},
    "k8s autoscaling": {"kafka-kubernetes", "deploy-kubernetes"},
    # symptoms
    "events don't arrive": {"what-happens-when", "watching"},
    "senders get 503": {"what-happens-when", "http"},
    "readyz fails": {"what-happens-when"},
    "kafka lag grows": {"what-happens-when", "kafka-operate"},
    "timestamps are wrong": {"what-happens-when"},
    "connection refused": {"what-happens-when", "corporate-proxy"},
    "dead letters grow": {"what-happens-when", "reasons"},
    "import waits": {"imports", "what-happens-when"},
    # settings and commands
    "upstream.timeout": {"configuration"},
    "FORWARDER_BUFFER__MAX_BYTES": {"configuration"},
    "sources.kafka group_id": {"configuration-sources"},
    "options of dead-letters replay": {"commands", "dead-letters"},
}
"""Words, and the topics of which one is among the first results."""


@pytest.fixture(scope="module")
def known() -> Iterator[Mapping[str, HelpTopic]]:
    """The documents, which are cut into sections once for all questions."""

    @cache
    def cut(topic: HelpTopic) -> list[HelpSection]:
        return list(sections_of(topic))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(help_command, "sections_of", cut)
        yield topics()


@pytest.mark.slow
@cases("words", QUESTIONS)
def test_a_question_finds_its_page(words: str, known: Mapping[str, HelpTopic]) -> None:
    """In the first three sections."""
    first_topics = [section.topic for section in HelpSearch.run(words, known).sections[:FIRST]]
    assert QUESTIONS[words] & set(first_topics), first_topics


def test_pages_for_maintainers_are_not_searched(known: Mapping[str, HelpTopic]) -> None:
    """They are topics, the last of the list, and no search shows one."""
    apart = {name for name, topic in known.items() if topic.folder == "maintainers"}
    assert {"architecture", "interface", "benchmarks"} <= apart
    assert set(list(known)[-len(apart) :]) == apart
    for words in ("architecture", "benchmarks", "management API interface"):
        result = HelpSearch.run(words, known)
        assert apart.isdisjoint(section.topic for section in result.sections)
