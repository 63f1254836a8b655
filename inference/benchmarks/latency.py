"""``python -m inference bench latency``: what one answer costs, everything included.

Measures through ``LLM.chat``: template, tokenizer, mask, sampling, hand-over between threads.
Prints a table; the last line is JSON.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from inference.benchmarks.random_model import write_random_model
from inference.llm import LLM
from inference.protocol import ChatOutput, Message, ToolSpec
from inference.sampling_params import SamplingParams

SENTENCE = "表 sales_data 列 region product quarter price quantity；华东 2023-Q3 SELECT。"
TOOL = ToolSpec(
    "sql_query",
    "在公司数据库执行一条只读SELECT",
    {
        "type": "object",
        "properties": {
            "sql": {"type": "string"},
            "chart": {"type": "string", "enum": ["bar", "line", "share", "none"]},
        },
        "required": ["sql"],
        "additionalProperties": False,
    },
)


@dataclass(frozen=True)
class LatencyReport:
    """Medians over the repeats; milliseconds per event, tokens per second."""

    model: str
    num_threads: int
    prompt_tokens: int
    prefill_ms: float
    second_prompt_new_tokens: int
    second_prefill_ms: float
    decode_ms: float
    sampled_decode_ms: float
    decode_tok_s: float
    batch: int
    batch_tok_s: float
    expert_hit_rate: float


def run(
    model_dir: Path | None,
    *,
    prompt_tokens: int = 800,
    new_tokens: int = 128,
    batch: int = 4,
    repeats: int = 5,
    expert_cache_slots: int | None = None,
) -> LatencyReport:
    """Measure ``model_dir``, or a random model of the demo's shape made on the spot."""
    if model_dir is None:
        with tempfile.TemporaryDirectory(prefix="random-moe-") as folder:
            write_random_model(Path(folder))
            return _measure(
                Path(folder),
                "random",
                (prompt_tokens, new_tokens, batch, repeats, expert_cache_slots),
            )
    return _measure(
        model_dir, model_dir.name, (prompt_tokens, new_tokens, batch, repeats, expert_cache_slots)
    )


def _measure(
    model_dir: Path, name: str, sizes: tuple[int, int, int, int, int | None]
) -> LatencyReport:
    prompt_tokens, new_tokens, batch, repeats, slots = sizes
    greedy = SamplingParams(temperature=0.0, max_tokens=new_tokens)
    sampled = SamplingParams(
        temperature=0.7, top_p=0.9, top_k=20, max_tokens=new_tokens, seed=1, max_thinking_tokens=0
    )
    colds: list[ChatOutput] = []
    warms: list[ChatOutput] = []
    randoms: list[ChatOutput] = []
    with LLM(model_dir, max_num_seqs=batch, expert_cache_slots=slots) as llm:
        for repeat in range(repeats):
            # A different first line every time, so that nothing of the prompt is cached.
            prompt = system_message(llm, f"第{repeat}次", prompt_tokens)
            colds.append(llm.chat([prompt, Message("user", "一")], (TOOL,), greedy))
            warms.append(llm.chat([prompt, Message("user", "二，华北呢？")], (TOOL,), greedy))
            randoms.append(llm.chat([prompt, Message("user", "三")], (TOOL,), sampled))
        batch_tok_s = _batched(llm, prompt, greedy, batch)
        stats = llm.stats
    decode_ms = statistics.median(map(_decode_ms, colds + warms))
    return LatencyReport(
        model=name,
        num_threads=stats.num_threads,
        prompt_tokens=colds[-1].prompt_tokens,
        prefill_ms=statistics.median(1e3 * out.time_to_first_token_s for out in colds),
        second_prompt_new_tokens=warms[-1].prompt_tokens - warms[-1].cached_tokens,
        second_prefill_ms=statistics.median(1e3 * out.time_to_first_token_s for out in warms),
        decode_ms=decode_ms,
        sampled_decode_ms=statistics.median(map(_decode_ms, randoms)),
        decode_tok_s=1e3 / decode_ms,
        batch=batch,
        batch_tok_s=batch_tok_s,
        expert_hit_rate=stats.expert_cache.hit_rate,
    )


def system_message(llm: LLM, head: str, num_tokens: int) -> Message:
    """A system message beginning with ``head`` that makes a prompt of ``num_tokens`` or more."""
    text = head + SENTENCE
    while llm.count_tokens([Message("system", text)], (TOOL,)) < num_tokens:
        text += SENTENCE
    return Message("system", text)


def _decode_ms(output: ChatOutput) -> float:
    steps = max(1, output.completion_tokens - 1)
    return 1e3 * (output.duration_s - output.time_to_first_token_s) / steps


def _batched(llm: LLM, prompt: Message, params: SamplingParams, batch: int) -> float:
    """Tokens per second of ``batch`` answers decoded together, prefix cached."""
    outputs: list[ChatOutput] = []

    def ask(number: int) -> None:
        messages = [prompt, Message("user", f"{number}")]
        outputs.append(llm.chat(messages, (TOOL,), params))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(batch)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(out.completion_tokens for out in outputs) / (time.perf_counter() - start)


def print_report(report: LatencyReport) -> None:
    """The table, then one line of JSON."""
    rows = [
        (f"prefill, {report.prompt_tokens} tokens, cold", f"{report.prefill_ms:.1f} ms"),
        (
            f"prefill, {report.second_prompt_new_tokens} new tokens after a cached prefix",
            f"{report.second_prefill_ms:.1f} ms",
        ),
        ("decode, batch 1, greedy", f"{report.decode_ms:.2f} ms/token"),
        ("decode, batch 1, top-k/top-p sampling", f"{report.sampled_decode_ms:.2f} ms/token"),
        (f"decode, batch {report.batch}", f"{report.batch_tok_s:.0f} tokens/s"),
        ("expert cache hit rate", f"{report.expert_hit_rate:.3f}"),
        ("threads", str(report.num_threads)),
    ]
    for label, value in rows:
        print(f"{label:<55}{value:>20}")
    print(json.dumps({key: _rounded(value) for key, value in asdict(report).items()}))


def _rounded(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value
