"""Errors of the engine.

InferenceError
├── CheckpointError            a model folder cannot be used; names the file and the remedy
│   ├── MissingFileError       a file or shard is not there
│   ├── ArchitectureError      the checkpoint holds a model this engine does not run
│   ├── DamagedFileError       a file cannot be read, has another checksum, or holds NaN
│   └── ConfigMismatchError    config.json and the tensors disagree
├── DeviceError                the GPU or its memory cannot be used; names the remedy
│   ├── GPUNotFoundError       no GPU, no driver, or the CUDA packages are missing
│   ├── GPUTooOldError         the GPU or its driver is older than the kernels need
│   ├── KernelCompileError     a kernel does not compile, load or launch
│   ├── GPUOutOfMemoryError    the GPU has less free memory than planned
│   ├── PinningError           the system refuses to pin the experts' memory
│   ├── MemoryPlanError        the model does not fit into the memory given
│   └── SlotMismatchError      an expert on the GPU differs from the one on the host
├── MeasurementError           a benchmark cannot measure what it should
├── TokenLimitError            the prompt is longer than the context
├── ToolCallSyntaxError        the model wrote a tool call that cannot be parsed
├── GrammarError               a tool schema cannot be turned into a grammar
├── EngineStepError            one step failed, its requests did not finish; retryable
└── EngineStoppedError         the engine thread is gone; retryable after a restart
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class InferenceError(Exception):
    """Root of all engine errors."""

    retryable = False


class CheckpointError(InferenceError):
    """A model folder cannot be used. ``path`` is the file meant, ``remedy`` what to do."""

    def __init__(self, path: Path | str, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem}; {remedy}")
        self.path = Path(path)
        self.problem = problem
        self.remedy = remedy


class MissingFileError(CheckpointError):
    """A file of the model folder is not there."""


class ArchitectureError(CheckpointError):
    """The checkpoint holds a model this engine does not run."""


class DamagedFileError(CheckpointError):
    """A file cannot be read, has another checksum, or holds NaN or infinite values."""


class ConfigMismatchError(CheckpointError):
    """config.json and the tensors disagree."""


class DeviceError(InferenceError):
    """The GPU or its memory cannot be used. ``problem`` says why, ``remedy`` what to do."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


class GPUNotFoundError(DeviceError):
    """There is no GPU, no driver, or the CUDA packages are missing."""


class GPUTooOldError(DeviceError):
    """The GPU or its driver is older than the kernels need."""


class KernelCompileError(DeviceError):
    """A kernel does not compile, load or launch; ``problem`` holds the compiler's message."""


class GPUOutOfMemoryError(DeviceError):
    """The GPU has less free memory than planned."""


class PinningError(DeviceError):
    """The system refuses to pin the memory that holds the experts."""


class MemoryPlanError(DeviceError):
    """The model does not fit into the memory given; ``remedy`` names the number to change.

    ``remedies`` maps names of ``EngineConfig`` to values with which it fits, one at a time.
    """

    def __init__(
        self, problem: str, remedy: str, remedies: Mapping[str, int | str] | None = None
    ) -> None:
        super().__init__(problem, remedy)
        self.remedies: dict[str, int | str] = dict(remedies or {})


class SlotMismatchError(DeviceError):
    """An expert resident on the GPU differs from the one on the host."""

    def __init__(self, layer: int, expert: int, slot: int) -> None:
        super().__init__(
            f"layer {layer}: expert {expert} in slot {slot} differs from its copy on the host",
            "restart the engine; if it happens again, the memory of the GPU or the host is faulty",
        )
        self.layer = layer
        self.expert = expert
        self.slot = slot


class MeasurementError(InferenceError):
    """A benchmark cannot measure what it should; the message says why."""


class TokenLimitError(InferenceError):
    """The prompt does not fit into ``max_model_len``."""

    def __init__(self, num_tokens: int, max_model_len: int) -> None:
        super().__init__(
            f"the prompt has {num_tokens} tokens, the context holds {max_model_len}; "
            "shorten the history or raise max_model_len"
        )
        self.num_tokens = num_tokens
        self.max_model_len = max_model_len


class ToolCallSyntaxError(InferenceError):
    """The text between ``<tool_call>`` and ``</tool_call>`` is neither Qwen form."""


class GrammarError(InferenceError):
    """A tool schema could not be compiled into a grammar."""


class EngineStepError(InferenceError):
    """A step of the engine failed; the requests in it did not finish, the engine goes on."""

    retryable = True


class EngineStoppedError(InferenceError):
    """The engine thread has stopped; requests in flight did not finish."""

    retryable = True
