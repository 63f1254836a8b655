"""What an engine is told at its start, and what a checkpoint says about sampling.

Owns the two records and the reading of generation_config.json. Knows nothing of torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from inference.checkpoint import format as layout
from inference.errors import ConfigMismatchError
from inference.sampling_params import SamplingParams

MIB = 2**20


@dataclass(frozen=True)
class EngineConfig:
    """Limits of one engine. ``None`` slots: every expert may be resident (CPU default).

    The fields from ``gpu_memory_limit`` to ``allow_unpinned`` count on ``device`` "cuda" only,
    ``expert_cache_slots`` and ``num_threads`` on "cpu" only.
    """

    max_model_len: int = 2048
    max_num_seqs: int = 4
    expert_cache_slots: int | None = None
    expert_cache_policy: Literal["lru", "decayed_frequency"] = "decayed_frequency"
    prefix_cache_bytes: int = 64 * 1024 * 1024
    prefill_chunk_tokens: int = 1024
    num_threads: int | None = None
    """Threads of one engine step; ``None`` measures at start which count is fastest."""
    device: Literal["cpu", "cuda"] = "cpu"
    gpu_memory_limit: int = 6000 * MIB
    """Bytes of GPU memory of the whole process as nvidia-smi shows them, context included."""
    backbone_dtype: Literal["fp16", "int8"] = "fp16"
    lm_head_dtype: Literal["fp16", "int8", "int4"] = "fp16"
    kv_cache_dtype: Literal["fp16", "fp8"] = "fp16"
    expert_prefetch: bool = True
    """Fetch the experts predicted for the next layer while this one runs; never changes output."""
    early_launch: bool = True
    """Launch each decode step while the one before runs; it waits for its inputs on the GPU."""
    allow_unpinned: bool = False
    """Go on with a warning, much slower, when host memory cannot be pinned."""
    router_gumbel_temperature: float = 0.0
    router_fatigue_penalty: float = 0.0
    """Both change what the router chooses: 0 (off) for published checkpoints."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "prefill_chunk_tokens", "gpu_memory_limit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}"
                )
        for name in ("router_gumbel_temperature", "router_fatigue_penalty"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.prefix_cache_bytes < 0:
            raise ValueError("prefix_cache_bytes must not be negative")


_CHOICES = {
    "device": ("cpu", "cuda"),
    "backbone_dtype": ("fp16", "int8"),
    "lm_head_dtype": ("fp16", "int8", "int4"),
    "kv_cache_dtype": ("fp16", "fp8"),
}


def parse_memory(text: str) -> int:
    """Bytes of ``6GB``, ``5900MiB`` or a plain number of bytes.

    ``GB`` and ``MB`` count as nvidia-smi shows a card: 6GB is 6,000 MiB. ``GiB`` is 1,024 MiB.
    Raises ``ValueError``.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", text.strip().lower())
    units = {"": 1, "b": 1, "mb": MIB, "mib": MIB, "gb": 1000 * MIB, "gib": 1024 * MIB}
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is no amount of memory; write 6GB, 5900MiB or bytes")
    return int(float(match[1]) * units[match[2]])


@dataclass(frozen=True)
class GenerationConfig:
    """Sampling defaults and end tokens of a checkpoint."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def read(cls, model_dir: Path) -> GenerationConfig:
        """Read generation_config.json; a missing file means greedy decoding.

        ``do_sample`` absent or false means temperature 0, as in transformers. Without
        ``eos_token_id`` there the one of config.json counts. Raises ``CheckpointError``.
        """
        path = model_dir / layout.GENERATION_CONFIG_FILE
        fields = layout.read_json(path) if path.exists() else {}
        eos = fields.get("eos_token_id")
        if eos is None:
            eos = layout.read_config(model_dir).get("eos_token_id")
        try:
            sample = bool(fields.get("do_sample", False))
            return cls(
                temperature=_number(fields, "temperature", 1.0) if sample else 0.0,
                top_p=_number(fields, "top_p", 1.0),
                top_k=int(_number(fields, "top_k", 0)),
                min_p=_number(fields, "min_p", 0.0),
                repetition_penalty=_number(fields, "repetition_penalty", 1.0),
                eos_token_ids=_ids(eos),
            )
        except (TypeError, ValueError) as error:
            raise ConfigMismatchError(
                path, f"a value has the wrong type ({error})", "copy the file again"
            ) from error


def _number(fields: dict[str, Any], key: str, default: float) -> float:
    value = fields.get(key)
    return default if value is None else float(value)


def _ids(eos: Any) -> tuple[int, ...]:
    if eos is None:
        return ()
    return tuple(int(item) for item in eos) if isinstance(eos, list) else (int(eos),)


@dataclass(frozen=True)
class ResolvedSampling:
    """Sampling values of one request, defaults filled in. ``temperature`` 0 is greedy."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    seed: int | None

    @classmethod
    def resolve(cls, params: SamplingParams, defaults: GenerationConfig) -> ResolvedSampling:
        """Fill the ``None`` fields of ``params``. Raises ``ValueError`` for impossible values."""

        def pick(name: str) -> Any:
            value = getattr(params, name)
            return getattr(defaults, name) if value is None else value

        resolved = cls(
            temperature=float(pick("temperature")),
            top_p=float(pick("top_p")),
            top_k=int(pick("top_k")),
            min_p=float(pick("min_p")),
            repetition_penalty=float(pick("repetition_penalty")),
            presence_penalty=float(params.presence_penalty),
            seed=params.seed,
        )
        if resolved.temperature < 0 or not 0 < resolved.top_p <= 1 or resolved.top_k < 0:
            raise ValueError(f"impossible sampling values: {resolved}")
        if not 0 <= resolved.min_p <= 1 or resolved.repetition_penalty <= 0:
            raise ValueError(f"impossible sampling values: {resolved}")
        return resolved
