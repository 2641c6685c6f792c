"""Files of object stores: S3 and what speaks its protocol, Google Cloud Storage, Azure.

Objects are read in ranges rather than as one long answer: to read a file may take hours, and no store holds a connection that long.
Each range asks for the same ETag, so that an object that is replaced meanwhile fails instead of giving two halves.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from forwarder.core.errors import ConfigurationError, install_extra
from forwarder.core.secrets import mask_secrets
from forwarder.sources.files.origins import Fingerprint, is_wanted, natural
from forwarder.sources.files.records import DamagedContent, ReadOptions
from forwarder.sources.files.streams import reason

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

_RANGE: Final = 4 << 20
_CLIENT: Final = re.compile(
    "(?:aws_|google_|azure_)?(allow_http|allow_invalid_certificates|connect_timeout|default_content_type|http1_only|http2_only|"
    "pool_idle_timeout|pool_max_idle_per_host|proxy_ca_certificate|proxy_excludes|proxy_url|randomize_addresses|read_timeout|"
    "root_certificate|timeout|user_agent)",
    re.IGNORECASE,
).fullmatch
"""Options of the way to a store. obstore takes them apart from those of the store, and panics where they stand among these."""
_PATTERN: Final = frozenset("*?[")


def connect(bucket: str, options: ReadOptions) -> ObjectStore:
    """The store of a URL's bucket. Credentials come from where the store's own tools have them: environment, instance, web identity."""
    try:
        from obstore.exceptions import BaseError  # noqa: PLC0415 -- an optional dependency
        from obstore.store import from_url  # noqa: PLC0415
    except ImportError:
        raise missing_extra("Object stores", "obstore") from None
    try:
        made: ObjectStore = from_url(bucket, **_arguments(options.store))
    except (BaseError, ValueError, TypeError) as error:
        why = mask_secrets(reason(error))
        raise ConfigurationError(f"{bucket}: {why}", hint="Check the URL and the options of the object store.") from None
    return made


def _arguments(said: Mapping[str, str]) -> dict[str, Any]:
    """A store's options as obstore wants them. Those of the way to it may have the store's name before them, as in the environment."""
    store = {name: value for name, value in said.items() if not _CLIENT(name)}
    client = {found[1].lower(): value for name, value in said.items() if (found := _CLIENT(name))}
    return {**store, "client_options": client} if client else store


def missing_extra(what: str, package: str) -> ConfigurationError:
    """The error for an optional dependency that isn't there."""
    return ConfigurationError(f"{what} can't be read without {package}", hint=install_extra("import"))


def stored_objects(url: str, options: ReadOptions) -> Iterator[StoredObject]:
    """The objects that a URL stands for: one object, all under a prefix, or those that match a pattern."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    store = connect(f"{scheme}://{bucket}", options)
    from obstore.exceptions import BaseError  # noqa: PLC0415 -- `connect` has seen that it is there

    try:
        metas = _found(store, key)
    except (BaseError, OSError) as error:
        raise ConfigurationError(f"{url}: {mask_secrets(reason(error))}", hint="Check bucket, credentials and region.") from None
    if not metas:
        raise ConfigurationError(f"{url}: there is no such object, and nothing under this prefix", hint="Prefixes end at a `/`.")
    for meta in sorted(metas, key=lambda each: natural(each["path"])):
        yield StoredObject(f"{scheme}://{bucket}/{meta['path']}", store, meta)


def _found(store: ObjectStore, key: str) -> list[ObjectMeta]:
    import obstore  # noqa: PLC0415 -- as above

    if not _PATTERN.isdisjoint(key):
        parts = key.split("/")
        fixed = next(index for index, part in enumerate(parts) if not _PATTERN.isdisjoint(part))
        prefix = "/".join(parts[:fixed])
        return [meta for metas in obstore.list(store, prefix=prefix or None) for meta in metas if _matches(meta["path"].split("/"), parts)]
    if key and not key.endswith("/"):
        try:
            return [obstore.head(store, key)]
        except FileNotFoundError:
            pass  # it may be a prefix
    found = [meta for metas in obstore.list(store, prefix=key or None) for meta in metas]
    return [meta for meta in found if is_wanted(meta["path"].removeprefix(key)) and not meta["path"].endswith("/")]


def _matches(path: list[str], pattern: list[str]) -> bool:
    """Whether a path fits a pattern as a shell's does: `*` stays in a folder, `**` is any number of them, and hidden parts are named."""
    if not pattern or not path:
        return not pattern and not path
    if pattern[0] == "**":
        return _matches(path, pattern[1:]) or (not path[0].startswith(".") and _matches(path[1:], pattern))
    is_hidden = path[0].startswith(".") and not pattern[0].startswith(".")
    return not is_hidden and fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


class StoredObject:
    """An object of a store, not looked into."""

    def __init__(self, name: str, store: ObjectStore, meta: ObjectMeta) -> None:
        self.name = name
        self._store, self._meta = store, meta

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Of size and ETag; where a store has none, the time of its last change stands for it."""
        size, tag = self._meta["size"], self._meta.get("e_tag") or self._meta["last_modified"].isoformat()
        return Fingerprint(size, blake2b(f"{size} {tag}".encode(), digest_size=20).hexdigest())

    def open(self) -> BinaryIO:
        """The object's bytes, read as they are asked for."""
        return io.BufferedReader(_Ranges(self._store, self._meta), buffer_size=_RANGE)


class _Ranges(io.RawIOBase):
    """The bytes of an object, one request a range."""

    def __init__(self, store: ObjectStore, meta: ObjectMeta) -> None:
        self._store, self._meta, self._position = store, meta, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._meta["size"]}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: object, /) -> int:
        import obstore  # noqa: PLC0415 -- an optional dependency
        from obstore.exceptions import BaseError, PreconditionError  # noqa: PLC0415

        with memoryview(buffer) as view:  # type: ignore[arg-type]
            end = min(self._position + min(len(view), _RANGE), self._meta["size"])
            if end <= self._position:
                return 0
            options: GetOptions = {"range": (self._position, end), "if_match": self._meta.get("e_tag")}
            try:
                data = obstore.get(self._store, self._meta["path"], options=options).bytes()
            except PreconditionError:
                raise DamagedContent("the object was replaced while it was read") from None
            except (BaseError, OSError) as error:
                raise DamagedContent(mask_secrets(reason(error))) from None
            view[: len(data)] = memoryview(data)
        self._position += len(data)
        return len(data)
