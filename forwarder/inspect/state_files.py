"""Resolves the directories that a command works on: those of a PATH, or those of the configuration.

A PATH is a state directory (`buffer.path`), which stands for all workers' directories in it, or a
single worker's directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forwarder.config.load import load_settings
from forwarder.config.settings import Settings
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.storage.directory import (
    DEAD_LETTERS,
    LOCK,
    LOG,
    state_directories,
    worker_directories,
)


class NotABuffer(ConfigurationError):
    """There is no disk buffer at this path."""

    code = "not_a_buffer"


def buffers_at(path: Path) -> list[Path]:
    """The workers' directories with a log that `path` names. Raises `NotABuffer`."""
    buffers = [directory for directory in _directories(path) if _has_log(directory)]
    if not buffers:
        raise NotABuffer(
            f"{path} isn't a disk buffer: {_what_is_wrong(path)}",
            hint=(
                "Name the directory of `buffer.path`, one of the `worker-<n>` directories in "
                "it, or a configuration with `--config FILE`."
            ),
        )
    return buffers


def buffers_of(settings: Settings) -> list[Path]:
    """The workers' directories of the configured buffer. Raises `NotABuffer`."""
    if settings.buffer.kind != "disk":
        raise NotABuffer(
            "the configured buffer is in memory (buffer.kind: memory) and has no files",
            hint=(
                "Name the directory of a disk buffer, or a configuration that has one with "
                "`--config FILE`."
            ),
        )
    return buffers_at(settings.buffer.path)


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """One worker's files: its directory if there is a log in it, and its dead letters' file if
    there is one.
    """

    log: Path | None
    dead_letters: Path | None


def files_at(path: Path) -> list[WorkerFiles]:
    """The files of the workers that `path` names; none if there are none. Raises `NotABuffer` if
    it can't be read.
    """
    workers = [_files(directory, directory) for directory in _directories(path)]
    return [files for files in workers if files != WorkerFiles(None, None)]


def files_of(settings: Settings, environment: Mapping[str, str]) -> list[WorkerFiles]:
    """The files of the configuration's workers; none if there are none. Raises `NotABuffer` if
    they can't be read.
    """
    roots = dead_letter_roots(settings, environment)
    if settings.buffer.kind != "disk":
        return [files for root in roots for files in files_at(root)]
    (dead_letters,) = roots
    if dead_letters == settings.buffer.path:
        return files_at(dead_letters)
    directories = {
        directory.name: directory
        for directory in (*_directories(dead_letters), *_directories(settings.buffer.path))
    }
    workers = [
        _files(settings.buffer.path / name, dead_letters / name) for name in sorted(directories)
    ]
    return [files for files in workers if files != WorkerFiles(None, None)]


def configured_files(config: Path | None) -> list[WorkerFiles]:
    """The files of the configured buffer and dead letters, as far as they exist. Raises
    `NotABuffer` if they can't be read.
    """
    return files_of(load_settings(config, os.environ, require_upstream=False).settings, os.environ)


def configured_roots(config: Path | None) -> list[Path]:
    """Where the dead letters of a configuration may be."""
    settings = load_settings(config, os.environ, require_upstream=False).settings
    return dead_letter_roots(settings, os.environ)


def _files(log: Path, dead_letters: Path) -> WorkerFiles:
    file = dead_letters / DEAD_LETTERS
    return WorkerFiles(log if _has_log(log) else None, file if file.is_file() else None)


def dead_letter_roots(settings: Settings, environment: Mapping[str, str]) -> list[Path]:
    """Where the configuration's dead letters may be: without `dead_letters.path`, every directory
    that a daemon would have tried.
    """
    if settings.dead_letters.path is not None:
        return [settings.dead_letters.path]
    return (
        [settings.buffer.path]
        if settings.buffer.kind == "disk"
        else list(state_directories(environment, is_root=os.geteuid() == 0))
    )


def holder(directory: Path) -> int | None:
    """The process that the directory's lock file names; None if it names none."""
    try:
        return int((directory / LOCK).read_text("ascii", "replace"))
    except (OSError, ValueError):
        return None


def _directories(path: Path) -> list[Path]:
    """A worker's directory, or those of all workers."""
    try:
        if (path / LOG).is_dir() or (path / DEAD_LETTERS).is_file():
            return [path]
        return list(worker_directories(path).values())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(path, error) from error


def _has_log(directory: Path) -> bool:
    try:
        return (directory / LOG).is_dir()
    except OSError as error:
        raise _unreadable(directory, error) from error


def _unreadable(path: Path, error: OSError) -> NotABuffer:
    return NotABuffer(
        f"{path} can't be read: {error_text(error)}",
        hint="Run this as the user that forwarder runs as.",
    )


def _what_is_wrong(path: Path) -> str:
    if not path.exists():
        return "it doesn't exist"
    return "it holds no worker-<n> directory with a log" if path.is_dir() else "it is a file"
