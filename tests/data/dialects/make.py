"""Writes outputs.json: answers as models of each family write them, and what they mean.

Each family is a function from a meaning (reasoning, text, calls, text behind) to the text that its models
write. The functions follow the formats that the families' public templates document, and share nothing with
the parser that is tested. Run after a change: `python3 make.py`.
"""

import json
import pathlib

here = pathlib.Path(__file__).parent


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("ping"),
    tool(
        "get_weather",
        city={"type": "string"},
        unit={"enum": ["celsius", "fahrenheit"]},
        days={"type": "integer"},
        detailed={"type": "boolean"},
    ),
    tool("write_file", path={"type": "string"}, content={"type": "string"}, mode={"type": ["string", "null"]}),
    tool(
        "search",
        query={"type": "string"},
        filters={"type": "object"},
        tags={"type": "array", "items": {"type": "string"}},
        limit={"anyOf": [{"type": "integer"}, {"type": "null"}]},
        score={"type": "number"},
    ),
]


def say(text, **more):
    return {"text": text, **more}


def calls(*pairs, **more):
    return {"calls": [[name, arguments] for name, arguments in pairs], **more}


W = "get_weather"
CODE = 'def f(x):\n\tif x < 1 and x > -1:\n\t\treturn "a\\n" + \'b\'\n    # done\n'
HTML = '<ul class="x">\n  <li>1 &amp; 2</li>\n</ul>'

MEANINGS = [
    say("Hello! How can I help?"),
    say("It is 3 < 5, and a[0] == {}: `x <- y`, \"quoted\".\n\n- one\n- two"),
    say("Grüße, 東京 — 🙂👩‍👩‍👧 \u0645\u0631\u062d\u0628\u0627."),
    say("The answer is 4.", reasoning="2 + 2 is 4."),
    say("Short.", reasoning="First I think.\n\nThen <b>more</b>: {\"a\": [1]}.\nDone"),
    calls((W, {"city": "Paris"})),
    calls(("ping", {})),
    calls((W, {"city": "Paris", "unit": "celsius", "days": 3, "detailed": True})),
    calls((W, {"city": "Oslo", "detailed": False}), text="Let me look that up."),
    calls((W, {"city": "Oslo"}), text="Two lines\nof text, then a call: "),
    calls((W, {"city": "Rome"}), reasoning="The user wants the weather."),
    calls((W, {"city": "Rome"}), reasoning="Think.", text="One moment."),
    calls((W, {"city": "Paris"}), (W, {"city": "London", "days": 2})),
    calls((W, {"city": "A"}), ("ping", {}), ("search", {"query": "b"})),
    calls(("ping", {}), ("ping", {}), reasoning="Twice."),
    calls(("search", {"query": "q", "filters": {"a": {"b": [1, {"c": None}]}, "d": "e"}})),
    calls(("search", {"query": "x", "tags": ["a", "b, c", "d'e"], "limit": None, "score": -1.5})),
    calls(("search", {"query": "", "filters": {}, "tags": []})),
    calls(("search", {"query": "big", "limit": 0, "score": 2.5e-07})),
    calls((W, {"city": "Zürich, 東京 🙂"})),
    calls((W, {"city": "He said \"no\" and left"})),
    calls((W, {"city": "C:\\temp\\new"})),
    calls(("write_file", {"path": "a.py", "content": CODE})),
    calls(("write_file", {"path": "a.html", "content": HTML, "mode": None})),
    calls(("write_file", {"path": "/tmp/x y", "content": "123"})),
    calls(("write_file", {"path": "true", "content": "{\"a\": 1}", "mode": "w"})),
    calls(("write_file", {"path": "p", "content": "  two  spaces  "}), text="Écrire."),
    calls(("write_file", {"path": "p", "content": "a\n\nb\n"})),
    calls(("search", {"query": "a) b, c=d [e] {f}: g"})),
    calls(("search", {"query": "x", "filters": {"text": "a } b ] c \" d"}})),
    calls(("search", {"query": "x", "filters": {"list": [[1, 2], [3, [4]]], "flag": True, "n": 12345678901234}})),
    calls((W, {"city": "Paris"}), behind="I have asked."),
    calls((W, {"city": "Paris"}), ("ping", {}), text="Before.", behind="After, with a < b."),
]


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def think(m, body, close="\n</think>\n\n", open="<think>\n"):
    return open + m["reasoning"] + close + body if m.get("reasoning") else body


def around(m, written, between="\n"):
    """Text, calls and the text behind, as most formats put them."""
    parts = [m["text"]] if m.get("text") else []
    parts += [written] if written else []
    parts += [m["behind"]] if m.get("behind") else []
    return between.join(parts)


def as_objects(m, name="name", arguments="arguments"):
    return [dumps({name: n, arguments: a}) for n, a in m.get("calls", [])]


def hermes(m):
    return think(m, around(m, "\n".join(f"<tool_call>\n{c}\n</tool_call>" for c in as_objects(m))))


def raw(value):
    return value if isinstance(value, str) else dumps(value)


def tags(m, call, argument, join="\n"):
    out = []
    for name, arguments in m.get("calls", []):
        inner = "".join(argument(k, v) for k, v in arguments.items())
        out.append(call(name, inner))
    return join.join(out)


def qwen_coder(m):
    written = tags(
        m,
        lambda n, i: f"<tool_call>\n<function={n}>\n{i}</function>\n</tool_call>",
        lambda k, v: f"<parameter={k}>\n{raw(v)}\n</parameter>\n",
    )
    return think(m, around(m, written))


def seed(m):
    written = tags(
        m,
        lambda n, i: f"<seed:tool_call>\n<function={n}>\n{i}</function>\n</seed:tool_call>",
        lambda k, v: f"<parameter={k}>{raw(v)}</parameter>\n",
    )
    return think(m, around(m, written), "</seed:think>\n", "<seed:think>")


def glm(m):
    written = tags(
        m,
        lambda n, i: f"<tool_call>{n}\n{i}</tool_call>",
        lambda k, v: f"<arg_key>{k}</arg_key>\n<arg_value>{raw(v)}</arg_value>\n",
    )
    return think(m, around(m, written), "</think>\n", "\n<think>")


def minimax(m):
    inner = tags(
        m,
        lambda n, i: f'<invoke name="{n}">\n{i}</invoke>\n',
        lambda k, v: f'<parameter name="{k}">{raw(v)}</parameter>\n',
        "",
    )
    written = f"<minimax:tool_call>\n{inner}</minimax:tool_call>" if inner else ""
    # The prompt has opened the reasoning.
    return (m.get("reasoning", "") + "\n</think>\n\n") + around(m, written)


def dsml(m):
    t = "｜DSML｜"
    inner = tags(
        m,
        lambda n, i: f'<{t}invoke name="{n}">\n{i}</{t}invoke>\n',
        lambda k, v: f'<{t}parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">'
        f"{raw(v)}</{t}parameter>\n",
        "",
    )
    written = f"<{t}function_calls>\n{inner}</{t}function_calls>" if inner else ""
    return think(m, around(m, written, "\n\n"), "</think>", "<think>")


def deepseek(m):
    written = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{dumps(a)}\n```<｜tool▁call▁end｜>"
        for n, a in m.get("calls", [])
    )
    written = f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>" if written else ""
    return m.get("reasoning", "") + "\n</think>\n\n" + around(m, written, "")


def deepseek31(m):
    written = "".join(
        f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumps(a)}<｜tool▁call▁end｜>" for n, a in m.get("calls", [])
    )
    written = f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>" if written else ""
    return think(m, around(m, written, ""), "</think>", "<think>")


def kimi(m):
    written = "".join(
        f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{dumps(a)}<|tool_call_end|>"
        for i, (n, a) in enumerate(m.get("calls", []))
    )
    written = f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>" if written else ""
    return think(m, around(m, written, ""), "</think>", "<think>")


def kimi3(m):
    if m.get("behind"):
        return None

    def pair(name, inner, attributes=""):
        return f"<|open|>{name}{attributes}<|sep|>{inner}<|close|>{name}<|sep|>"

    def kind(value):
        for types, name in [(bool, "boolean"), (str, "string"), ((int, float), "number"), (dict, "object"), (list, "array")]:
            if isinstance(value, types):
                return name
        return "null"

    calls = ""
    for index, (name, arguments) in enumerate(m.get("calls", []), 1):
        inner = "".join(
            pair("argument", raw(v), f' key="{k}" type="{kind(v)}"') for k, v in arguments.items()
        )
        calls += pair("call", inner, f' tool="{name}" index="{index}"')
    answer = pair("response", m.get("text", "")) + (pair("tools", calls) if calls else "")
    return m.get("reasoning", "") + "<|close|>think<|sep|>" + answer + "<|close|>message<|sep|>"


def llama(m):
    if m.get("text") or m.get("reasoning") or m.get("behind"):
        return m["text"] if not m.get("calls") and not m.get("reasoning") else None
    return "; ".join(as_objects(m, arguments="parameters"))


def python_calls(m):
    return [
        f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in m.get("calls", [])
    ]


def llama_python(m):
    if m.get("text") or m.get("reasoning") or m.get("behind"):
        return m["text"] if not m.get("calls") and not m.get("reasoning") else None
    return f"[{', '.join(python_calls(m))}]"


def lfm(m):
    written = f"<|tool_call_start|>[{', '.join(python_calls(m))}]<|tool_call_end|>" if m.get("calls") else ""
    return think(m, around(m, written), "</think>", "<think>")


def olmo(m):
    if m.get("reasoning"):
        return None
    written = "<function_calls>" + "\n".join(python_calls(m)) + "</function_calls>" if m.get("calls") else ""
    return around(m, written)


def mistral_list(m):
    if m.get("reasoning") or m.get("behind"):
        return None
    written = f"[TOOL_CALLS][{', '.join(as_objects(m))}]" if m.get("calls") else ""
    return around(m, written, "")


def mistral_ids(m):
    if m.get("reasoning") or m.get("behind"):
        return None
    written = "".join(
        f"[TOOL_CALLS]{n}[CALL_ID]abcdef00{i}[ARGS]{dumps(a)}" for i, (n, a) in enumerate(m.get("calls", []))
    )
    return around(m, written, "")


def mistral(m):
    if m.get("behind"):
        return None
    written = "".join(f"[TOOL_CALLS]{n}[ARGS]{dumps(a)}" for n, a in m.get("calls", []))
    return think(m, around(m, written, ""), "[/THINK]", "[THINK]")


def gpt_oss(m):
    parts = []
    if m.get("reasoning"):
        parts.append("<|channel|>analysis<|message|>" + m["reasoning"])
    text = m.get("text")
    if text and m.get("calls"):
        parts.append("<|channel|>commentary<|message|>" + text)
    for name, arguments in m.get("calls", []):
        parts.append(f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(arguments)}")
    if m.get("behind"):
        return None
    if text and not m.get("calls"):
        parts.append("<|channel|>final<|message|>" + text)
    return "<|end|><|start|>assistant".join(parts)


def granite(m):
    if m.get("behind"):
        return None
    written = f"<|tool_call|>[{', '.join(as_objects(m))}]" if m.get("calls") else ""
    body = around(m, written)
    return f"<think>{m['reasoning']}</think><response>{body}</response>" if m.get("reasoning") else body


def nemotron(m):
    written = f"<TOOLCALL>[{', '.join(as_objects(m))}]</TOOLCALL>" if m.get("calls") else ""
    return think(m, around(m, written))


def functionary31(m):
    if m.get("reasoning"):
        return None
    written = "".join(f"<function={n}>{dumps(a)}</function>" for n, a in m.get("calls", []))
    return around(m, written, "")


def functionary32(m):
    if m.get("reasoning") or m.get("behind"):
        return None
    parts = ["all\n" + m["text"]] if m.get("text") else []
    parts += [f"{n}\n{dumps(a)}" for n, a in m.get("calls", [])]
    return ">>>".join(parts)


def command(m):
    if m.get("behind"):
        return None
    objects = [
        dumps({"tool_call_id": str(i), "tool_name": n, "parameters": a})
        for i, (n, a) in enumerate(m.get("calls", []))
    ]
    out = f"<|START_THINKING|>{m['reasoning']}<|END_THINKING|>" if m.get("reasoning") else ""
    if m.get("text"):
        out += f"<|START_RESPONSE|>{m['text']}<|END_RESPONSE|>"
    return out + (f"<|START_ACTION|>[\n    {(','+chr(10)+'    ').join(objects)}\n]<|END_ACTION|>" if objects else "")


def apertus(m):
    objects = [dumps({n: a}) for n, a in m.get("calls", [])]
    written = f"<|tools_prefix|>[{', '.join(objects)}]<|tools_suffix|>" if objects else ""
    return think(m, around(m, written, ""), "<|inner_suffix|>", "<|inner_prefix|>")


FAMILIES = {
    "apertus": apertus,
    "command": command,
    "deepseek": deepseek,
    "deepseek31": deepseek31,
    "dsml": dsml,
    "functionary31": functionary31,
    "functionary32": functionary32,
    "glm": glm,
    "gpt_oss": gpt_oss,
    "granite": granite,
    "hermes": hermes,
    "kimi": kimi,
    "kimi3": kimi3,
    "lfm": lfm,
    "llama": llama,
    "llama_python": llama_python,
    "minimax": minimax,
    "mistral": mistral,
    "mistral_ids": mistral_ids,
    "mistral_list": mistral_list,
    "nemotron": nemotron,
    "olmo": olmo,
    "qwen_coder": qwen_coder,
    "seed": seed,
}

# What the prompt of a family ends with, where that counts for the answer.
BEGINS = {
    "deepseek": "<think>",
    "functionary32": ">>>",
    "kimi3": "<|open|>think<|sep|>",
    "minimax": "<think>",
}

outputs = {}
for family, write in FAMILIES.items():
    rows = []
    for number, meaning in enumerate(MEANINGS):
        text = write(meaning)
        if text is not None:
            rows.append([number, text])
    outputs[family] = rows

with open(here / "outputs.json", "w", encoding="utf-8") as file:
    row = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    file.write('{"tools":' + row(TOOLS) + ',\n"begins":' + row(BEGINS) + ',\n"meanings":[\n')
    file.write(",\n".join(map(row, MEANINGS)) + '],\n"outputs":{')
    for at, (family, rows) in enumerate(outputs.items()):
        file.write((",\n" if at else "\n") + row(family) + ":[\n" + ",\n".join(map(row, rows)) + "]")
    file.write("}}\n")
print({family: len(rows) for family, rows in outputs.items()}, sum(map(len, outputs.values())))
