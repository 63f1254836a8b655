"""Disk, memory and versions of this machine, and a font for table images.

Owns the reading of the operating system and of ``python -m tools.table_image``, which runs in a
process of its own: the gateway does not import it. Knows nothing of Redis, WeCom or the engine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
from pathlib import Path

from app.doctor.findings import Finding, fail, ok, skip, warn
from app.doctor.programs import NoAnswerError, last_json
from app.settings import Settings

LEAST_FREE_BYTES = 2 * 10**9
FONT_TIMEOUT_S = 30.0
_PACKAGES = ("flask", "celery", "redis", "wechatpy", "cryptography", "gunicorn")


def check(settings: Settings) -> list[Finding]:
    """Versions, disk, memory, table images."""
    return [
        _versions(),
        _disk(settings.data_dir),
        *_memory(),
        *_table_images(settings),
    ]


def _versions() -> Finding:
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            remedy = "在项目目录运行 make setup（容器：重新构建镜像）"
            return fail("versions", f"没有安装 {package}", remedy)
    return ok("versions", f"Python {platform.python_version()}，{'，'.join(versions)}")


def _disk(folder: Path) -> Finding:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    fact = f"{folder} 所在的盘还剩 {free / 1e9:.1f} GB"
    if free < LEAST_FREE_BYTES:
        return fail("disk", fact, "清理或换盘：AOF 写不下时 Redis 会拒绝新消息")
    return ok("disk", fact)


def _memory() -> list[Finding]:
    available = available_bytes()
    if available is None:
        return []
    return [ok("host_memory", f"可用内存 {available / 1e9:.1f} GB")]


def available_bytes() -> int | None:
    """Memory that this machine can still give, page cache included; ``None`` where unknown."""
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _table_images(settings: Settings) -> list[Finding]:
    """Nothing where they are off; else whether there is a font to draw them in."""
    chosen = settings.table_images
    if chosen is False:
        return []
    if importlib.util.find_spec("PIL") is None:
        return [skip("table_images", "表格图片由模型进程画：在它的容器里运行同样的命令看字体")]
    font = (str(chosen),) if isinstance(chosen, Path) else ()
    try:
        record = last_json("tools.table_image", *font, timeout_s=FONT_TIMEOUT_S)
    except (TimeoutError, NoAnswerError):
        remedy = "运行 python -m tools.table_image 看它的报错；多半是依赖没装好，make setup 重装"
        return [warn("table_images", "画表格图片的部分没有回答；宽表格只发文字", remedy)]
    if record["problem"]:
        fact, _, remedy = record["problem"].partition("；")
        return [warn("table_images", f"{fact}；宽表格只发文字", remedy)]
    return [ok("table_images", f"宽表格会另发图片，字体 {record['font']}")]
