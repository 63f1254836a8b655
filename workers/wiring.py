"""Composition root of the turn worker: settings in, a ready agent out.

Owns which model and which tools the agent gets. The only place that knows engine, tools and
agent at once.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from app.log import fields
from app.settings import Settings, SettingsError
from inference.config import EngineConfig
from inference.errors import CheckpointError, DeviceError, MemoryPlanError
from inference.llm import LLM
from tools import demo_company, embedding, semantic
from tools.base import ToolUnavailableError
from tools.python_exec import PythonTool
from tools.registry import ToolRegistry
from tools.schema_linking import linked
from tools.search import SearchTool, titles_of
from tools.sql import SqlTool
from workers import table_images
from workers.agent.context import system_prompt
from workers.agent.loop import Agent, Limits
from workers.engine_facts import EngineFacts
from workers.processes import LoadedAgent
from workers.rights import data_rights, refuse_unknown_data, tool_rights

log = logging.getLogger(__name__)

WARM_UP_S = 60.0
SCHEMA_SHARE = 0.75
"""Characters of the schema block for each token of context; a token is one to three of them."""


@contextmanager
def build_agent(settings: Settings) -> Iterator[LoadedAgent]:
    """Load the model, open the tools, and answer one question nobody asked to warm both up.

    Raises ``SettingsError`` naming the variable behind a model, database or document folder that
    cannot be used.
    """
    started = time.monotonic()
    semantic_file = settings.semantic_file or demo_company.SEMANTIC_FILE
    docs_dir = settings.docs_dir or demo_company.DOCUMENTS_DIR
    try:
        meaning = semantic.load(semantic_file)
        embedder = embedding.load(settings.embedding_model)
        search = SearchTool(docs_dir, settings.data_dir / "index", embedder)
        search.refresh()
        refuse_unknown_data(settings, meaning)
        sql = SqlTool(settings.company_database, meaning, may_read=data_rights(settings))
        registry = ToolRegistry(
            [sql, PythonTool(), search],
            allowed=tool_rights(settings),
        )
        llm = LLM(
            settings.model_dir,
            config=EngineConfig(
                device=settings.device,
                max_model_len=settings.max_model_len,
                max_num_seqs=settings.max_num_seqs,
                gpu_memory_limit=settings.gpu_memory_limit,
                backbone_dtype=settings.backbone_dtype,
                lm_head_dtype=settings.lm_head_dtype,
                kv_cache_dtype=settings.kv_cache_dtype,
            ),
        )
    except semantic.SemanticError as error:
        raise SettingsError(f"HUTONG_SEMANTIC_FILE: {error}") from error
    except CheckpointError as error:
        raise SettingsError(f"HUTONG_MODEL_DIR: {error}") from error
    except MemoryPlanError as error:
        raise SettingsError(f"HUTONG_GPU_MEMORY_LIMIT: {error}") from error
    except DeviceError as error:
        raise SettingsError(f"HUTONG_DEVICE={settings.device}: {error}") from error
    except ToolUnavailableError as error:
        raise SettingsError(f"a tool cannot start: {error}") from error
    titles = titles_of(docs_dir)

    def system(today: datetime.date, asked: str) -> str:
        chars = round(settings.max_model_len * SCHEMA_SHARE)
        return system_prompt(linked(meaning, asked, chars), today, titles)

    limits = Limits(max_steps=settings.max_steps, history_tokens=settings.history_tokens)
    agent = Agent(llm, registry, system, lambda: settings.today or datetime.date.today(), limits)
    try:
        with llm:
            agent.run("你好", user="warm-up", deadline_s=time.monotonic() + WARM_UP_S)
            took_s = round(time.monotonic() - started, 1)
            log.info("agent ready", extra=fields(model=settings.model_dir.name, seconds=took_s))
            facts = EngineFacts(settings.model_dir.name, lambda: llm.stats)
            yield LoadedAgent(agent, facts, table_images.drawer(settings))
    finally:
        registry.close()
