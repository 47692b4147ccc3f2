"""Requests as agent programs send them, one after the other: `recorded.py URL`.

The bodies are cut to what matters: the fields, their shapes and their order are those that the programs send; prompts
and tools are shorter. Every answer must be a success with what the program reads of it.
"""

import json
import sys
import urllib.error
import urllib.request

from table import Table

URL = sys.argv[1]
table = Table()


def post(path, body, headers=None):
    """Status, content type and text of an answer."""
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {
        "content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers["content-type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["content-type"], error.read().decode()


def events(text):
    """The objects of a stream."""
    lines = (line[6:] for line in text.splitlines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def tool(name):
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"],
                  "additionalProperties": False}
    return {"name": name, "description": "Reads a file.", "parameters": parameters}


def codex():
    """An empty probe, a first turn, and a turn with a call and its output."""
    with urllib.request.urlopen(f"{URL}/v1/models") as answer:
        assert isinstance(json.load(answer)["models"], list)
    base = {
        "model": "gpt-5-codex", "instructions": "You are Codex.", "store": False, "stream": True,
        "tools": [{"type": "function", "strict": False, **tool("shell")}, {"type": "web_search"},
                  {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}}],
        "tool_choice": "auto", "parallel_tool_calls": False, "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "medium", "summary": "auto"}, "prompt_cache_key": "k",
        "text": {"verbosity": "medium"}, "max_output_tokens": 12,
    }
    status, _, text = post("/v1/responses", {**base, "input": []})
    assert status == 200 and events(text)[-1]["type"] == "response.completed", text
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list the files"}]}
    call = [
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        {"type": "function_call", "name": "shell", "arguments": "{\"path\":\".\"}", "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a b"},
    ]
    for items in ([user], [user, *call]):
        status, kind, text = post("/v1/responses", {**base, "input": items}, {"openai-beta": "responses=experimental"})
        assert status == 200 and kind.startswith("text/event-stream"), text
        last = events(text)[-1]["response"]
        assert last["usage"]["input_tokens"] > 0 and last["output"], last
    status, _, text = post("/v1/responses", {**base, "input": [user], "previous_response_id": "resp_1"})
    assert status == 400 and json.loads(text)["error"]["param"] == "previous_response_id", text


def claude_code():
    """Two turns whose billing lines differ: the second begins with the state of the first."""
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14"}

    def turn(billing, messages):
        body = {
            "model": "claude-sonnet-4-5", "max_tokens": 12, "stream": True, "temperature": 1,
            "metadata": {"user_id": "u"}, "thinking": {"type": "disabled"},
            "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={billing};"},
                       {"type": "text", "text": "You are Claude Code. " * 8, "cache_control": {"type": "ephemeral"}}],
            "messages": messages,
            "tools": [{"name": "Read", "description": "d", "input_schema": tool("x")["parameters"]}],
        }
        status, _, text = post("/v1/messages?beta=true", body, headers)
        assert status == 200, text
        return events(text)

    first = [{"role": "user", "content": [{"type": "text", "text": "list the files",
                                           "cache_control": {"type": "ephemeral"}}]}]
    kinds = [event["type"] for event in turn("00a1", first)]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "ping" in kinds, kinds
    second = first + [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "."}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a b"}]},
    ]
    end = next(event for event in turn("ffee", second) if event["type"] == "message_delta")
    assert end["usage"]["cache_read_input_tokens"] > 40, end
    status, _, text = post("/v1/messages/count_tokens?beta=true", {"model": "claude-sonnet-4-5", "messages": second}, headers)
    assert status == 200 and json.loads(text)["input_tokens"] > 0, text


def roo():
    """Streamed chats with tools and parts that are marked for caches."""
    body = {
        "model": "demo", "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        "max_completion_tokens": 12, "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": [{"type": "function", "function": {**tool("read_file"), "strict": True}}],
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "You are Roo.", "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": [{"type": "text", "text": "list the files"},
                                         {"type": "text", "text": "now", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": "{\"path\":\".\"}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "a b"},
        ],
    }
    status, _, text = post("/v1/chat/completions", body)
    assert status == 200 and text.rstrip().endswith("data: [DONE]"), text
    assert events(text)[-1]["usage"]["completion_tokens"] > 0


def open_webui():
    """The connection's check, a title in JSON, a chat with reasoning sent back."""
    request = urllib.request.Request(f"{URL}/v1/models", headers={"authorization": "Bearer x"})
    with urllib.request.urlopen(request) as answer:
        model = json.load(answer)["data"][0]["id"]
    title = {"model": model, "stream": False, "max_completion_tokens": 1000,
             "messages": [{"role": "user", "content": "Give a title as JSON: {\"title\": ...}"}]}
    status, _, text = post("/v1/chat/completions", title)
    assert status == 200 and json.loads(text)["choices"][0]["message"]["role"] == "assistant", text
    chat = {
        "model": model, "stream": True, "max_tokens": 12, "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": tool("fetch_url")}],
        "messages": [{"role": "user", "content": "hi"},
                     {"role": "assistant", "content": "hello", "reasoning_content": "a greeting"},
                     {"role": "user", "content": "and?"}],
    }
    status, _, text = post("/v1/chat/completions", chat)
    assert status == 200 and events(text)[0]["choices"][0]["delta"]["role"] == "assistant", text


for name, what, check in [
    ("Codex", "probe, turn, call and output", codex),
    ("Claude Code", "two turns, the prefix is reused", claude_code),
    ("Roo", "streamed chat with tools", roo),
    ("Open WebUI", "check, title, chat", open_webui),
]:
    table.call(name, what, check)
table.end()
