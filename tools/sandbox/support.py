"""What this machine can do to keep the native sandbox: asked, not guessed, without side effects."""

from __future__ import annotations

import platform
import sys

from tools.sandbox import landlock, seccomp
from tools.sandbox.syscalls import ARCHITECTURES


def missing() -> str:
    """Why the native back end cannot protect here, "" when nothing is known to be missing.

    The zygote tries the protections themselves before it serves; this only spares the start.
    """
    if sys.platform != "linux":
        return f"{platform.system()}没有Landlock和seccomp，只有Linux有"
    if platform.machine() not in ARCHITECTURES:
        return f"没有{platform.machine()}的系统调用表，只有{'、'.join(ARCHITECTURES)}的"
    if landlock.abi() < 1:
        return "内核没有启用Landlock（需要Linux 5.13以上，且lsm=里有landlock）"
    if not seccomp.available():
        return "内核或容器不让装seccomp过滤器"
    return ""


def strength() -> str:
    """What Landlock covers on this kernel, in words."""
    abi = landlock.abi()
    parts = [f"Landlock ABI {abi}：文件"]
    if abi >= 4:
        parts.append("TCP")
    if abi >= 6:
        parts.append("信号和抽象套接字")
    return "、".join(parts) + "；seccomp白名单"
