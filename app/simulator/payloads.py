"""The schema of message/send by message type, and what a user sees of each.

Pure: a request in, errcode or bubble out. Sources: document 90236; error codes 90313.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.simulator.errcodes import errmsg_of
from app.simulator.media import Media, MediaError

TEXT_LIMIT_BYTES = 2048
MAX_ARTICLES = 8
CARD_TYPES = frozenset(
    {
        *("text_notice", "news_notice"),
        *("button_interaction", "vote_interaction", "multiple_interaction"),
    }
)
INTERACTIVE_CARDS = frozenset({"button_interaction", "vote_interaction", "multiple_interaction"})
_MEDIA_TITLES = {"image": "图片", "voice": "语音", "video": "视频", "file": "文件"}

GetMedia = Callable[[str, str], Media]


@dataclass(frozen=True)
class Refusal:
    """The errcode a request earns and the service's words for it."""

    errcode: int
    errmsg: str


@dataclass(frozen=True)
class Bubble:
    """What a user sees. ``card`` is the template card's JSON, "" for other kinds."""

    kind: str
    text: str
    cut_bytes: int = 0
    media_id: str = ""
    card: str = ""


def refuse(errcode: int) -> Refusal:
    """A refusal in the service's own words."""
    return Refusal(errcode, errmsg_of(errcode))


def visible_text(content: str) -> tuple[str, int]:
    """What a user sees of ``content`` and how many bytes were cut off.

    The cut falls on a byte, not on a character: a broken last character shows as U+FFFD.
    """
    encoded = content.encode("utf-8", "surrogatepass")
    if len(encoded) <= TEXT_LIMIT_BYTES:
        return content, 0
    kept = encoded[:TEXT_LIMIT_BYTES].decode("utf-8", "replace")
    return kept, len(encoded) - TEXT_LIMIT_BYTES


def bubble_of(request: Mapping[str, Any], get_media: GetMedia) -> Bubble | Refusal:
    """Check the part of ``request`` that its msgtype names and draw it."""
    kind = request.get("msgtype")
    if not isinstance(kind, str):
        return refuse(40008)
    part = request.get(kind)
    fields = part if isinstance(part, dict) else {}
    if kind in ("text", "markdown"):
        return _text(kind, fields)
    if kind in _MEDIA_TITLES:
        return _media(kind, fields, get_media)
    if kind == "textcard":
        return _textcard(fields)
    if kind in ("news", "mpnews"):
        return _news(kind, fields)
    if kind == "template_card":
        return card_of(fields)
    return refuse(40008)


def card_of(card: Mapping[str, Any]) -> Bubble | Refusal:
    """A template card; also for update_template_card."""
    card_type = card.get("card_type")
    title = card.get("main_title")
    if card_type not in CARD_TYPES or not isinstance(title, dict):
        return refuse(40058)
    if card_type in ("text_notice", "news_notice") and not isinstance(
        card.get("card_action"), dict
    ):
        return refuse(42045)
    if card_type in INTERACTIVE_CARDS and not isinstance(card.get("task_id"), str):
        return refuse(40058)
    lines = [str(title.get(name) or "") for name in ("title", "desc")]
    lines.append(str(card.get("sub_title_text") or ""))
    text = "\n".join(line for line in lines if line)
    return Bubble("template_card", text, card=json.dumps(card, ensure_ascii=False))


def _text(kind: str, fields: Mapping[str, Any]) -> Bubble | Refusal:
    content = fields.get("content")
    if not isinstance(content, str) or not content:
        return refuse(44004)
    text, cut_bytes = visible_text(content)
    return Bubble(kind, text, cut_bytes)


def _media(kind: str, fields: Mapping[str, Any], get_media: GetMedia) -> Bubble | Refusal:
    try:
        media = get_media(str(fields.get("media_id") or ""), kind)
    except MediaError as error:
        return Refusal(error.errcode, error.errmsg)
    return Bubble(kind, f"[{_MEDIA_TITLES[kind]}] {media.filename}", media_id=media.media_id)


def _textcard(fields: Mapping[str, Any]) -> Bubble | Refusal:
    names = ("title", "description", "url")
    if not all(isinstance(fields.get(name), str) and fields[name] for name in names):
        return refuse(40058)
    return Bubble("textcard", "\n".join(str(fields[name]) for name in names))


def _news(kind: str, fields: Mapping[str, Any]) -> Bubble | Refusal:
    articles = fields.get("articles")
    if not isinstance(articles, list) or not 1 <= len(articles) <= MAX_ARTICLES:
        return refuse(40058)
    titles = [str(a.get("title") or "") for a in articles if isinstance(a, dict)]
    if len(titles) != len(articles) or not all(titles):
        return refuse(40058)
    return Bubble(kind, "\n".join(titles))
