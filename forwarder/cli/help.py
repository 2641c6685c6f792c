"""`forwarder help`: the documents, in the terminal; and the help of a command, for those who ask
for it that way.

A topic is a document by its file's name, in whichever folder of `docs/` it is.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
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
_FRONT_MATTER: Final = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_COMMENT: Final = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_IMAGE: Final = re.compile(
    r"^!\[[^\]]*\]\([^)]*\)\n?|<(?:img|picture|source)\b[^>]*>", re.MULTILINE
)
_LINK: Final = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\((?!https?:)[^)\s]*\)")
_NOT_PROSE: Final = ("#", "```", "|", "!", "<", "1.", "- ")
_FILE: Final = re.compile(r"\[([\w-]+)\.md\]\((?!https?:)[^)\s]*\)")
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
        found = _SENTENCE.match(words)
        return found[0] if found else words


def topics() -> dict[str, HelpTopic]:
    """The documents by name, those of one folder after the other. Of documents with the same name
    each is called `folder/name`.
    """
    root = shipped("docs")
    found = [path.relative_to(root) for path in sorted(root.rglob("*.md"))]
    files = [path for path in found if not {*path.parts[:-1], path.stem}.intersection(_LEFT_OUT)]
    names = [path.stem for path in files]
    folders = {path: path.parent.as_posix() if path.parent.parts else "" for path in files}
    keys = {
        path: path.stem
        if names.count(path.stem) == 1 or not folders[path]
        else f"{folders[path]}/{path.stem}"
        for path in files
    }
    return {
        keys[path]: HelpTopic(keys[path], folders[path], root / path)
        for path in sorted(files, key=lambda path: (folders[path], path))
    }


def _offered(incomplete: str) -> list[str]:
    """Completions of a topic or command."""
    from forwarder.cli.app import COMMANDS

    return [name for name in dict.fromkeys([*topics(), *COMMANDS]) if name.startswith(incomplete)]


def help(  # noqa: A001 - the command's name
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="A topic, or a command with its subcommands.",
            autocompletion=_offered,
        ),
    ] = None,
) -> None:
    """Show a document in the terminal, or the help of a command; without a topic, list the topics.

    Example: forwarder help buffer
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
        raise _unknown(asked, known)


def _unknown(asked: str, known: Mapping[str, HelpTopic]) -> ConfigurationError:
    from forwarder.cli.app import COMMANDS
    from forwarder.cli.output import visible

    names = {name.rpartition("/")[2]: name for name in (*COMMANDS, *known)}
    close = dict.fromkeys(
        names[each]
        for each in get_close_matches(asked.lower().removesuffix(".md"), names, n=3, cutoff=0.55)
    )
    close |= dict.fromkeys(name for name in known if asked.lower() in name)
    meant = " or ".join(f"`forwarder help {name}`" for name in list(close)[:3])
    hint = f"Did you mean {meant}?" if meant else "`forwarder help` lists the topics."
    return ConfigurationError(f"there is no topic or command {visible(asked)!r}", hint=hint)


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
