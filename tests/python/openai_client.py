"""Talks to a brigade server through the official openai package and checks what comes back.

usage: openai_client.py http://HOST:PORT/v1
"""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
model = client.models.list().data[0].id
question = [{"role": "user", "content": "Who made the heaven?"}]
fixed = {"model": model, "temperature": 0, "max_tokens": 12}


def check(name, condition):
    assert condition, name
    print(f"ok: {name}")


def chat(**more):
    return client.chat.completions.create(messages=question, **{**fixed, **more})


whole = chat()
text = whole.choices[0].message.content
check("chat: an answer", whole.choices[0].message.role == "assistant" and text)
check("chat: usage adds up", whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens)
check("chat: id", whole.id.startswith("chatcmpl-"))

chunks = list(chat(stream=True, stream_options={"include_usage": True}))
streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
check("chat stream: the same text", streamed == text)
check("chat stream: usage at the end", chunks[-1].usage.completion_tokens == whole.usage.completion_tokens)
reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
check("chat stream: one finish reason", reasons == [whole.choices[0].finish_reason])

rated = chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
check("chat logprobs: joined tokens are the text", "".join(t.token for t in rated) == text)
check("chat logprobs: two alternatives", all(len(t.top_logprobs) == 2 for t in rated))

several = chat(n=3, temperature=1.0, seed=7)
check("chat n=3: three choices", [c.index for c in several.choices] == [0, 1, 2])
again = chat(n=3, temperature=1.0, seed=7)
check("chat seed: repeatable", [c.message.content for c in again.choices] == [c.message.content for c in several.choices])

stop = text[4:7]
stopped = chat(stop=stop).choices[0]
check("chat stop: cut before it", stopped.message.content == text[: text.index(stop)] and stopped.finish_reason == "stop")

plain = client.completions.create(prompt="In the beginning", logprobs=2, **fixed)
check("completion: text", plain.choices[0].text and plain.object == "text_completion")
check("completion logprobs: as many as tokens", len(plain.choices[0].logprobs.tokens) == plain.usage.completion_tokens)
pieces = client.completions.create(prompt="In the beginning", stream=True, **fixed)
check("completion stream: the same text", "".join(p.choices[0].text for p in pieces if p.choices) == plain.choices[0].text)

weather = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": weather}}]
free = chat(tools=tools).choices[0]
check("tools: left to the model", free.finish_reason in ("stop", "length", "tool_calls"))
named = {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "weather"}}}
call = chat(**named).choices[0].message.tool_calls[0]
check("tools: a named one is called", (call.type, call.function.name) == ("function", "weather") and call.id)
deltas = [c.choices[0].delta.tool_calls[0] for c in chat(stream=True, **named) if c.choices and c.choices[0].delta.tool_calls]
check("tools stream: the head first", deltas[0].index == 0 and deltas[0].id and deltas[0].function.name == "weather")
check("tools stream: then arguments alone", all(d.id is None and d.function.name is None for d in deltas[1:]))
arguments = "".join(d.function.arguments or "" for d in deltas)
check("tools stream: the same arguments", arguments == call.function.arguments)
turns = question + [
    {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
    {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "rain"}]},
]
check("tools: results go back", client.chat.completions.create(messages=turns, tools=tools, **fixed).choices)
begun = client.chat.completions.create(messages=question + [{"role": "assistant", "content": "In the"}], **fixed)
check("chat: an unfinished answer goes on", begun.choices[0].message.content)

for name, kind, broken in [
    ("bad request", openai.BadRequestError, lambda: chat(temperature=-1)),
    ("tools", openai.BadRequestError, lambda: chat(tools=[{"type": "function"}])),
    ("unknown model", openai.NotFoundError, lambda: client.models.retrieve("no-such-model")),
]:
    try:
        broken()
    except kind as error:
        print(f"ok: {name}: {error.status_code} {error.body['message']}")
    else:
        raise AssertionError(f"{name}: no error")
