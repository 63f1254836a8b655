"""A seccomp filter as classic BPF, built from the allow-list and loaded by ``prctl``.

Everything not on the list answers EPERM, so that an unexpected call of a library is an error of
the code and not a killed run; a call from another architecture's table kills. No libseccomp.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from tools.sandbox.syscalls import CLONE3, Architecture

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LD, _JEQ, _JSET, _JGE, _RET = 0x20, 0x15, 0x45, 0x35, 0x06
ALLOW, KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NR, _ARCH, _ARGS = 0, 4, 16
_X32_BIT = 0x40000000
# O_WRONLY O_RDWR O_CREAT O_TRUNC O_APPEND __O_TMPFILE O_PATH: the same bits on both machines.
WRITE_FLAGS = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o20000000 | 0o10000000
# F_DUPFD F_GETFD F_SETFD F_GETFL F_DUPFD_CLOEXEC; F_SETOWN would send signals to others.
_FCNTL_COMMANDS = (0, 1, 2, 3, 1030)

Instruction = tuple[int, int, int, int]


def program(architecture: Architecture) -> list[Instruction]:
    """The filter as (code, jt, jf, k) instructions."""
    deny = _ERRNO | errno.EPERM
    out: list[Instruction] = [
        (_LD, 0, 0, _ARCH),
        (_JEQ, 1, 0, architecture.audit),
        (_RET, 0, 0, KILL),
        (_LD, 0, 0, _NR),
    ]
    if architecture.machine == "x86_64":
        out += [(_JGE, 0, 1, _X32_BIT), (_RET, 0, 0, KILL)]
    for number in architecture.allowed:
        out += [(_JEQ, 0, 1, number), (_RET, 0, 0, ALLOW)]
    for number, flags in architecture.open_calls:
        out += _when(
            number,
            [
                (_LD, 0, 0, _low(flags)),
                (_JSET, 0, 1, WRITE_FLAGS),
                (_RET, 0, 0, deny),
                (_RET, 0, 0, ALLOW),
            ],
        )
    commands: list[Instruction] = [(_LD, 0, 0, _low(1))]
    for command in _FCNTL_COMMANDS:
        commands += [(_JEQ, 0, 1, command), (_RET, 0, 0, ALLOW)]
    out += _when(architecture.fcntl, [*commands, (_RET, 0, 0, deny)])
    # Reading one's own limits only: pid 0 and no new limit.
    reading: list[Instruction] = []
    for offset in (_low(0), _low(2), _low(2) + 4):
        reading += [(_LD, 0, 0, offset), (_JEQ, 1, 0, 0), (_RET, 0, 0, deny)]
    out += _when(architecture.prlimit64, [*reading, (_RET, 0, 0, ALLOW)])
    # open() asks whether it got a terminal; glibc tries clone3 before clone.
    out += _when(architecture.ioctl, [(_RET, 0, 0, _ERRNO | errno.ENOTTY)])
    out += _when(CLONE3, [(_RET, 0, 0, _ERRNO | errno.ENOSYS)])
    return [*out, (_RET, 0, 0, deny)]


def _low(argument: int) -> int:
    return _ARGS + 8 * argument


def _when(number: int, body: list[Instruction]) -> list[Instruction]:
    return [(_JEQ, 0, len(body), number), *body]


def available() -> bool:
    """Whether this kernel takes filters: a null program must be EFAULT, not EINVAL."""
    libc = ctypes.CDLL(None, use_errno=True)
    null = ctypes.c_void_p(None)
    return libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, null) == -1 and (
        ctypes.get_errno() in (errno.EFAULT, errno.EACCES)
    )


def no_new_privs() -> None:
    """Raises ``OSError``. Needed before Landlock and seccomp without privilege."""
    _check(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def load(architecture: Architecture) -> None:
    """Bind this thread and its children for good. Raises ``OSError``."""
    instructions = program(architecture)
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    header = struct.pack("@HP", len(instructions), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(header), 0, 0))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
