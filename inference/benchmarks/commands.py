"""The ``bench`` commands of ``python -m inference``: their arguments, and what they start.

Owns the choice between the CPU's and the GPU's measurements. Imports torch only when a command
runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference import gpu_arguments

if TYPE_CHECKING:
    from inference.benchmarks.gpu_figures import Workload
    from inference.benchmarks.gpu_latency import Build

_SHAPE_CONFIGS = {
    "qwen3.6-35b-a3b": "qwen3_6_35b_a3b_config",
    "qwen3-30b-a3b": "qwen3_30b_a3b_config",
}


def add_commands(benches: Any) -> None:
    """Add ``latency``, ``cache``, ``start`` and ``write`` to the sub-parsers ``benches``."""
    latency = benches.add_parser("latency", help="prefill and decode times; last line JSON")
    _add_model(latency)
    latency.add_argument("--repeats", type=int, default=5, help="on a CPU")
    latency.add_argument("--prompt-tokens", type=int, default=800, help="on a CPU")
    latency.add_argument("--expert-cache-slots", type=int, help="on a CPU")
    latency.add_argument("--prefetch", choices=("on", "off", "both"), default="on")
    latency.add_argument("--early-launch", choices=("on", "off"), default="on", help="on a GPU")
    latency.add_argument("--routing", default="own", help="own, or generated:skew=0.6,hit=0.75")
    latency.add_argument("--no-cap", action="store_true", help="no ballast, no memory sampling")
    latency.set_defaults(run=_latency)

    cache = benches.add_parser("cache", help="hit rate against expert slots; last line JSON")
    _add_model(cache)
    cache.add_argument("--slots", type=_numbers, default=[], help="such as 8,16,32; default: some")
    cache.add_argument("--routing", action="append", help="as for latency; may be repeated")
    cache.set_defaults(run=_cache)

    start = benches.add_parser("start", help="process start to first token; last line JSON")
    start.add_argument("model", type=Path)
    gpu_arguments.add_device_argument(start)
    gpu_arguments.add_limit_arguments(start)
    start.set_defaults(run=_start)

    write = benches.add_parser("write", help="write a random model folder of a published shape")
    write.add_argument("out", type=Path)
    write.add_argument("--shape", choices=sorted(_SHAPE_CONFIGS), required=True)
    write.add_argument("--group-size", type=int, default=gpu_arguments.DEFAULT_GROUP_SIZE)
    write.add_argument("--seed", type=int, default=0)
    gpu_arguments.add_device_argument(write)
    write.set_defaults(run=_write)


def _add_model(parser: argparse.ArgumentParser) -> None:
    gpu_arguments.add_model_arguments(parser)
    gpu_arguments.add_device_argument(parser)
    gpu_arguments.add_limit_arguments(parser, sequences=False)
    parser.add_argument("--batch", type=int, help="sequences; default: 1 on a GPU, 4 on a CPU")
    parser.add_argument("--new-tokens", type=int, help="default: 256 on a GPU, 128 on a CPU")
    parser.add_argument("--warm-up-tokens", type=int, default=128, help="on a GPU")
    parser.add_argument("--context", type=int, default=8192, help="on a GPU, new tokens included")
    parser.add_argument("--seed", type=int, default=0, help="of --shape's weights")


def _latency(arguments: argparse.Namespace) -> int:
    if arguments.device == "cuda":
        return _gpu_latency(arguments)
    from inference.benchmarks import latency

    _refuse_shape(arguments)
    report = latency.run(
        arguments.model,
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens or 128,
        batch=arguments.batch or 4,
        repeats=arguments.repeats,
        expert_cache_slots=arguments.expert_cache_slots,
    )
    latency.print_report(report)
    return 0


def _gpu_latency(arguments: argparse.Namespace) -> int:
    from inference.benchmarks import gpu_latency
    from inference.benchmarks.routing import Routing

    build, name, prompt = _source(arguments)
    reports = gpu_latency.run(
        build,
        name,
        replace(_config(arguments), early_launch=arguments.early_launch == "on"),
        _workload(arguments, Routing.parse(arguments.routing)),
        prompt=prompt,
        prefetch=arguments.prefetch,
        capped=not arguments.no_cap,
    )
    gpu_latency.print_reports(reports)
    return 0


def _cache(arguments: argparse.Namespace) -> int:
    from inference.benchmarks import cache

    routings = arguments.routing or []
    if arguments.device == "cuda":
        build, name, prompt = _source(arguments)
        report = cache.run_gpu(
            build,
            name,
            _config(arguments),
            _workload(arguments),
            routings=routings or ["own"],
            counts=arguments.slots,
            prompt=prompt,
        )
    elif arguments.shape is not None:
        report = cache.run_generated(
            gpu_arguments.geometry_of(arguments),
            arguments.shape,
            routings=routings or cache.GENERATED,
            counts=arguments.slots,
            batch=arguments.batch or 1,
        )
    else:
        report = cache.run_cpu(
            arguments.model, counts=arguments.slots, new_tokens=arguments.new_tokens or 128
        )
    cache.print_report(report)
    return 0


def _start(arguments: argparse.Namespace) -> int:
    from inference.benchmarks import start

    config = gpu_arguments.config_of(arguments)
    start.print_report(start.run(arguments.model, gpu_arguments.to_arguments(config), config))
    return 0


def _write(arguments: argparse.Namespace) -> int:
    from inference.benchmarks.random_folder import write_random_folder

    size = write_random_folder(
        arguments.out,
        shape_config(arguments.shape),
        group_size=arguments.group_size,
        seed=arguments.seed,
        device=arguments.device,
    )
    print(f"{arguments.out}: {size / 1e9:.2f} GB")
    return 0


def shape_config(name: str) -> Any:
    """The transformers text config of a published shape."""
    from inference.benchmarks import random_model

    return getattr(random_model, _SHAPE_CONFIGS[name])()


def _source(arguments: argparse.Namespace) -> tuple[Build, str, Sequence[int] | None]:
    """How to build the runner, what it is called, and token ids of real text for a folder."""
    from inference.engine.gpu_loader import build_gpu_runner, build_random_gpu_runner

    if arguments.shape is not None and arguments.model is None:
        hf_config = shape_config(arguments.shape)
        seed, group_size = arguments.seed, arguments.group_size
        name = f"{arguments.shape}, random weights, seed {seed}"
        return (
            lambda config: build_random_gpu_runner(
                hf_config, config, seed=seed, group_size=group_size
            ),
            name,
            None,
        )
    gpu_arguments.geometry_of(arguments)  # names what is wrong with the folder or the arguments
    from inference.benchmarks.latency import SENTENCE
    from inference.tokenizer import Tokenizer

    model_dir = arguments.model
    prompt = Tokenizer(model_dir).encode(SENTENCE)
    return lambda config: build_gpu_runner(model_dir, config), model_dir.name, prompt


def _config(arguments: argparse.Namespace) -> Any:
    return gpu_arguments.config_of(
        arguments, max_model_len=arguments.context, max_num_seqs=arguments.batch or 1
    )


def _workload(arguments: argparse.Namespace, routing: Any = None) -> Workload:
    from inference.benchmarks.gpu_figures import Workload
    from inference.benchmarks.routing import ROUTER

    return Workload(
        context=arguments.context,
        new_tokens=arguments.new_tokens or 256,
        warm_up_tokens=arguments.warm_up_tokens,
        batch=arguments.batch or 1,
        routing=routing or ROUTER,
    )


def _refuse_shape(arguments: argparse.Namespace) -> None:
    if arguments.shape is not None:
        raise ValueError("a --shape is measured with --device cuda; on a CPU name a model folder")


def _numbers(text: str) -> list[int]:
    try:
        return [int(item) for item in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as 8,16,32") from None
