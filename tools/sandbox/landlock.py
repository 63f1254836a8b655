"""Landlock by raw system calls: only the given paths can be read, nothing written.

ABI 1 guards files, 2 and 3 moving and truncating, 4 TCP, 5 device ioctls, 6 signals and abstract
sockets (Documentation/userspace-api/landlock.rst). NOT covered: ``stat`` and ``readlink``; that
a file exists and how large it is can be seen.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from tools.sandbox.syscalls import (
    LANDLOCK_ADD_RULE,
    LANDLOCK_CREATE_RULESET,
    LANDLOCK_RESTRICT_SELF,
)

_VERSION_FLAG, _RULE_PATH_BENEATH = 1, 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FS_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""ABI -> how many file rights it knows; all are handled, so all are denied but the rules'."""
_NET_TCP = 0b11
_SCOPE_ABSTRACT_AND_SIGNAL = 0b11


def _syscall(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def abi() -> int:
    """The kernel's Landlock ABI, 0 when there is none or it is switched off."""
    try:
        return _syscall(
            LANDLOCK_CREATE_RULESET,
            ctypes.c_void_p(None),
            ctypes.c_size_t(0),
            ctypes.c_uint32(_VERSION_FLAG),
        )
    except OSError:
        return 0


def attributes(version: int) -> bytes:
    """``struct landlock_ruleset_attr`` with everything that ABI ``version`` can deny."""
    files = (1 << _FS_RIGHTS[min(version, max(_FS_RIGHTS))]) - 1
    if version < 4:
        return struct.pack("=Q", files)
    if version < 6:
        return struct.pack("=QQ", files, _NET_TCP)
    return struct.pack("=QQQ", files, _NET_TCP, _SCOPE_ABSTRACT_AND_SIGNAL)


def restrict(readable: Iterable[str]) -> None:
    """Bind this thread and its children for good. Raises ``OSError``; paths not there are passed.

    ``no_new_privs`` must be set.
    """
    version = abi()
    if version < 1:
        raise OSError("no Landlock")
    attr = attributes(version)
    ruleset = _syscall(
        LANDLOCK_CREATE_RULESET,
        ctypes.c_char_p(attr),
        ctypes.c_size_t(len(attr)),
        ctypes.c_uint32(0),
    )
    try:
        for path in readable:
            _allow_reading(ruleset, path)
        _syscall(LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow_reading(ruleset: int, path: str) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
        rule = struct.pack("=Qi", rights, descriptor)
        _syscall(
            LANDLOCK_ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.c_char_p(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(descriptor)
