"""The filter of both architectures, interpreted call by call, and the rules Landlock gets."""

from __future__ import annotations

import errno
import os

import pytest

from tools.sandbox import landlock, seccomp
from tools.sandbox.syscalls import ARCHITECTURES, CLONE3, Architecture

ERRNO = 0x00050000
DENIED = ERRNO | errno.EPERM
# Of the same two tables: what must never be allowed.
FORBIDDEN = {
    "x86_64": {
        "socket": 41, "connect": 42, "sendto": 44, "sendmsg": 46, "recvmsg": 47, "socketpair": 53,
        "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "kill": 62, "shmget": 29, "chdir": 80,
        "rename": 82, "mkdir": 83, "creat": 85, "link": 86, "unlink": 87, "symlink": 88,
        "chmod": 90, "truncate": 76, "ptrace": 101, "setuid": 105, "chroot": 161, "mount": 165,
        "tkill": 200, "tgkill": 234, "prctl": 157, "unshare": 272, "prlimit": 160, "seccomp": 317,
        "memfd_create": 319, "bpf": 321, "execveat": 322, "process_vm_readv": 310,
        "io_uring_setup": 425, "io_uring_enter": 426, "pidfd_open": 434, "openat2": 437,
        "pidfd_send_signal": 424, "pidfd_getfd": 438, "open_by_handle_at": 304, "keyctl": 250,
    },
    "aarch64": {
        "socket": 198, "connect": 203, "sendto": 206, "sendmsg": 211, "recvmsg": 212, "bind": 200,
        "socketpair": 199, "clone": 220, "execve": 221, "kill": 129, "tkill": 130, "tgkill": 131,
        "ptrace": 117, "mount": 40, "chroot": 51, "unlinkat": 35, "mkdirat": 34, "symlinkat": 36,
        "renameat": 38, "truncate": 45, "fchmodat": 53, "prctl": 167, "unshare": 97, "seccomp": 277,
        "memfd_create": 279, "bpf": 280, "execveat": 281, "process_vm_readv": 270, "setuid": 146,
        "io_uring_setup": 425, "openat2": 437, "pidfd_send_signal": 424, "setrlimit": 164,
        "open_by_handle_at": 265, "keyctl": 219, "shmget": 194, "pidfd_open": 434,
    },
}  # fmt: skip

both = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


def verdict(architecture: Architecture, number: int, *arguments: int, audit: int = 0) -> int:
    """What the kernel would do: classic BPF over ``struct seccomp_data``."""
    words = {0: number & 0xFFFFFFFF, 4: audit or architecture.audit}
    for index, value in enumerate((*arguments, *[0] * (6 - len(arguments)))):
        words[16 + 8 * index] = value & 0xFFFFFFFF
        words[20 + 8 * index] = (value >> 32) & 0xFFFFFFFF
    instructions = seccomp.program(architecture)
    at = accumulator = 0
    while True:
        code, if_true, if_false, k = instructions[at]
        at += 1
        if code == 0x20:
            accumulator = words[k]
        elif code == 0x06:
            return k
        else:
            true = {
                0x15: accumulator == k,
                0x45: bool(accumulator & k),
                0x35: accumulator >= k,
            }[code]
            at += if_true if true else if_false


@both
def test_listed_calls_pass_and_all_others_fail(machine: str) -> None:
    architecture = ARCHITECTURES[machine]
    checked = {number for number, _ in architecture.open_calls}
    checked |= {architecture.fcntl, architecture.ioctl, architecture.prlimit64, CLONE3}
    for number in set(range(600)) - checked:
        expected = seccomp.ALLOW if number in architecture.allowed else DENIED
        assert verdict(architecture, number) == expected, number


@both
def test_dangerous_calls_are_not_listed(machine: str) -> None:
    architecture = ARCHITECTURES[machine]
    for name, number in FORBIDDEN[machine].items():
        assert verdict(architecture, number) == DENIED, name


@both
def test_files_open_for_reading_only(machine: str) -> None:
    architecture = ARCHITECTURES[machine]
    for number, argument in architecture.open_calls:
        for flags, allowed in (
            (os.O_RDONLY | os.O_CLOEXEC, True),
            (os.O_RDONLY | 0o40000 | 0o200000 | 0o2000000, True),
            (os.O_WRONLY, False),
            (os.O_RDWR, False),
            (os.O_RDONLY | os.O_CREAT, False),
            (os.O_RDONLY | os.O_TRUNC, False),
            (0o20200000, False),
            (0o10000000, False),
            (1 << 32 | os.O_WRONLY, False),
        ):
            arguments = [0] * argument + [flags]
            expected = seccomp.ALLOW if allowed else DENIED
            assert verdict(architecture, number, *arguments) == expected, oct(flags)


@both
def test_checked_calls(machine: str) -> None:
    architecture = ARCHITECTURES[machine]
    for command, allowed in ((1, True), (3, True), (1030, True), (4, False), (8, False)):
        expected = seccomp.ALLOW if allowed else DENIED
        assert verdict(architecture, architecture.fcntl, 3, command) == expected
    assert verdict(architecture, architecture.prlimit64, 0, 7, 0, 5) == seccomp.ALLOW
    assert verdict(architecture, architecture.prlimit64, 1, 7, 0, 5) == DENIED
    assert verdict(architecture, architecture.prlimit64, 0, 7, 1 << 40, 5) == DENIED
    assert verdict(architecture, architecture.prlimit64, 0, 7, 4096, 5) == DENIED
    assert verdict(architecture, architecture.ioctl, 1, 0x5401) == ERRNO | errno.ENOTTY
    assert verdict(architecture, CLONE3) == ERRNO | errno.ENOSYS


@both
def test_other_call_tables_kill(machine: str) -> None:
    architecture = ARCHITECTURES[machine]
    for audit in (0x40000003, 0x40000028, 0xC00000F3):
        assert verdict(architecture, 0, audit=audit) == seccomp.KILL
    if machine == "x86_64":
        assert verdict(architecture, 0x40000000) == seccomp.KILL
        assert verdict(architecture, -1) == seccomp.KILL


@both
def test_jumps_stay_within_the_filter(machine: str) -> None:
    instructions = seccomp.program(ARCHITECTURES[machine])
    assert len(instructions) < 4096
    for at, (code, if_true, if_false, _) in enumerate(instructions):
        assert code in (0x06, 0x20) or at + 1 + max(if_true, if_false) < len(instructions)
        assert max(if_true, if_false) < 256


@pytest.mark.parametrize(
    ("abi", "size_bytes", "files"),
    [
        (1, 8, 0x1FFF),
        (2, 8, 0x3FFF),
        (3, 8, 0x7FFF),
        (4, 16, 0x7FFF),
        (5, 16, 0xFFFF),
        (6, 24, 0xFFFF),
        (9, 24, 0xFFFF),
    ],
)
def test_landlock_asks_for_all_its_abi_has(abi: int, size_bytes: int, files: int) -> None:
    attributes = landlock.attributes(abi)
    assert len(attributes) == size_bytes
    assert int.from_bytes(attributes[:8], "little") == files
    if abi >= 4:
        assert int.from_bytes(attributes[8:16], "little") == 3
    if abi >= 6:
        assert int.from_bytes(attributes[16:24], "little") == 3
