"""Features that differ between operating systems, a function each, with a default where a system lacks the feature.

Tested on Linux only. For macOS and Windows the functions follow the systems' documentation;
on Windows there is no native code.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

LOCKED_BYTE = 1 << 30  # Windows forbids reading what is locked: a byte behind all content


def is_windows() -> bool:
    """Whether this is Windows."""
    return sys.platform == "win32"


def core_count() -> int:
    """Number of processor cores available to this process; one if unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return getattr(os, "process_cpu_count", os.cpu_count)() or 1


def free_host_memory() -> float:
    """Bytes of memory that this process can still allocate; the machine's whole memory if only that is known,
    infinity if neither is."""
    free = _available_bytes()
    # a container's limit, of version 2 and 1 of control groups; "max" is no number and is skipped
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            free = min(free, float(Path(limit).read_text()))
    return free


def _available_bytes() -> float:
    if is_windows():
        return _available_on_windows()
    with suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024.0 * sum(int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
    with suppress(AttributeError, OSError, ValueError):  # macOS
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return np.inf


class _MemoryStatus(ctypes.Structure):
    """The structure MEMORYSTATUSEX of Windows, which tells how much memory is free."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "available", "total_page", "available_page")),
        *((name, ctypes.c_uint64) for name in ("total_virtual", "available_virtual", "extended")),
    )


def _available_on_windows() -> float:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    with suppress(AttributeError, OSError):
        if cast(Any, ctypes).windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
            return float(status.available_page)
    return np.inf


def user_cache_folder() -> Path:
    """Returns the user's folder for caches, that is for files that programs can make anew."""
    if sys.platform == "darwin":
        return Path("~/Library/Caches").expanduser()
    if is_windows():
        return Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local").expanduser()
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return given if given.is_absolute() else Path("~/.cache").expanduser()


def math_library() -> ctypes.CDLL:
    """The C library's mathematical functions."""
    return ctypes.CDLL(ctypes.util.find_library("m"))


def open_lock_file(path: Path) -> int:
    """Opens a file that serves as a lock, created if necessary, and returns its descriptor; refuses links and pipes,
    where the system can.

    Raises:
        OSError: the file cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o644)


def lock(file: int) -> None:
    """Locks an open file, given by its descriptor, for this process until the file is closed;
    any end of the process closes it too.

    Raises:
        BlockingIOError: another process has locked it.
    """
    if not is_windows():
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    os.lseek(file, LOCKED_BYTE, os.SEEK_SET)
    try:
        cast(Any, msvcrt).locking(file, cast(Any, msvcrt).LK_NBLCK, 1)
    except OSError as error:
        raise BlockingIOError(*error.args) from error
    finally:
        os.lseek(file, 0, os.SEEK_SET)


def flushes_directories() -> bool:
    """Whether the entries of a directory can be flushed to the disk."""
    return not is_windows()


def is_own(found: os.stat_result) -> bool:
    """Whether the file of a stat result belongs to this user and nobody else may write to it.

    Always true on Windows, where files in the user's own folder inherit its rights.
    """
    return is_windows() or (found.st_uid == os.geteuid() and not found.st_mode & 0o022)
