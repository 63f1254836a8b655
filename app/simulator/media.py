"""Temporary media: uploaded once, good for three days, readable by every app of the corp.

Owns the size and type rules of document 90253 and the files, in memory. Knows no HTTP.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

LIFETIME_S = 3 * 86_400
MIN_BYTES = 5
MAX_KEPT = 200
_MB = 1024 * 1024
_LIMITS_BYTES = {"image": 10 * _MB, "voice": 2 * _MB, "video": 10 * _MB, "file": 20 * _MB}
_MAGIC = {
    "image": (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"),
    "voice": (b"#!AMR",),
}


class MediaError(Exception):
    """An upload or a read that the service refuses."""

    def __init__(self, errcode: int, errmsg: str) -> None:
        super().__init__(errmsg)
        self.errcode = errcode
        self.errmsg = errmsg


@dataclass(frozen=True)
class Media:
    """One uploaded file. ``created_at_s`` is seconds since the epoch."""

    media_id: str
    kind: str
    filename: str
    content: bytes
    created_at_s: int


class MediaStore:
    """The media of one corp; the oldest go when more than ``MAX_KEPT`` are kept."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Media] = OrderedDict()

    def upload(self, kind: str, filename: str, content: bytes) -> Media:
        """Keep a file. Raises ``MediaError``: 40004 type, 40006/45001 size, 40009 bad image."""
        limit_bytes = _LIMITS_BYTES.get(kind)
        if limit_bytes is None:
            raise MediaError(40004, "invalid media type")
        if len(content) <= MIN_BYTES:
            raise MediaError(40006, "invalid media size")
        if len(content) > limit_bytes:
            raise MediaError(45001, "media data too large")
        magic = _MAGIC.get(kind)
        if magic is not None and not content.startswith(magic):
            code, name = (40009, "image") if kind == "image" else (40010, "voice")
            raise MediaError(code, f"invalid {name} data")
        media = Media(secrets.token_urlsafe(43), kind, filename, content, int(self._clock()))
        with self._lock:
            self._kept[media.media_id] = media
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return media

    def get(self, media_id: str, kind: str = "") -> Media:
        """A live file, of ``kind`` where one is given. Raises ``MediaError`` (40007)."""
        with self._lock:
            media = self._kept.get(media_id)
        if media is None or self._clock() - media.created_at_s >= LIFETIME_S:
            raise MediaError(40007, "invalid media_id")
        if kind and media.kind != kind:
            raise MediaError(40007, "invalid media_id")
        return media
