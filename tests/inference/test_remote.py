"""The client of OpenAI-compatible endpoints, against a real HTTP server on this machine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from inference.errors import EngineStepError, EngineStoppedError, TokenLimitError
from inference.protocol import Message, ToolCall, ToolSpec
from inference.remote import RemoteModel
from inference.sampling_params import SamplingParams

TOOL = ToolSpec("sql_query", "查询", {"type": "object", "properties": {"sql": {"type": "string"}}})
ASK = [Message("system", "你是胡同"), Message("user", "今年销售额")]


class Endpoint(ThreadingHTTPServer):
    """Answers every POST with ``script``: a status and the events, or a body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.body = b""
        self.asked: list[dict[str, Any]] = []
        self.authorization = ""

    def say(self, *deltas: dict[str, Any], finish: str = "stop", usage: Any = None) -> None:
        events: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
        events.append({"choices": [{"delta": {}, "finish_reason": finish}]})
        events.append({"choices": [], "usage": usage})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self.body = "".join([*lines, "data: [DONE]\n\n"]).encode()


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.asked.append({"path": self.path, **json.loads(self.rfile.read(length))})
        self.server.authorization = self.headers.get("Authorization", "")
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def model(endpoint: Endpoint) -> RemoteModel:
    return RemoteModel(f"http://127.0.0.1:{endpoint.server_port}/v1", "some-model", api_key="k")


def test_words_in_pieces(endpoint: Endpoint, model: RemoteModel) -> None:
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    endpoint.say({"reasoning_content": "想"}, {"content": "共"}, {"content": "3单"}, usage=usage)
    pieces: list[str] = []
    output = model.chat(ASK, (TOOL,), SamplingParams(temperature=0.0), on_text=pieces.append)
    assert (output.text, output.reasoning, output.finish_reason) == ("共3单", "想", "stop")
    assert pieces == ["共", "3单"]
    assert (output.prompt_tokens, output.cached_tokens, output.completion_tokens) == (7, 3, 2)
    asked = endpoint.asked[0]
    assert asked["path"] == "/v1/chat/completions"
    assert asked["model"] == "some-model"
    assert asked["temperature"] == 0.0
    assert asked["tools"] == [TOOL.to_openai()]
    assert asked["messages"][1] == {"role": "user", "content": "今年销售额"}
    assert endpoint.authorization == "Bearer k"


def test_a_call_in_pieces(endpoint: Endpoint, model: RemoteModel) -> None:
    endpoint.say(
        {"tool_calls": [{"index": 0, "function": {"name": "sql_query", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"sql": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"SELECT 1"}'}}]},
        finish="tool_calls",
    )
    output = model.chat(ASK, (TOOL,))
    assert output.tool_calls == (ToolCall("sql_query", {"sql": "SELECT 1"}),)
    assert output.finish_reason == "tool_calls"


def test_arguments_that_are_no_json_are_malformed(endpoint: Endpoint, model: RemoteModel) -> None:
    endpoint.say(
        {"tool_calls": [{"index": 0, "function": {"name": "sql_query", "arguments": "{"}}]}
    )
    output = model.chat(ASK, (TOOL,))
    assert output.tool_calls == ()
    assert output.malformed_tool_call == "sql_query {"


def test_results_name_the_calls_they_answer(endpoint: Endpoint, model: RemoteModel) -> None:
    endpoint.say({"content": "好"})
    calls = (ToolCall("sql_query", {"sql": "a"}), ToolCall("sql_query", {"sql": "b"}))
    said = [*ASK, Message("assistant", "", calls), Message("tool", "1"), Message("tool", "2")]
    model.chat(said)
    messages = endpoint.asked[0]["messages"]
    ids = [call["id"] for call in messages[2]["tool_calls"]]
    assert [m["tool_call_id"] for m in messages[3:]] == ids
    assert len(set(ids)) == 2


def test_a_prompt_that_is_too_long(endpoint: Endpoint, model: RemoteModel) -> None:
    endpoint.status, endpoint.body = 400, b'{"error": "maximum context length is 10"}'
    with pytest.raises(TokenLimitError):
        model.chat(ASK)


@pytest.mark.parametrize(("status", "error"), [(401, EngineStepError), (503, EngineStoppedError)])
def test_refusals(
    endpoint: Endpoint, model: RemoteModel, status: int, error: type[Exception]
) -> None:
    endpoint.status, endpoint.body = status, b"no"
    with pytest.raises(error, match=str(status)):
        model.chat(ASK)


def test_nobody_listens() -> None:
    with pytest.raises(EngineStoppedError):
        RemoteModel("http://127.0.0.1:9/v1", "m").chat(ASK)


def test_cancelled_and_late(endpoint: Endpoint, model: RemoteModel) -> None:
    endpoint.say({"content": "一"}, {"content": "二"})
    assert model.chat(ASK, cancelled=lambda: True).finish_reason == "cancelled"
    assert model.chat(ASK, deadline_s=time.monotonic()).finish_reason == "deadline"


def test_events_that_are_no_json(endpoint: Endpoint, model: RemoteModel) -> None:
    endpoint.body = b"data: <html>\n\n"
    with pytest.raises(EngineStepError):
        model.chat(ASK)
