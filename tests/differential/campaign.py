"""The parent of two versions: sends the same mutants to both, and reports where they differ."""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.differential.inputs import KINDS, LINES, RECORDS, Mutant
from tests.differential.mutants import mutants

ROOT: Final = Path(__file__).parents[2]
BATCH: Final = 400
"""Mutants that are sent at once."""
AHEAD: Final = 2
"""Batches that were sent and aren't answered."""
SHOWN: Final = 20
"""Differences that are described."""
WIDTH: Final = 2000
"""Characters of a value that are shown."""
IDS: Final = "listed\nno one\n"
"""The people whom a rule drops."""
_BOOT: Final = (
    "import sys; checkout, root, descriptor, folder = sys.argv[1:]; sys.path.insert(0, checkout); "
    "import forwarder; sys.path[0] = root; from tests.differential.worker import serve; "
    "serve(int(descriptor), checkout, folder)"
)
_SECTIONS: Final = ("labels", "answers", "chunks", "letters", "books", "once settled")


@dataclass(frozen=True)
class DifferentialOptions:
    """What is compared."""

    before: Path
    after: Path = ROOT
    count: int = 1_000_000
    seed: int = 1
    kinds: Sequence[str] = KINDS


@dataclass
class DifferentialReport:
    """The outcomes of a campaign, and the differences."""

    mutants: Counter[str] = field(default_factory=Counter)
    """By kind."""
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    """Of the version before, by kind: how many mutants had each."""
    differences: Counter[str] = field(default_factory=Counter)
    """By kind; `figures` are those that metrics have after a batch."""
    configurations: Counter[str] = field(default_factory=Counter)
    """Differences by configuration."""
    seconds: float = 0.0
    cpu: Sequence[float] = ()
    """Seconds of CPU that each version took."""

    @property
    def total(self) -> int:
        """All mutants."""
        return self.mutants.total()

    def as_text(self) -> str:
        """A table of the outcomes, and the rate."""
        lines = [f"{'kind':<9} {'outcome':<44} {'mutants':>9}"]
        for kind in self.mutants:
            lines.append(f"{kind:<9} {'all':<44} {self.mutants[kind]:>9,}")
            for outcome, count in self.outcomes[kind].most_common():
                lines.append(f"{'':<9} {outcome:<44} {count:>9,}")
            lines.append(f"{'':<9} {'DIFFERENT':<44} {self.differences[kind]:>9,}")
        if self.differences["figures"]:
            lines.append(f"figures   {'DIFFERENT':<44} {self.differences['figures']:>9,}")
        lines += [
            f"{count:,} differences with the configuration {name}"
            for name, count in self.configurations.most_common()
        ]
        per_cpu = ", ".join(f"{self.total / max(cpu, 0.001):,.0f}" for cpu in self.cpu)
        lines.append(
            f"{self.total:,} mutants in {self.seconds:.0f} s, {self.total / self.seconds:,.0f} a "
            f"second; {per_cpu} a second of CPU; {self.differences.total():,} differences"
        )
        return "\n".join(lines)


_Batch: TypeAlias = tuple[int, list[Mutant]]
"""Mutants with the number of their batch."""


class VersionEnded(RuntimeError):
    """The process of a version has ended, and has said why."""


class VersionProcess:
    """The process that runs a version. Its methods raise `VersionEnded`."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self._checkout = checkout
        self._parent, child = Pipe()
        command = [sys.executable, "-P", "-c", _BOOT, str(checkout), str(ROOT)]
        self._process = subprocess.Popen(
            [*command, str(child.fileno()), str(folder)],
            env={"PYTHONHASHSEED": "0", "PATH": "/usr/bin:/bin"},
            pass_fds=[child.fileno()],
        )
        child.close()

    def send(self, question: str, number: int = 0, content: object = None) -> None:
        """Ask it."""
        try:
            self._parent.send((question, number, content))
        except BrokenPipeError:
            raise VersionEnded(f"the process of {self._checkout} has ended") from None

    def receive(self) -> Any:
        """Wait for its next answer."""
        try:
            return self._parent.recv()
        except EOFError:
            raise VersionEnded(f"the process of {self._checkout} has ended") from None

    def ask(self, question: str, number: int = 0, content: object = None) -> Any:
        """Ask it, and wait for the answer."""
        self.send(question, number, content)
        return self.receive()

    def close(self) -> None:
        """End it."""
        self._parent.close()
        self._process.wait()


def run(options: DifferentialOptions, say: Callable[[str], None]) -> DifferentialReport:
    """Compare two versions; describe differences as they are found."""
    report = DifferentialReport()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="differential-") as root:
        folder = Path(root)
        (folder / "salt").write_text("salt")
        (folder / "ids").write_text(IDS)
        versions = [
            VersionProcess(checkout, folder) for checkout in (options.before, options.after)
        ]
        try:
            _Comparison(versions, report, say).compare(options)
            report.cpu = [version.ask("cpu") for version in versions]
        finally:
            for version in versions:
                version.close()
    report.seconds = time.monotonic() - began
    return report


class _Comparison:
    """Batches in progress."""

    def __init__(
        self,
        versions: Sequence[VersionProcess],
        report: DifferentialReport,
        say: Callable[[str], None],
    ) -> None:
        self._versions = versions
        self._report = report
        self._describe_one = say
        self._different: list[tuple[int, int, Mutant]] = []
        """Not described yet: batch, index and mutant."""

    def compare(self, options: DifferentialOptions) -> None:
        """Send all mutants, and compare what comes back."""
        pending: list[_Batch] = []
        for number, batch in enumerate(_batches(options)):
            for version in self._versions:
                version.send("run", number, batch)
            pending.append((number, batch))
            if len(pending) > AHEAD:
                self._receive(pending.pop(0))
            if self._different or len(batch) < BATCH:
                # questions are answered in order
                while pending:
                    self._receive(pending.pop(0))
                self._describe()
        while pending:
            self._receive(pending.pop(0))
        self._describe()

    def _receive(self, sent: _Batch) -> None:
        number, batch = sent
        before, after = [version.receive() for version in self._versions]
        for at, (mutant, mine, its) in enumerate(zip(batch, before[0], after[0], strict=True)):
            self._count(mutant, mine[1])
            if mine[0] != its[0]:
                self._different.append((number, at, mutant))
        for name, figures in before[1].items():
            if figures != after[1][name]:
                self._differ("figures", name)
                title = f"figures after batch {number}, configuration {name}"
                self._say("\n".join([title, *_side_by_side(figures, after[1][name])]))

    def _count(self, mutant: Mutant, labels: Sequence[str]) -> None:
        report = self._report
        report.mutants[mutant.kind] += 1
        report.outcomes.setdefault(mutant.kind, Counter()).update(set(labels))

    def _differ(self, kind: str, configuration: str) -> None:
        self._report.differences[kind] += 1
        self._report.configurations[configuration] += 1

    def _say(self, text: str) -> None:
        if self._report.differences.total() <= SHOWN:
            self._describe_one(text)

    def _describe(self) -> None:
        for number, at, mutant in self._different:
            self._differ(mutant.kind, mutant.configuration)
            if self._report.differences.total() <= SHOWN:
                outcomes = [version.ask("show", number, at) for version in self._versions]
                self._say(described(number * BATCH + at, mutant, outcomes))
        self._different.clear()


def _batches(options: DifferentialOptions) -> Iterator[list[Mutant]]:
    left = mutants(options.seed, options.count, options.kinds)
    while batch := list(islice(left, BATCH)):
        yield batch


def described(number: int, mutant: Mutant, outcomes: Sequence[tuple[bytes, Any]]) -> str:
    """A difference, for a reader: the mutant, and where its two outcomes differ."""
    title = f"mutant {number}: {mutant.kind}, configuration {mutant.configuration}, {mutant.fate}"
    lines = ["", "=" * 100, title]
    if mutant.kind == LINES:
        lines += [f"log {mutant.policy}", *_bytes("lines", mutant.lines)]
    elif mutant.kind == RECORDS:
        lines.append(f"cluster {mutant.policy}")
        for record in mutant.records:
            lines.append(f"record {record._replace(value=None)}")
            lines += _bytes("value", record.value)
    for request in mutant.requests:
        lines.append(f"request {request._replace(body=b'')}")
        lines += _bytes("body", request.body)
    before, after = [outcome for _, outcome in outcomes]
    same = True
    for section, mine, its in zip(_SECTIONS, before, after, strict=True):
        if repr(mine) != repr(its):
            same = False
            lines += [f"--- {section}", *_side_by_side(mine, its)]
    if same:
        texts = [text.decode() for text, _ in outcomes]
        lines += ["--- new UUIDs", f"before {texts[0][:WIDTH]}", f"after  {texts[1][:WIDTH]}"]
    return "\n".join(lines)


def _bytes(name: str, data: bytes | None) -> Iterator[str]:
    yield f"{name} {data!r}"[:WIDTH]
    if data:
        yield f"{name} in base64 {base64.b64encode(data).decode()}"


def _side_by_side(mine: Any, its: Any) -> Iterator[str]:
    """The items that only one of them has, or where they differ."""
    mine = list(mine) if isinstance(mine, list | tuple) else [mine]
    its = list(its) if isinstance(its, list | tuple) else [its]
    for at in range(max(len(mine), len(its))):
        one = repr(mine[at]) if at < len(mine) else "nothing"
        other = repr(its[at]) if at < len(its) else "nothing"
        if one != other:
            begin = max(0, _first_difference(one, other) - 80)
            yield f"before [{at}] …{one[begin : begin + WIDTH]}"
            yield f"after  [{at}] …{other[begin : begin + WIDTH]}"


def _first_difference(one: str, other: str) -> int:
    for at, (mine, its) in enumerate(zip(one, other, strict=False)):
        if mine != its:
            return at
    return min(len(one), len(other))
