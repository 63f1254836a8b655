"""From a model folder, or from nothing but a config, to a runner on the GPU.

Owns the order of the start: load the kernels, measure the context, plan, set the hard cap, then
load backbone and experts side by side. The backbone comes in host memory, so that the GPU never
holds it in two forms at once. Knows nothing of steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from inference.checkpoint import format as layout
from inference.checkpoint.backbone import load_backbone, random_backbone, routed_layers
from inference.config import EngineConfig
from inference.engine.device_memory import (
    ContextMeter,
    limit_memory,
    use_expandable_segments,
)
from inference.engine.gpu_runner import GpuModelRunner, out_of_memory_named
from inference.engine.gpu_weights import check_supported
from inference.geometry import ModelGeometry
from inference.kernels.cuda_kernels import CudaKernels
from inference.kernels.library import KernelLibrary
from inference.memory_plan import MemoryPlan, plan_memory
from inference.moe.expert_arena import ExpertArena

logger = logging.getLogger(__name__)


def build_gpu_runner(
    model_dir: Path,
    config: EngineConfig,
    library: KernelLibrary | None = None,
    *,
    dtype: torch.dtype = torch.float16,
    plan: MemoryPlan | None = None,
) -> GpuModelRunner:
    """Load a converted folder. ``None``: the kernels of this GPU, and a plan for ``config``.

    ``dtype`` is that of the backbone in the stock classes and of float weights. Raises
    ``CheckpointError`` and ``DeviceError``, each naming the remedy.
    """
    begin_s = time.perf_counter()
    geometry = ModelGeometry.of_folder(model_dir)
    fields = layout.read_config(model_dir)
    routing = layout.read_routing_config(model_dir, fields)
    library, plan = _start(geometry, config, library, plan)

    def arena() -> ExpertArena:
        return ExpertArena.load(
            model_dir,
            routing,
            layers=geometry.routed_layers,
            shape=geometry.expert_shape,
            device=library.device,
            allow_unpinned=config.allow_unpinned,
        )

    def backbone() -> Any:
        return load_backbone(model_dir, device=library.device, dtype=dtype, on_host=True)[0]

    runner = _assemble(backbone, arena, plan, library, config)
    logger.info("loaded %s in %.1f s", model_dir, time.perf_counter() - begin_s)
    return runner


def build_random_gpu_runner(
    hf_config: Any,
    config: EngineConfig,
    seed: int = 0,
    library: KernelLibrary | None = None,
    *,
    group_size: int = 128,
    dtype: torch.dtype = torch.float16,
    plan: MemoryPlan | None = None,
) -> GpuModelRunner:
    """A model of a transformers text config with random weights made on the spot.

    For measurements: no file is written. Raises ``DeviceError``, ``ArchitectureError``.
    """
    check_supported(hf_config)
    geometry = ModelGeometry.from_config(hf_config.to_dict(), group_size=group_size)
    library, plan = _start(geometry, config, library, plan)

    def arena() -> ExpertArena:
        return ExpertArena.random(
            geometry.expert_shape,
            layers=routed_layers(hf_config),
            num_experts=geometry.num_experts,
            seed=seed,
            device=library.device,
            allow_unpinned=config.allow_unpinned,
        )

    def backbone() -> Any:
        return random_backbone(
            hf_config, device=library.device, dtype=dtype, seed=seed, on_host=True
        )

    return _assemble(backbone, arena, plan, library, config)


def _start(
    geometry: ModelGeometry,
    config: EngineConfig,
    library: KernelLibrary | None,
    plan: MemoryPlan | None,
) -> tuple[KernelLibrary, MemoryPlan]:
    """Library, plan and, on a GPU, the cap on the allocator."""
    meter = ContextMeter()
    if library is None:
        plan_memory(geometry, config)  # refuse what cannot fit before touching the GPU
        use_expandable_segments()
        library = CudaKernels()
    on_gpu = library.device.type == "cuda"
    if isinstance(library, CudaKernels):
        library.preload()
    if plan is None:
        recurrent = geometry.linear_attention is not None
        context = meter.context_bytes(library.device, recurrent=recurrent) if on_gpu else 0
        plan = plan_memory(geometry, config, context_bytes=context)
    if on_gpu:
        limit_memory(library.device, plan.allocator_bytes)
    return library, plan


def _assemble(
    backbone: Callable[[], Any],
    arena: Callable[[], ExpertArena],
    plan: MemoryPlan,
    library: KernelLibrary,
    config: EngineConfig,
) -> GpuModelRunner:
    """Experts are read in threads of their own while the backbone is loaded in this one."""
    with ThreadPoolExecutor(1, "arena") as pool:
        experts = pool.submit(arena)
        with out_of_memory_named():
            model = backbone()
            loaded = experts.result()
        return GpuModelRunner(model, loaded, plan, library, config)
