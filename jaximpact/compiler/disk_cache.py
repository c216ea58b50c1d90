"""Cache of compiled programs on disk, shared by processes.

The files are machine code: a folder or file is used only if it belongs to this user and nobody else may write to it. A
file begins with a checksum, and damaged files are ignored. Files are written atomically,
since several processes may use the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from ..jaxtools.operating_system import is_own, user_cache_folder
from .limits import MAX_CACHE_BYTES

CACHE_VARIABLE = "JAXIMPACT_CACHE"  # a folder, "on" or "off"
MARK = b"jaximpact\n"  # first bytes of a file
log = logging.getLogger(__name__)


def folder() -> Path | None:
    """Returns the folder of the cache, which the environment variable `CACHE_VARIABLE` names,
    by default one in the user's cache folder.

    Returns None if the variable is "off", or if the folder cannot be used.
    """
    asked = os.environ.get(CACHE_VARIABLE, "")
    if asked.lower() in ("off", "0", "no", "false"):
        return None
    if asked.lower() in ("on", "1", "yes", "true"):
        asked = ""
    try:
        path = Path(asked).expanduser() if asked else user_cache_folder() / "jaximpact"
    except RuntimeError as error:  # ~name of nobody, or a user without a home
        _say_once(f"{CACHE_VARIABLE}={asked}: {error}")
        return None
    return _trusted_folder(path)


@cache
def _say_once(why: str) -> None:
    log.warning("compiled programs are not kept: %s", why)


@cache
def _trusted_folder(path: Path) -> Path | None:
    """Returns ``path``, where it creates a folder if necessary; None if it cannot create one,
    or if others can write to it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_mine(path.lstat()) and path.is_dir():
            return path
        log.warning("%s is not a folder that only this user can write to: compiled programs are not kept there", path)
    except (OSError, RuntimeError) as error:
        log.warning("compiled programs are not kept: %s", error)
    return None


def _is_mine(found: os.stat_result) -> bool:
    """Whether the file of a stat result belongs to this user and nobody else may write to it;
    False for a symbolic link."""
    return not stat.S_ISLNK(found.st_mode) and is_own(found)


def load(key: str) -> bytes | None:
    """The bytes stored under a key; None if there are none, or they are damaged."""
    place = folder()
    if place is None:
        return None
    path = place / key
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as file:
            known = os.fstat(file.fileno())
            content = file.read() if _is_mine(known) and stat.S_ISREG(known.st_mode) else b""
    except OSError:
        return None
    head = len(MARK) + hashlib.sha256().digest_size
    if content[:head] != MARK + _checksum(key, content[head:]):
        log.info("%s is damaged, or another user's: compiled anew", path)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # when it was used last
    return content[head:]


def store(key: str, code: bytes) -> None:
    """Stores bytes under a key; a failure to write is logged, not raised."""
    place = folder()
    if place is None:
        return
    try:
        handle, name = tempfile.mkstemp(dir=place, prefix=".")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(MARK + _checksum(key, code) + code)
            os.replace(name, place / key)
        except BaseException:
            os.unlink(name)
            raise
        _prune(place)
    except OSError as error:
        log.info("a compiled program is not kept: %s", error)


def remove(key: str) -> None:
    """Removes what is stored under a key, if anything is."""
    if (place := folder()) is not None:
        with contextlib.suppress(OSError):
            os.unlink(place / key)


def _checksum(key: str, code: bytes) -> bytes:
    return hashlib.sha256(key.encode() + code).digest()


def _prune(place: Path) -> None:
    """Removes the least recently used files from the folder ``place`` until at most `MAX_CACHE_BYTES` are left."""
    found = []
    for entry in os.scandir(place):
        with contextlib.suppress(OSError):  # gone meanwhile
            found.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    left = sum(size for _, size, _ in found) - MAX_CACHE_BYTES
    for _, size, path in sorted(found):
        if left <= 0:
            return
        left -= size
        with contextlib.suppress(OSError):
            os.unlink(path)
