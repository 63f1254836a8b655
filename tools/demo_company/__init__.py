"""The demo company: database generator, semantic file and documents."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
SEMANTIC_FILE = HERE / "semantic.yaml"
DOCUMENTS_DIR = HERE / "documents"
