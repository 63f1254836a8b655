"""``search_docs``: passages of the company's documents, with title and section.

Owns the tool and when the index is refreshed. Knows nothing of how passages are ranked
(``search_index``) or how text becomes vectors (``embedding``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools import schemas, search_index
from tools.base import (
    Source,
    ToolArgumentError,
    ToolContext,
    ToolResult,
    ToolUnavailableError,
)
from tools.embedding import Embedder
from tools.passages import files_of, passages_of
from tools.search_index import SearchIndex

log = logging.getLogger(__name__)
MAX_PASSAGES = 3
QUERY_CHARS = 200
NOTHING = "没有找到相关内容"


class SearchTool:
    """``search_docs`` over the ``*.md`` and ``*.txt`` files below ``docs_dir``. Thread-safe.

    The index lives in ``index_dir/passages.db`` and follows the documents: their sizes and times
    are looked at before every search. Without ``embed`` the search is by keywords only.
    """

    name = schemas.SEARCH_DOCS.name
    description = schemas.SEARCH_DOCS.description
    parameters: Mapping[str, Any] = schemas.SEARCH_DOCS.parameters

    def __init__(self, docs_dir: Path, index_dir: Path, embed: Embedder | None) -> None:
        self._docs_dir = docs_dir
        self._index_file = index_dir / "passages.db"
        self._embedder = embed
        self._lock = threading.Lock()
        self._index: SearchIndex | None = None
        self._signature = ""

    def refresh(self) -> SearchIndex:
        """The index of the documents as they are now, built again when they changed.

        Raises ``ToolUnavailableError`` when the folder or the embedding model is missing.
        """
        with self._lock:
            if not self._docs_dir.is_dir():
                raise ToolUnavailableError(f"没有找到文档目录 {self._docs_dir}")
            try:
                seen = search_index.signature(self._docs_dir)
                if self._index is None or seen != self._signature:
                    self._index = search_index.build(
                        self._docs_dir, self._index_file, self._embedder
                    )
                    self._signature = seen
                    log.info("search index: %d passages", len(self._index.passages))
            except OSError as error:
                raise ToolUnavailableError(f"文档暂时读不了：{error.strerror}") from error
            return self._index

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """At most three passages for ``arguments["query"]``, best first, or 没有找到相关内容."""
        query = " ".join(str(arguments["query"]).split())[:QUERY_CHARS]
        if not query:
            raise ToolArgumentError("检索内容是空的，请写出要找什么")
        sources = self.refresh().search(query, self._embedder, MAX_PASSAGES)
        return ToolResult(content_of(sources), sources=sources)


def content_of(sources: Sequence[Source]) -> str:
    """``[1]《标题》章节：正文``, one passage a line."""
    if not sources:
        return NOTHING
    return "\n".join(
        f"[{number}]《{source.title}》{source.section}：{' '.join(source.text.split())}"
        for number, source in enumerate(sources, 1)
    )


def titles_of(docs_dir: Path) -> tuple[str, ...]:
    """Titles of the documents, in order, without repeats; for the prompt."""
    passages = (passage for path in files_of(docs_dir) for passage in passages_of(path))
    return tuple(dict.fromkeys(passage.title for passage in passages))
