"""The sizes of a model: layers, matrices and what each of them weighs.

Owns the reading of config.json fields of both architectures into one record, and the shapes of
the two published models. Knows nothing of devices, limits or torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.checkpoint import format as layout
from inference.errors import ArchitectureError, ConfigMismatchError

FULL_ATTENTION = "full_attention"
LINEAR_ATTENTION = "linear_attention"
QWEN3_MOE = "qwen3_moe"
QWEN3_5_MOE = ("qwen3_5_moe", "qwen3_5_moe_text")

Matrix = tuple[int, int]
"""``(rows, columns)`` of a weight: rows are outputs."""

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen3.6-35b-a3b": {
        "model_type": "qwen3_5_moe_text",
        "vocab_size": 248320,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "layer_types": ([LINEAR_ATTENTION] * 3 + [FULL_ATTENTION]) * 10,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "tie_word_embeddings": False,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
        },
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "tie_word_embeddings": False,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
}
"""config.json fields of the published models (text part), by the name ``--shape`` takes."""


@dataclass(frozen=True)
class LinearAttention:
    """Sizes of one Gated DeltaNet layer."""

    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_kernel: int

    @property
    def key_dim(self) -> int:
        """Columns of all keys."""
        return self.num_k_heads * self.head_k_dim

    @property
    def value_dim(self) -> int:
        """Columns of all values."""
        return self.num_v_heads * self.head_v_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the causal convolution: queries, keys and values."""
        return 2 * self.key_dim + self.value_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of the fp32 recurrent state and the fp32 convolution ring of one sequence."""
        recurrent = self.num_v_heads * self.head_k_dim * self.head_v_dim
        return 4 * (recurrent + self.conv_dim * self.conv_kernel)


@dataclass(frozen=True)
class ModelGeometry:
    """All sizes of one model. Weights are counted as they lie in GPU memory."""

    model_type: str
    vocab_size: int
    hidden_size: int
    layer_types: tuple[str, ...]
    routed_layers: tuple[int, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    gated_attention: bool
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_intermediate_size: int
    dense_intermediate_size: int
    group_size: int
    linear_attention: LinearAttention | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, group_size: int = 128) -> ModelGeometry:
        """Read config.json fields; a composite config counts its ``text_config``.

        Raises ``ArchitectureError`` for a model this engine does not run and
        ``ConfigMismatchError`` for a missing or impossible size.
        """
        fields: Mapping[str, Any] = config.get("text_config") or config
        model_type = str(fields.get("model_type"))
        if model_type != QWEN3_MOE and model_type not in QWEN3_5_MOE:
            raise ArchitectureError(
                layout.CONFIG_FILE,
                f"model_type is {model_type!r}",
                f"this engine runs {', '.join((QWEN3_MOE, *QWEN3_5_MOE))}",
            )
        hybrid = model_type in QWEN3_5_MOE
        num_layers, hidden = _size(fields, "num_hidden_layers"), _size(fields, "hidden_size")
        num_heads = _size(fields, "num_attention_heads")
        head_dim = int(fields.get("head_dim") or hidden // num_heads)
        layer_types = _layer_types(fields, num_layers, hybrid=hybrid)
        geometry = cls(
            model_type=model_type,
            vocab_size=_size(fields, "vocab_size"),
            hidden_size=hidden,
            layer_types=layer_types,
            routed_layers=_routed_layers(fields, num_layers, hybrid=hybrid),
            num_heads=num_heads,
            num_kv_heads=_size(fields, "num_key_value_heads"),
            head_dim=head_dim,
            rotary_dim=int(head_dim * _partial_rotary(fields, default=0.25 if hybrid else 1.0)),
            gated_attention=hybrid,
            num_experts=_size(fields, "num_experts", "num_local_experts"),
            num_experts_per_tok=_size(fields, "num_experts_per_tok"),
            moe_intermediate_size=_size(fields, "moe_intermediate_size"),
            shared_intermediate_size=(
                _size(fields, "shared_expert_intermediate_size") if hybrid else 0
            ),
            dense_intermediate_size=int(fields.get("intermediate_size") or 0),
            group_size=group_size,
            linear_attention=_linear_attention(fields) if LINEAR_ATTENTION in layer_types else None,
        )
        if not geometry.num_experts_per_tok <= geometry.num_experts:
            raise ConfigMismatchError(
                layout.CONFIG_FILE,
                f"num_experts_per_tok {geometry.num_experts_per_tok} of "
                f"{geometry.num_experts} experts",
                "correct num_experts or num_experts_per_tok",
            )
        return geometry

    @classmethod
    def of_shape(cls, name: str, *, group_size: int = 128) -> ModelGeometry:
        """The geometry of a published model. Raises ``ValueError`` for an unknown name."""
        if name not in SHAPES:
            raise ValueError(f"unknown shape {name!r}; known: {', '.join(SHAPES)}")
        return cls.from_config(SHAPES[name], group_size=group_size)

    @classmethod
    def of_folder(cls, model_dir: Path) -> ModelGeometry:
        """The geometry of a converted folder. Raises ``CheckpointError``."""
        config = layout.read_config(model_dir)
        routing = layout.read_routing_config(model_dir, config)
        return cls.from_config(config, group_size=routing.quantization.group_size)

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layer_types)

    @property
    def num_attention_layers(self) -> int:
        """Layers with keys and values."""
        return self.layer_types.count(FULL_ATTENTION)

    @property
    def num_linear_layers(self) -> int:
        """Layers with a recurrent state."""
        return self.layer_types.count(LINEAR_ATTENTION)

    @property
    def attention_matrices(self) -> tuple[Matrix, ...]:
        """Projections of one attention layer: q (with its gate), k, v, o."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        rows = queries * (2 if self.gated_attention else 1)
        hidden = self.hidden_size
        return (rows, hidden), (keys, hidden), (keys, hidden), (hidden, queries)

    @property
    def linear_attention_matrices(self) -> tuple[Matrix, ...]:
        """Projections of one Gated DeltaNet layer: qkv, z, b, a, out."""
        linear, hidden = self.linear_attention, self.hidden_size
        if linear is None:
            return ()
        inputs = (linear.conv_dim, linear.value_dim, linear.num_v_heads, linear.num_v_heads)
        return (*((rows, hidden) for rows in inputs), (hidden, linear.value_dim))

    @property
    def shared_expert_matrices(self) -> tuple[Matrix, ...]:
        """Gate, up and down of the shared expert of one routed layer."""
        inner, hidden = self.shared_intermediate_size, self.hidden_size
        return ((inner, hidden), (inner, hidden), (hidden, inner)) if inner else ()

    @property
    def dense_matrices(self) -> tuple[Matrix, ...]:
        """Gate, up and down of one layer that does not route."""
        inner, hidden = self.dense_intermediate_size, self.hidden_size
        return (inner, hidden), (inner, hidden), (hidden, inner)

    @property
    def backbone_matrices(self) -> tuple[Matrix, ...]:
        """Every linear of the backbone but router, embedding and head."""
        routed = len(self.routed_layers)
        dense = self.num_layers - routed
        return (
            self.attention_matrices * self.num_attention_layers
            + self.linear_attention_matrices * self.num_linear_layers
            + self.shared_expert_matrices * routed
            + (self.dense_matrices * dense if dense else ())
        )

    @property
    def head_matrix(self) -> Matrix:
        """The output head; the embedding table has the same shape."""
        return self.vocab_size, self.hidden_size

    @property
    def router_values(self) -> int:
        """Values of all routers and shared-expert gates."""
        rows = self.num_experts + (1 if self.shared_intermediate_size else 0)
        return len(self.routed_layers) * rows * self.hidden_size

    @property
    def small_values(self) -> int:
        """Values of norms, convolutions, decays."""
        total = self.hidden_size * (2 * self.num_layers + 1)
        total += self.num_attention_layers * 2 * self.head_dim
        if self.linear_attention is not None:
            linear = self.linear_attention
            total += self.num_linear_layers * (
                linear.conv_dim * linear.conv_kernel + 2 * linear.num_v_heads + linear.head_v_dim
            )
        return total

    @property
    def expert_shape(self) -> layout.ExpertShape:
        """Shapes of one packed expert."""
        return layout.ExpertShape(self.hidden_size, self.moe_intermediate_size, self.group_size)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one packed expert of one layer."""
        return self.expert_shape.size_bytes

    @property
    def num_all_experts(self) -> int:
        """Experts of all routed layers together."""
        return len(self.routed_layers) * self.num_experts

    @property
    def embedding_bytes(self) -> int:
        """Bytes of the fp16 embedding table in host memory."""
        return 2 * self.vocab_size * self.hidden_size

    @property
    def state_bytes(self) -> int:
        """Bytes of recurrent and convolution state of one sequence."""
        if self.linear_attention is None:
            return 0
        return self.num_linear_layers * self.linear_attention.state_bytes

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of keys and values of one token; fp8 has one fp32 scale a head and token."""
        per_head = {
            "fp32": 4 * self.head_dim,
            "fp16": 2 * self.head_dim,
            "fp8": self.head_dim + 4,
        }[dtype]
        return 2 * self.num_attention_layers * self.num_kv_heads * per_head


def matrix_bytes(matrices: Sequence[Matrix], dtype: str, *, group_size: int = 128) -> int:
    """Bytes of ``matrices`` in a format of ``LinearWeight``, scales included."""
    return sum(_matrix_bytes(rows, columns, dtype, group_size) for rows, columns in matrices)


def _matrix_bytes(rows: int, columns: int, dtype: str, group_size: int) -> int:
    if dtype == "int8":
        return rows * columns + 4 * rows
    if dtype == "int4":
        return rows * columns // 2 + 2 * rows * (columns // group_size)
    return rows * columns * {"fp32": 4, "fp16": 2}[dtype]


def _size(fields: Mapping[str, Any], *names: str) -> int:
    """The first of ``names`` that is there, as a positive whole number."""
    value = next((fields[name] for name in names if fields.get(name) is not None), None)
    if not isinstance(value, int) or value < 1:
        raise ConfigMismatchError(
            layout.CONFIG_FILE, f"{names[0]} is {value!r}", "set it to a whole number above 0"
        )
    return value


def _layer_types(fields: Mapping[str, Any], num_layers: int, *, hybrid: bool) -> tuple[str, ...]:
    types = fields.get("layer_types")
    if types is None:
        interval = int(fields.get("full_attention_interval", 4)) if hybrid else 1
        types = [
            LINEAR_ATTENTION if (index + 1) % interval else FULL_ATTENTION
            for index in range(num_layers)
        ]
    known = {FULL_ATTENTION, LINEAR_ATTENTION} if hybrid else {FULL_ATTENTION}
    if len(types) != num_layers or not set(types) <= known:
        raise ConfigMismatchError(
            layout.CONFIG_FILE,
            f"layer_types names {len(types)} layers of kinds {sorted(set(types))}",
            f"{num_layers} layers of {sorted(known)} are wanted",
        )
    return tuple(types)


def _routed_layers(fields: Mapping[str, Any], num_layers: int, *, hybrid: bool) -> tuple[int, ...]:
    if hybrid:
        return tuple(range(num_layers))
    step, dense = int(fields.get("decoder_sparse_step", 1)), fields.get("mlp_only_layers") or []
    return tuple(
        index for index in range(num_layers) if index not in dense and (index + 1) % step == 0
    )


def _partial_rotary(fields: Mapping[str, Any], *, default: float) -> float:
    rope = fields.get("rope_parameters") or {}
    for source in (rope, fields):
        if source.get("partial_rotary_factor") is not None:
            return float(source["partial_rotary_factor"])
    return default


def _linear_attention(fields: Mapping[str, Any]) -> LinearAttention:
    return LinearAttention(
        num_k_heads=_size(fields, "linear_num_key_heads"),
        num_v_heads=_size(fields, "linear_num_value_heads"),
        head_k_dim=_size(fields, "linear_key_head_dim"),
        head_v_dim=_size(fields, "linear_value_head_dim"),
        conv_kernel=_size(fields, "linear_conv_kernel_dim"),
    )
