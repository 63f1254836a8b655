"""Errors of the engine.

InferenceError
├── CheckpointError            a model folder cannot be used; names the file and the remedy
│   ├── MissingFileError       a file or shard is not there
│   ├── ArchitectureError      the checkpoint holds a model this engine does not run
│   ├── DamagedFileError       a file cannot be read, or holds NaN or infinite values
│   └── ConfigMismatchError    config.json and the tensors disagree
├── TokenLimitError            the prompt is longer than the context
├── ToolCallSyntaxError        the model wrote a tool call that cannot be parsed
├── GrammarError               a tool schema cannot be turned into a grammar
├── EngineStepError            one step failed, its requests did not finish; retryable
└── EngineStoppedError         the engine thread is gone; retryable after a restart
"""

from __future__ import annotations

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
    """A file cannot be read, or holds NaN or infinite values."""


class ConfigMismatchError(CheckpointError):
    """config.json and the tensors disagree."""


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
