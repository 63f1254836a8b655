"""System calls that code in the native sandbox may make, by number, for x86-64 and aarch64.

Sources: Linux arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
Owns the lists; ``seccomp`` makes a filter of them.
"""

from __future__ import annotations

from dataclasses import dataclass

# Calls that act on the process's own memory, clock, signals' handling and open descriptors, or
# that read through paths Landlock guards. Checked calls (open, fcntl, prlimit) are listed apart.
_X86_64 = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
    "rt_sigreturn": 15, "pread64": 17, "readv": 19, "writev": 20, "access": 21, "select": 23,
    "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "nanosleep": 35, "getpid": 39,
    "exit": 60, "getcwd": 79, "readlink": 89, "gettimeofday": 96, "getrlimit": 97,
    "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107,
    "getegid": 108, "getppid": 110, "sigaltstack": 131, "gettid": 186, "time": 201, "futex": 202,
    "sched_getaffinity": 204, "getdents64": 217, "restart_syscall": 219, "clock_gettime": 228,
    "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262,
    "readlinkat": 267, "faccessat": 269, "pselect6": 270, "ppoll": 271, "getrandom": 318,
    "statx": 332, "rseq": 334, "faccessat2": 439,
}  # fmt: skip
_AARCH64 = {
    "getcwd": 17, "dup": 23, "faccessat": 48, "close": 57, "getdents64": 61, "lseek": 62,
    "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pselect6": 72,
    "ppoll": 73, "readlinkat": 78, "newfstatat": 79, "fstat": 80, "exit": 93, "exit_group": 94,
    "futex": 98, "nanosleep": 101, "clock_gettime": 113, "clock_getres": 114,
    "clock_nanosleep": 115, "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128,
    "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139,
    "times": 153, "getrlimit": 163, "getrusage": 165, "gettimeofday": 169, "getpid": 172,
    "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178,
    "sysinfo": 179, "brk": 214, "munmap": 215, "mremap": 216, "mmap": 222, "mprotect": 226,
    "madvise": 233, "getrandom": 278, "statx": 291, "rseq": 293, "faccessat2": 439,
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """One machine's numbers. ``audit``: AUDIT_ARCH_*; ``open_calls``: (number, flags' argument)."""

    machine: str
    audit: int
    allowed: tuple[int, ...]
    open_calls: tuple[tuple[int, int], ...]
    fcntl: int
    ioctl: int
    prlimit64: int
    capset: int


ARCHITECTURES = {
    "x86_64": Architecture(
        "x86_64", 0xC000003E, tuple(sorted(_X86_64.values())), ((2, 1), (257, 2)), 72, 16, 302, 126
    ),
    "aarch64": Architecture(
        "aarch64", 0xC00000B7, tuple(sorted(_AARCH64.values())), ((56, 2),), 25, 29, 261, 91
    ),
}
CLONE3 = 435
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
"""The same numbers on every architecture."""
