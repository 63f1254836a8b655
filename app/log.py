"""Structured logs: one JSON object a line, with ids, counts and durations.

Owns the format and the rule that message text stays out. A record carries its data through
``extra=fields(turn_id=..., ...)``; the field ``message_text`` is dropped unless the setting
``LOG_MESSAGE_TEXT`` is on. Knows nothing of what is logged.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Any, TextIO

from app.settings import SettingsError

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_QUIET = ("urllib3", "requests", "werkzeug", "kombu", "amqp")
"""Libraries whose lines below WARNING hold URLs (with secrets) or nothing of use."""
MESSAGE_TEXT = "message_text"


def fields(**values: object) -> dict[str, Any]:
    """The ``extra`` of a log call: ``logger.info("turn queued", extra=fields(turn_id=...))``."""
    return {"fields": values}


class JsonFormatter(logging.Formatter):
    """One record as one line of JSON in real UTF-8."""

    def __init__(self, *, log_message_text: bool = False) -> None:
        super().__init__()
        self._log_message_text = log_message_text

    def format(self, record: logging.LogRecord) -> str:
        """Time (UTC), level, logger, event, then the fields."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in getattr(record, "fields", {}).items():
            if name != MESSAGE_TEXT or self._log_message_text:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        text = json.dumps(line, ensure_ascii=False, default=str)
        return text.encode("utf-8", "replace").decode()


def configure(
    level: str = "INFO", *, log_message_text: bool = False, stream: TextIO | None = None
) -> None:
    """Send the logs of this process to ``stream`` (standard error). Call it once, at the start.

    Raises ``SettingsError`` for a level that does not exist.
    """
    if level.upper() not in _LEVELS:
        raise SettingsError(f"HUTONG_LOG_LEVEL={level} 不对：应是 {'、'.join(_LEVELS)} 之一")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(log_message_text=log_message_text))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
