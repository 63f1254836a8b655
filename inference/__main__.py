"""``python -m inference``: convert a checkpoint, chat with a model, look at a folder, measure."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from inference import gpu_arguments
from inference.benchmarks import commands as commands_of_bench
from inference.errors import InferenceError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. Errors of the engine are one line on stderr."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except (InferenceError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m inference", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    convert = commands.add_parser("convert", help="stock checkpoint folder -> our layout")
    convert.add_argument("source", type=Path)
    convert.add_argument("out", type=Path)
    convert.add_argument("--group-size", type=int, default=32)
    convert.set_defaults(run=_convert)

    chat = commands.add_parser("chat", help="ask a model one thing")
    chat.add_argument("model", type=Path)
    chat.add_argument("text")
    chat.add_argument("--system", default="", help="system prompt")
    chat.add_argument("--max-tokens", type=int, default=256)
    chat.add_argument("--temperature", type=float, help="default: generation_config.json")
    chat.add_argument("--seed", type=int)
    gpu_arguments.add_device_argument(chat)
    gpu_arguments.add_limit_arguments(chat, max_model_len=2048)
    chat.set_defaults(run=_chat)

    doctor = commands.add_parser("doctor", help="check the installation and a model folder")
    doctor.add_argument("model", type=Path, nargs="?")
    gpu_arguments.add_device_argument(doctor)
    gpu_arguments.add_limit_arguments(doctor, max_model_len=2048)
    doctor.add_argument("--no-load", action="store_true", help="look at the folder, do not load it")
    doctor.add_argument("--json", action="store_true", help="print JSON only")
    doctor.set_defaults(run=_doctor)

    plan = commands.add_parser("plan", help="what lies where in GPU memory; needs no GPU")
    gpu_arguments.add_model_arguments(plan)
    gpu_arguments.add_limit_arguments(plan)
    plan.add_argument("--context", type=gpu_arguments.memory, help="measured size of the context")
    plan.add_argument("--json", action="store_true", help="print JSON only")
    plan.set_defaults(run=_plan)

    bench = commands.add_parser("bench", help="measure")
    benches = bench.add_subparsers(required=True, metavar="WHAT")
    commands_of_bench.add_commands(benches)
    return parser


def _convert(arguments: argparse.Namespace) -> int:
    from inference.checkpoint.convert import convert

    report = convert(arguments.source, arguments.out, group_size=arguments.group_size)
    print(
        f"{arguments.out}: {report.num_expert_files} expert files of {report.num_layers} layers "
        f"({report.expert_bytes / 1e6:.1f} MB), backbone {report.backbone_bytes / 1e6:.1f} MB, "
        f"INT4 rounding error {100 * report.expert_error:.1f} % (RMS)"
    )
    return 0


def _chat(arguments: argparse.Namespace) -> int:
    from inference.llm import LLM
    from inference.protocol import Message
    from inference.sampling_params import SamplingParams

    messages = [Message("system", arguments.system)] if arguments.system else []
    messages.append(Message("user", arguments.text))
    params = SamplingParams(
        temperature=arguments.temperature, max_tokens=arguments.max_tokens, seed=arguments.seed
    )
    with LLM(arguments.model, config=gpu_arguments.config_of(arguments)) as llm:
        output = llm.chat(
            messages, params=params, on_text=lambda piece: print(piece, end="", flush=True)
        )
    print()
    print(
        f"[{output.prompt_tokens} prompt tokens, {output.completion_tokens} generated, "
        f"{output.duration_s:.2f} s, {output.finish_reason}]",
        file=sys.stderr,
    )
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from inference.doctor import examine, print_findings

    config = gpu_arguments.config_of(arguments)
    report = examine(arguments.model, config, load=not arguments.no_load)
    if arguments.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        print_findings(report)
    return 0 if report["ok"] else 1


def _plan(arguments: argparse.Namespace) -> int:
    from inference.memory_plan import plan_memory
    from inference.plan_table import plan_table

    geometry = gpu_arguments.geometry_of(arguments)
    config = gpu_arguments.config_of(arguments, device="cuda")
    plan = plan_memory(geometry, config, context_bytes=arguments.context)
    print(json.dumps(plan.to_json()) if arguments.json else plan_table(geometry, config, plan))
    return 0


if __name__ == "__main__":
    sys.exit(main())
