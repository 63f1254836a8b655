"""``python -m inference bench start``: process start to the first token.

Owns the child process that is timed and the two clocks. The parent stamps the time before it
starts the child; the child loads the model and asks for one token. ``python -m
inference.benchmarks.start ...`` is that child. Files are read once before, so that they lie in
the page cache.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from inference.config import EngineConfig
from inference.errors import MeasurementError

_READ_BYTES = 16 * 2**20


@dataclass(frozen=True)
class StartReport:
    """Seconds since the process was started at the end of each stage."""

    model: str
    device: str
    imported_s: float
    loaded_s: float
    warm_s: float
    first_token_s: float
    cached_bytes: int


def run(model_dir: Path, arguments: Sequence[str], config: EngineConfig) -> StartReport:
    """Time a fresh process; ``arguments`` are those of ``config`` for its command line.

    Raises ``MeasurementError`` when the child fails; its message stands on standard error.
    """
    cached = read_files(model_dir)
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "inference.benchmarks.start", str(model_dir), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MeasurementError("the engine did not start; its message stands above")
    stamps = json.loads(done.stdout.strip().splitlines()[-1])
    return StartReport(
        model=model_dir.name,
        device=config.device,
        cached_bytes=cached,
        **{name: stamp - began for name, stamp in stamps.items()},
    )


def read_files(model_dir: Path) -> int:
    """Read every file of the folder once; returns their bytes."""
    size = 0
    for path in sorted(model_dir.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                while piece := file.read(_READ_BYTES):
                    size += len(piece)
    return size


def print_report(report: StartReport) -> None:
    """The stages, then one line of JSON."""
    stages = [
        ("modules imported", report.imported_s),
        ("model loaded", report.loaded_s),
        ("engine warm", report.warm_s),
        ("first token", report.first_token_s),
    ]
    print(f"{report.model} on {report.device}, {report.cached_bytes / 1e9:.1f} GB in page cache")
    for label, seconds in stages:
        print(f"{label:<24}{seconds:>10.2f} s")
    record = {key: round(v, 3) if isinstance(v, float) else v for key, v in asdict(report).items()}
    print(json.dumps(record))


def main(arguments: Sequence[str]) -> int:
    """The child: load, warm up, one token; prints the time of day after each stage."""
    import argparse

    from inference import gpu_arguments
    from inference.errors import InferenceError
    from inference.llm import LLM
    from inference.protocol import Message
    from inference.sampling_params import SamplingParams

    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    gpu_arguments.add_device_argument(parser)
    gpu_arguments.add_limit_arguments(parser)
    read = parser.parse_args(arguments)
    stamps = {"imported_s": time.time()}
    try:
        llm = LLM(read.model, config=gpu_arguments.config_of(read))
        stamps["loaded_s"] = time.time()
        with llm:
            stamps["warm_s"] = time.time()
            llm.chat([Message("user", "你好")], params=SamplingParams(max_tokens=1))
            stamps["first_token_s"] = time.time()
            # The process is over for the parent now; ending it takes memory back, not time.
            print(json.dumps(stamps), flush=True)
    except InferenceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
