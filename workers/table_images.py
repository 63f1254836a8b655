"""Whether wide tables are sent as images, and in which font.

Owns what the setting means and what the log says when there is no font. Knows nothing of layout.
"""

from __future__ import annotations

import logging
from pathlib import Path

from app.log import fields
from app.settings import Settings
from tools.table_image import FontError, TableImage, find_font

log = logging.getLogger(__name__)


def drawer(settings: Settings) -> TableImage | None:
    """What draws wide tables; None when that is off, or has no font: answers are text then."""
    chosen = settings.table_images
    if chosen is False:
        return None
    try:
        font = find_font(chosen if isinstance(chosen, Path) else None)
    except FontError as error:
        log.error("wide tables are sent as text only", extra=fields(reason=str(error)))
        return None
    log.info("wide tables are sent as images too", extra=fields(font=font.name))
    return TableImage(font)
