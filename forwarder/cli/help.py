"""`forwarder help`: the documents, in the terminal; the help of a command, for those who ask for it
that way; and a search for other words.

A topic is a document by its file's name, in whichever folder of `docs/` it is.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import shipped

if TYPE_CHECKING:
    from rich.console import Console

WIDTH: Final = 100
"""Documents are at most this wide, or as wide as the terminal."""
_LEFT_OUT: Final = ("decisions", "index", "README")
_MAINTAINERS: Final = "maintainers"
"""What pages for those who change forwarder are listed under, at the end. They aren't searched,
neither here nor on the site: their first lines say so.
"""
_NOT_SEARCHED: Final = "---\nsearch:\n  exclude: true\n"
_FRONT_MATTER: Final = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_COMMENT: Final = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_IMAGE: Final = re.compile(
    r"^!\[[^\]]*\]\([^)]*\)\n?|<(?:img|picture|source)\b[^>]*>", re.MULTILINE
)
_LINK: Final = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\((?!https?:)[^)\s]*\)")
_NOT_PROSE: Final = ("#", "```", "|", "!", "<", "1.", "- ")
_FILE: Final = re.compile(r"\[([\w-]+)\.md\]\((?!https?:)[^)\s]*\)")
_STEM: Final = re.compile(r"(?<=\w{3})(?:ing|ed|es|s|e)$")
"""Endings that a word is searched without."""
_EMPTY: Final = re.compile(
    "an?|and|any|are|be|can|did|do|does|for|from|has|have|how|i|in|is|it|its|me|my|need|of|on|or|"
    "our|should|that|the|there|this|to|want|we|what|when|where|which|who|why|will|with|you|your"
)
"""Words that say nothing of what is searched."""
_ALSO: Final = {
    "duplicate": "twice",
    "fake": "sandbox",
    "iphone": "ios",
    "k8s": "kubernetes",
    "mock": "sandbox",
    "oom": "memory",
    "ram": "memory",
    "resend": "replay",
    "throttl": "rate limit",
    "timezone": "zone",
    "unauthorized": "401",
}
"""What the documents call a word, by its stem."""
_USUAL_LENGTH: Final = 1500
"""Characters of a section."""
_OF_ONE_TOPIC: Final = 2
_FOUND: Final = 8
"""Sections that a search shows."""
_SENTENCE: Final = re.compile(r".+?\.(?=\s|$)")


@dataclass(frozen=True, slots=True)
class HelpTopic:
    """A document."""

    name: str
    folder: str
    """Of `docs/`; empty for `docs/` itself."""
    path: Path

    def text(self) -> str:
        """The document as a terminal can show it: without images, and without links to
        other files.
        """
        text = _IMAGE.sub("", _COMMENT.sub("", _FRONT_MATTER.sub("", self.path.read_text("utf-8"))))
        return _LINK.sub(r"\1", _FILE.sub(r"`forwarder help \1`", text)).lstrip("\n")

    def summary(self) -> str:
        """The first sentence below its title."""
        paragraphs = (
            part
            for part in self.text().split("\n\n")
            if part.strip() and not part.lstrip().startswith(_NOT_PROSE)
        )
        words = " ".join(next(paragraphs, "").split()).replace("*", "").replace("`", "")
        match = _SENTENCE.match(words)
        return match[0] if match else words


@dataclass(frozen=True, slots=True)
class HelpSection:
    """A part of a document below one heading."""

    topic: str
    heading: str
    """The topic's name for the part above the first one."""
    lines: Sequence[str]

    def counts(self, words: Sequence[re.Pattern[str]]) -> list[float]:
        """How much it is about each word, from 0 to 3: a heading counts most, a short one more, and
        a long text for less.
        """
        text = "\n".join(self.lines)
        name = f"{self.topic.replace('-', ' ')} {self.heading}"
        long = 0.5 + len(text) / _USUAL_LENGTH
        named = 1 + 1 / len(self.heading.split())
        hits = [len(word.findall(text)) for word in words]
        return [
            hit / (hit + long) + named * bool(word.search(name))
            for hit, word in zip(hits, words, strict=True)
        ]

    def quote(self, words: Sequence[re.Pattern[str]]) -> str:
        """Its first line with the most of the words."""
        line = max(self.lines, key=lambda line: sum(bool(word.search(line)) for word in words))
        return re.sub(r"[*`]", "", line).strip(" |-")


def sections_of(topic: HelpTopic) -> Iterator[HelpSection]:
    """The document's sections, without those that have a heading alone."""
    heading = topic.name
    lines: list[str] = []
    is_code = False
    for line in topic.text().splitlines():
        is_code ^= line.lstrip().startswith("```")
        if line.startswith("#") and not is_code:
            if lines:
                yield HelpSection(topic.name, heading, lines)
            heading = line.lstrip("# ").replace("`", "")
            lines = []
        elif line.strip(" `|-:") and not line.lstrip("_* ").startswith("Shown by"):
            lines.append(line)
    if lines:
        yield HelpSection(topic.name, heading, lines)


@dataclass(frozen=True, slots=True)
class HelpSearch:
    """What was found of some words."""

    words: Sequence[re.Pattern[str]]
    """Those that occur anywhere; each may be followed by an ending."""
    unknown: Sequence[str]
    sections: Sequence[HelpSection]
    """The best first, at most two of a document."""

    @classmethod
    def run(cls, asked: str, known: Mapping[str, HelpTopic]) -> HelpSearch:
        """Search all documents for users. A word counts for more the fewer sections have it; a
        section counts for more the more of the words it has.
        """
        typed = [
            word for word in re.findall(r"\w[\w$.-]*", asked.lower()) if not _EMPTY.fullmatch(word)
        ]
        patterns = [_pattern(word) for word in typed]
        users = [topic for topic in known.values() if topic.folder != _MAINTAINERS]
        sections = [section for topic in users for section in sections_of(topic)]
        counts = [section.counts(patterns) for section in sections]
        rarity = [
            log(1 + len(sections) / spread) if (spread := sum(map(bool, column))) else 0.0
            for column in zip(*counts, strict=True)
        ]
        scores = [
            sum(count * weight for count, weight in zip(row, rarity, strict=True))
            * sum(map(bool, row))
            for row in counts
        ]
        best: list[HelpSection] = []
        for score, section in sorted(
            zip(scores, sections, strict=True), key=lambda scored: scored[0], reverse=True
        ):
            if score > 0 and sum(section.topic == match.topic for match in best) < _OF_ONE_TOPIC:
                best.append(section)
        return cls(
            [pattern for pattern, weight in zip(patterns, rarity, strict=True) if weight],
            [word for word, weight in zip(typed, rarity, strict=True) if not weight],
            best[:_FOUND],
        )


def _pattern(word: str) -> re.Pattern[str]:
    """A word as it may occur: with any ending, or as what the documents call it."""
    stem = _STEM.sub("", word)
    forms = [stem, _ALSO[stem]] if stem in _ALSO else [stem]
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, forms))})", re.I)


def topics() -> dict[str, HelpTopic]:
    """The documents by name, those of one folder after the other, the maintainers' last. Of
    documents with the same name each is called `folder/name`.
    """
    root = shipped("docs")
    paths = [path.relative_to(root) for path in sorted(root.rglob("*.md"))]
    files = [path for path in paths if not {*path.parts[:-1], path.stem}.intersection(_LEFT_OUT)]
    names = [path.stem for path in files]
    folders = {path: _folder(root, path) for path in files}
    keys = {
        path: path.stem
        if names.count(path.stem) == 1 or not folders[path]
        else f"{folders[path]}/{path.stem}"
        for path in files
    }
    return {
        keys[path]: HelpTopic(keys[path], folders[path], root / path)
        for path in sorted(
            files, key=lambda path: (folders[path] == _MAINTAINERS, folders[path], path)
        )
    }


def _folder(root: Path, path: Path) -> str:
    if (root / path).read_text("utf-8").startswith(_NOT_SEARCHED):
        return _MAINTAINERS
    return path.parent.as_posix() if path.parent.parts else ""


def _offered(incomplete: str) -> list[str]:
    """Completions of a topic or command."""
    from forwarder.cli.app import COMMANDS

    return [name for name in dict.fromkeys([*topics(), *COMMANDS]) if name.startswith(incomplete)]


def help(  # noqa: A001 - the command's name
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="A topic, a command with its subcommands, or words to search for.",
            autocompletion=_offered,
        ),
    ] = None,
) -> None:
    """Show a document in the terminal, or the help of a command; without a topic, list the topics.

    Other words are searched for in all documents.

    Example: forwarder help disk full
    """
    asked = " ".join(words or ())
    if not asked:
        _show(_list, paged=False)
        return
    known = topics()
    if asked in known:
        _show(lambda screen: _document(screen, known[asked]), paged=True)
    elif _is_command(words or ()):
        _command_help(words or ())
    else:
        search = HelpSearch.run(asked, known)
        misspelled = _misspelled(asked, known) if search.unknown or asked.endswith(".md") else []
        if misspelled or not search.sections:
            raise _unknown(asked, misspelled)
        _show(lambda screen: _list_found(screen, search), paged=False)


def _misspelled(asked: str, known: Mapping[str, HelpTopic]) -> list[str]:
    """Topics and commands that may be meant."""
    from forwarder.cli.app import COMMANDS

    names = {name.rpartition("/")[2]: name for name in (*COMMANDS, *known)}
    close = dict.fromkeys(
        names[form]
        for form in get_close_matches(asked.lower().removesuffix(".md"), names, n=3, cutoff=0.55)
    )
    close |= dict.fromkeys(name for name in known if asked.lower() in name)
    return list(close)[:3]


def _unknown(asked: str, close: Sequence[str]) -> ConfigurationError:
    from forwarder.cli.output import visible

    meant = " or ".join(f"`forwarder help {name}`" for name in close)
    hint = f"Did you mean {meant}?" if meant else "`forwarder help` lists the topics."
    return ConfigurationError(
        f"no topic, command or document has {visible(asked)!r}",
        hint=hint,
    )


def _is_command(words: Sequence[str]) -> bool:
    """Whether these words name a command or a group of them."""
    from forwarder.cli.app import COMMANDS, load

    if words[0] not in COMMANDS:
        return False
    command = load(words[0])
    for word in words[1:]:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            return False
    return True


def _command_help(words: Sequence[str]) -> None:
    from typer.main import get_command

    from forwarder.cli.app import app

    get_command(app).main(args=[*words, "--help"], prog_name="forwarder")


def _show(write: Callable[[Console], None], *, paged: bool) -> None:
    """Write to the terminal, through its pager if asked to; plain text elsewhere."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    width = min(WIDTH, Console().width) if terminal else WIDTH
    screen = Console(width=width, highlight=False)
    if not (paged and terminal):
        write(screen)
        return
    os.environ.setdefault("LESS", "-FRX")  # colours; no pager for what fits on the screen
    with screen.pager(styles="less" in os.environ.get("PAGER", "less")):
        write(screen)


def _document(screen: Console, topic: HelpTopic) -> None:
    from rich.markdown import Markdown

    from forwarder.cli.app import COMMANDS

    screen.print(Markdown(topic.text(), hyperlinks=False))
    if topic.name in COMMANDS:
        screen.print(f"\nOptions of the command: forwarder {topic.name} --help", markup=False)


def _list(screen: Console) -> None:
    for line in _listed(topics(), screen.width):
        screen.print(line, markup=False, no_wrap=True, overflow="ellipsis")


def _list_found(screen: Console, search: HelpSearch) -> None:
    """Each section with a line that has the words."""
    for section in search.sections:
        screen.print(f"{section.topic}: {section.heading}", markup=False)
        screen.print(
            f"    {section.quote(search.words)}", markup=False, no_wrap=True, overflow="ellipsis"
        )
    screen.print(
        f"\n`forwarder help {search.sections[0].topic}` shows the first document.", markup=False
    )


def _listed(known: Mapping[str, HelpTopic], width: int) -> Iterator[str]:
    """The topics by folder, each with what it is about."""
    longest = max(map(len, known), default=0)
    folder = None
    for topic in known.values():
        if topic.folder != folder:
            folder = topic.folder
            yield f"\n{(folder or 'topics').replace('/', ': ').replace('-', ' ').capitalize()}:"
        line = f"  {topic.name:<{longest}}  {topic.summary()}"
        yield line if len(line) <= width else line[: width - 1].rstrip() + "…"
    yield "\n`forwarder help TOPIC` shows one of them, or the options of a command."
    yield "`forwarder help WORDS` searches them."
