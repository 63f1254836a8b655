"""The part of a model outside its routed experts: stock classes, built without expert weights.

Owns the weightless build of both architectures, the reading and checking of the backbone file,
and backbones of random weights. Routers are ours (fp32) from the start; ``layer.mlp.experts`` is
a placeholder that the caller replaces. Knows nothing of where experts live.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from inference.checkpoint import format as layout
from inference.errors import ConfigMismatchError, DamagedFileError, MissingFileError
from inference.moe.router import Router

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_NOT_FOR_TRANSFORMERS = (
    "routing_config",
    "num_local_experts",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "model_type",
    "architectures",
)
_BLOCK_BYTES = 64 * 1024 * 1024


class ExpertsPlaceholder(nn.Module):
    """Stands where the routed experts of one layer go until the caller puts them there."""

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises ``RuntimeError``: there are no experts here."""
        raise RuntimeError("layer.mlp.experts was not replaced by a module that has experts")


def transformers_config(fields: dict[str, Any], path: Path | str = layout.CONFIG_FILE) -> Any:
    """The transformers text config of ``fields`` (as ``layout.read_config`` returns them).

    Raises ``ConfigMismatchError`` naming ``path`` when transformers refuses a value.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import Qwen3_5MoeTextConfig, Qwen3MoeConfig

    hybrid = fields["model_type"] == layout.QWEN3_5_MOE
    config_class = Qwen3_5MoeTextConfig if hybrid else Qwen3MoeConfig
    known = {key: value for key, value in fields.items() if key not in _NOT_FOR_TRANSFORMERS}
    try:
        return config_class(**known)
    except (StrictDataclassError, TypeError, ValueError, KeyError) as error:
        raise ConfigMismatchError(
            path, f"transformers refuses a value ({error})", "copy the file again"
        ) from error


def routed_layers(config: Any) -> list[int]:
    """Indices of the layers with routed experts, of a transformers text config."""
    dense = set(getattr(config, "mlp_only_layers", None) or ())
    step = int(getattr(config, "decoder_sparse_step", None) or 1)
    return [
        layer
        for layer in range(config.num_hidden_layers)
        if layer not in dense and (layer + 1) % step == 0
    ]


def backbone_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Stock name -> shape of every tensor of the backbone file, a tied head left out."""
    shapes = {
        name: tuple(tensor.shape)
        for name, tensor in _build(config, torch.float16).state_dict().items()
    }
    if _tied(config):
        del shapes[_HEAD]
    return shapes


def load_backbone(
    model_dir: Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    on_host: bool = False,
) -> tuple[Any, Any]:
    """The stock model of a converted folder without its experts, and its text config.

    Parameters are in ``dtype`` on ``device``; the embedding table stays on the CPU (a tied head
    on another device is a copy of it); routers are fp32. Eval mode, no gradients. With
    ``on_host`` all parameters stay in host memory, for a caller who moves them one by one;
    ``device`` only checks their values, block by block. Raises ``CheckpointError``.
    """
    fields = layout.read_config(model_dir)
    routing = layout.read_routing_config(model_dir, fields)
    config = transformers_config(fields, model_dir / layout.CONFIG_FILE)
    device = torch.device(device)
    model = _build(config, dtype)
    home = torch.device("cpu") if on_host else device
    path = model_dir / layout.BACKBONE_FILE
    _load(model, path, home, dtype, tied=_tied(config), checked_on=device)
    norm_topk_prob = routing.norm_topk_prob
    return _complete(model, config, device, home, norm_topk_prob=norm_topk_prob), config


def random_backbone(
    config: Any,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    on_host: bool = False,
) -> Any:
    """A stock model of ``config`` without experts, its weights random and made on ``device``.

    As ``load_backbone`` otherwise. Values are scaled so that activations stay near one and
    routers and logits differ from token to token; equal seeds give equal weights on one kind of
    device.
    """
    device = torch.device(device)
    model = _build(config, dtype)
    generator = torch.Generator(device).manual_seed(seed)
    names = list(model.state_dict())
    for name in names:
        if name == _HEAD and _tied(config):
            continue
        home = torch.device("cpu") if on_host or name == _EMBEDDING else device
        tensor = torch.empty(model.get_parameter(name).shape, dtype=dtype, device=home)
        for block in _row_blocks(tensor):
            made = torch.empty_like(block, device=device)
            _randomise(name, made, config.model_type, generator)
            block.copy_(made)
        _assign(model, name, tensor)
    home = torch.device("cpu") if on_host else device
    norm_topk_prob = bool(getattr(config, "norm_topk_prob", True))
    return _complete(model, config, device, home, norm_topk_prob=norm_topk_prob)


def _build(config: Any, dtype: torch.dtype) -> Any:
    """The stock class with all parameters on the meta device: no memory, no initialisation."""
    from transformers import Qwen3_5MoeForCausalLM, Qwen3MoeForCausalLM
    from transformers.initialization import no_init_weights

    hybrid = config.model_type == layout.QWEN3_5_MOE
    if hybrid:
        # It advises packages whose kernels this engine replaces by its own.
        logging.getLogger("transformers.integrations.hub_kernels").setLevel(logging.ERROR)
    model_class = Qwen3_5MoeForCausalLM if hybrid else Qwen3MoeForCausalLM
    with torch.device("meta"), no_init_weights():
        model: Any = model_class._from_config(config, dtype=dtype)
    for layer in routed_layers(config):
        model.model.layers[layer].mlp.experts = ExpertsPlaceholder()
    return model


def _complete(
    model: Any,
    config: Any,
    device: torch.device,
    home: torch.device,
    *,
    norm_topk_prob: bool,
) -> Any:
    """Tie the head, rebuild what the meta device left empty, put our routers in.

    Parameters lie on ``home``.
    """
    if _tied(config):
        model.lm_head.weight = nn.Parameter(
            model.model.embed_tokens.weight.detach().to(home), requires_grad=False
        )
    # Rotary frequencies are non-persistent buffers: no checkpoint holds them.
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config=config).to(device)
    for layer in routed_layers(config):
        mlp = model.model.layers[layer].mlp
        mlp.gate = Router(
            mlp.gate.weight,
            num_experts_per_tok=int(config.num_experts_per_tok),
            norm_topk_prob=norm_topk_prob,
        )
    left = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    assert not left, f"{left[0]} and {len(left) - 1} others have no values"
    return model.eval().requires_grad_(False)


def _tied(config: Any) -> bool:
    return bool(config.tie_word_embeddings)


def _assign(model: Any, name: str, tensor: Tensor) -> None:
    module, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(module), leaf, nn.Parameter(tensor, requires_grad=False))


def _load(
    model: Any,
    path: Path,
    home: torch.device,
    dtype: torch.dtype,
    *,
    tied: bool,
    checked_on: torch.device,
) -> None:
    if not path.is_file():
        raise MissingFileError(
            path, "the backbone file is missing", "copy it again or convert the model again"
        )
    expected: dict[str, Tensor] = model.state_dict()
    if tied:
        expected.pop(_HEAD, None)
    suspects: list[tuple[str, Tensor]] = []
    try:
        with safe_open(path, framework="pt") as file:
            _check_names(path, expected.keys(), set(file.keys()) - ({_HEAD} if tied else set()))
            for name, meta in expected.items():
                tensor = file.get_tensor(name)
                _check_shape(path, name, tensor, meta)
                where = torch.device("cpu") if name == _EMBEDDING else home
                tensor = tensor.to(where, dtype)
                suspects += [
                    (name, torch.isfinite(block.to(checked_on)).all())
                    for block in _row_blocks(tensor)
                ]
                _assign(model, name, tensor)
    except (SafetensorError, OSError) as error:
        raise DamagedFileError(path, f"cannot be read ({error})", "copy the file again") from error
    # Looked at once all copies are under way: asking one by one would wait for each.
    for name, finite in suspects:
        if not bool(finite):
            raise DamagedFileError(
                path, f"{name} holds NaN or infinite values", "copy the file again"
            )


def _check_names(path: Path, expected: Any, found: set[str]) -> None:
    missing, unexpected = set(expected) - found, found - set(expected)
    if missing or unexpected:
        what = f"{min(missing)} is missing" if missing else f"{min(unexpected)} is not expected"
        raise ConfigMismatchError(
            path,
            f"{what} ({len(missing)} missing, {len(unexpected)} unexpected in all)",
            "config.json belongs to another model: copy both again or convert again",
        )


def _check_shape(path: Path, name: str, tensor: Tensor, meta: Tensor) -> None:
    if tensor.shape != meta.shape:
        raise ConfigMismatchError(
            path,
            f"{name} is {tuple(tensor.shape)}, config.json implies {tuple(meta.shape)}",
            "correct config.json or convert the model again",
        )


def _row_blocks(tensor: Tensor) -> tuple[Tensor, ...]:
    """Views of ``tensor`` along its first dimension, so small that a device has room for one."""
    rows = max(1, _BLOCK_BYTES * tensor.shape[0] // max(1, tensor.nbytes))
    return tensor.split(rows)


def _randomise(name: str, tensor: Tensor, model_type: str, generator: torch.Generator) -> None:
    if name.endswith("A_log"):
        tensor.uniform_(0.05, 4.0, generator=generator).log_()
    elif name.endswith("dt_bias"):
        tensor.normal_(-1.0, 0.5, generator=generator)
    elif name.endswith("norm.weight") or "layernorm" in name:
        # Norms of Qwen3.5 hold w - 1, but for the output norm of the delta rule.
        zero_centred = model_type == layout.QWEN3_5_MOE and ".linear_attn." not in name
        tensor.normal_(0.0 if zero_centred else 1.0, 0.1, generator=generator)
    elif name.endswith("conv1d.weight"):
        tensor.normal_(0.0, 0.5, generator=generator)
    elif name == _EMBEDDING:
        tensor.normal_(generator=generator)
    else:
        spread = 2.0 if name == _HEAD or name.endswith("mlp.gate.weight") else 1.0
        tensor.normal_(0.0, spread * tensor.shape[-1] ** -0.5, generator=generator)
