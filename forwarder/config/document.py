"""The layer of the file: YAML, with the line of every value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath

import yaml

from forwarder.config.keys import Path
from forwarder.config.origins import Layer, Origin, Place
from forwarder.config.problems import InvalidConfiguration, Problem
from forwarder.config.reader import Reader


def read_document(file: FilePath, environ: Mapping[str, str], path: Path = ()) -> Layer:
    """What the file says, with `${VAR}` replaced from `environ`; `path`: the section that it holds, without which it holds all of them.

    Raises `InvalidConfiguration` if it can't be read or isn't YAML; all else that is wrong is among the layer's problems.
    """
    text = _read(file)
    try:
        return _parse(text, str(file), environ, path)
    except yaml.MarkedYAMLError as error:
        raise InvalidConfiguration([_syntax_problem(file, error)]) from error
    except RecursionError as error:
        raise InvalidConfiguration([Problem(str(file), "", "is nested too deeply", "settings need six levels at most")]) from error
    except yaml.YAMLError as error:
        raise InvalidConfiguration([Problem(str(file), "", "holds control characters", "save it as plain text")]) from error


def _parse(text: str, file: str, environ: Mapping[str, str], path: Path) -> Layer:
    layer, loader = Layer(), yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is not None:
            Reader(layer, loader, environ, Origin(Place.FILE, file)).section(root, path)
    finally:
        loader.dispose()
    return layer


def _read(file: FilePath) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or "can't be read"
        raise InvalidConfiguration([Problem(str(file), "", f"can't be read: {reason}", "name a readable file: --config FILE")]) from error
    except UnicodeDecodeError as error:
        raise InvalidConfiguration([Problem(str(file), "", "isn't UTF-8 text", "save it as UTF-8")]) from error


def _syntax_problem(file: FilePath, error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    where = f"{file}:{mark.line + 1}" if mark else str(file)
    return Problem(where, "", f"isn't YAML: {error.problem or error.context}", "quote values that hold any of [ ] { } : # *")
