"""Official Python clients against a server of the demo model: `clients.py URL`."""

import json
import sys

import anthropic
import litellm
import ollama
import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

from table import Table

URL = sys.argv[1]
MODEL = "demo"
ASK = [{"role": "user", "content": "In the beginning"}]
PLACE = {
    "type": "object",
    "properties": {
        "name": {"enum": ["heaven", "earth"]},
        "day": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["name", "day"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "place", "description": "Names a place.", "parameters": PLACE}}


class Place(BaseModel):
    """A place and a day."""

    name: str = Field(max_length=12)
    day: int = Field(ge=1, le=7)


table = Table()
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none")


def fits(arguments):
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert value["name"] in ("heaven", "earth") and 1 <= value["day"] <= 7, value


def chat():
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=12)
    assert answer.choices[0].message.content and answer.usage.completion_tokens <= 12


def chat_stream():
    events = list(client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=12, stream=True, stream_options={"include_usage": True}))
    assert "".join(e.choices[0].delta.content or "" for e in events if e.choices)
    assert events[-1].usage.prompt_tokens > 0


def chat_tools():
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200)
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls" and call.id and call.function.name == "place"
    fits(call.function.arguments)
    history = ASK + [answer.choices[0].message.model_dump(exclude_none=True),
                     {"role": "tool", "tool_call_id": call.id, "content": "seen"}]
    again = client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL], max_tokens=12)
    assert again.choices[0].message.content is not None


def chat_tools_stream():
    with client.chat.completions.stream(
        model=MODEL, messages=ASK, tools=[TOOL], tool_choice="required", parallel_tool_calls=False,
        max_tokens=200,
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    fits(final.choices[0].message.tool_calls[0].function.arguments)


def chat_parse():
    answer = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=Place, max_tokens=200)
    assert isinstance(answer.choices[0].message.parsed, Place)


def completions():
    answer = client.completions.create(
        model=MODEL, prompt="In the", max_tokens=8, logprobs=2, n=2, extra_body={"return_token_ids": True})
    assert len(answer.choices) == 2 and len(answer.choices[0].logprobs.tokens) == len(answer.choices[0].token_ids)


def responses():
    answer = client.responses.create(model=MODEL, input="In the beginning", max_output_tokens=12)
    assert answer.output_text and answer.usage.output_tokens > 0


def responses_stream():
    with client.responses.stream(model=MODEL, input=ASK, max_output_tokens=12) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created" and "response.output_text.delta" in kinds
    assert kinds[-1] in ("response.completed", "response.incomplete")


def responses_tool():
    tool = {"type": "function", "name": "place", "parameters": PLACE, "strict": True}
    answer = client.responses.create(
        model=MODEL, input=ASK, tools=[tool, {"type": "web_search"}], tool_choice="required",
        parallel_tool_calls=False, max_output_tokens=200)
    fits(next(item for item in answer.output if item.type == "function_call").arguments)


def responses_parse():
    answer = client.responses.parse(model=MODEL, input=ASK, text_format=Place, max_output_tokens=200)
    assert isinstance(answer.output_parsed, Place)


def embeddings():
    answer = client.embeddings.create(model=MODEL, input=["heaven", "earth"])
    length = sum(x * x for x in answer.data[0].embedding)
    assert len(answer.data) == 2 and abs(length - 1) < 1e-4


def models():
    assert any(m.id == MODEL for m in client.models.list()) and client.models.retrieve(MODEL).id == MODEL


def errors():
    try:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 3000}])
        raise AssertionError("a prompt that is too long passed")
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded", error


claude = anthropic.Anthropic(base_url=URL, api_key="none")


def messages():
    answer = claude.messages.create(model=MODEL, max_tokens=12, system="Be brief.", messages=ASK)
    assert answer.content[0].type == "text" and answer.stop_reason in ("end_turn", "max_tokens")


def messages_stream():
    with claude.messages.stream(model=MODEL, max_tokens=12, messages=ASK) as stream:
        text = "".join(stream.text_stream)
        assert text and stream.get_final_message().usage.output_tokens > 0


def messages_tool():
    tool = {"name": "place", "input_schema": PLACE}
    with claude.messages.stream(
        model=MODEL, max_tokens=200, messages=ASK, tools=[tool],
        tool_choice={"type": "tool", "name": "place"},
    ) as stream:
        final = stream.get_final_message()
    call = final.content[-1]
    assert final.stop_reason == "tool_use" and call.type == "tool_use"
    fits(call.input)
    history = ASK + [{"role": "assistant", "content": [block.model_dump() for block in final.content]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "seen"}]}]
    assert claude.messages.create(model=MODEL, max_tokens=8, messages=history, tools=[tool]).content


def count_tokens():
    assert claude.messages.count_tokens(model=MODEL, messages=ASK).input_tokens > 3


lama = ollama.Client(host=URL)


def ollama_list():
    assert any(m.model == MODEL for m in lama.list().models) and lama.show(MODEL).modelinfo


def ollama_chat():
    answer = lama.chat(model=MODEL, messages=ASK, options={"num_predict": 8})
    assert answer.message.content and answer.done
    pieces = list(lama.chat(model=MODEL, messages=ASK, options={"num_predict": 8}, stream=True))
    assert pieces[-1].done and pieces[-1].eval_count > 0


def ollama_format():
    fits(lama.chat(model=MODEL, messages=ASK, format=PLACE, options={"num_predict": 200}).message.content)


def ollama_generate():
    assert lama.generate(model=MODEL, prompt="In the beginning", options={"num_predict": 8}).response


def ollama_embed():
    assert len(lama.embed(model=MODEL, input=["heaven", "earth"]).embeddings) == 2


def lite(**more):
    return litellm.completion(model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="none", messages=ASK, **more)


def litellm_chat():
    assert lite(max_tokens=8).choices[0].message.content
    assert "".join(e.choices[0].delta.content or "" for e in lite(max_tokens=8, stream=True))


def litellm_context():
    try:
        litellm.completion(model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="none",
                           messages=[{"role": "user", "content": "word " * 3000}])
        raise AssertionError("a prompt that is too long passed")
    except litellm.ContextWindowExceededError:
        pass


chain = ChatOpenAI(base_url=f"{URL}/v1", api_key="none", model=MODEL, max_tokens=200)


def langchain_structured():
    assert isinstance(chain.with_structured_output(Place).invoke("In the beginning"), Place)


def langchain_tools():
    bound = chain.bind_tools([TOOL], tool_choice="place")
    fits(bound.invoke("In the beginning").tool_calls[0]["args"])


def langchain_embeddings():
    made = OpenAIEmbeddings(base_url=f"{URL}/v1", api_key="none", model=MODEL, check_embedding_ctx_length=False)
    assert len(made.embed_documents(["heaven", "earth"])) == 2


for name, what, check in [
    ("openai", "chat", chat),
    ("openai", "chat, streamed", chat_stream),
    ("openai", "chat, required call and its result", chat_tools),
    ("openai", "chat, required call, streamed", chat_tools_stream),
    ("openai", "chat, parsed into a model", chat_parse),
    ("openai", "completions, n, logprobs, token ids", completions),
    ("openai", "responses", responses),
    ("openai", "responses, streamed", responses_stream),
    ("openai", "responses, strict tool beside an unknown one", responses_tool),
    ("openai", "responses, parsed into a model", responses_parse),
    ("openai", "embeddings", embeddings),
    ("openai", "models", models),
    ("openai", "a prompt that is too long", errors),
    ("anthropic", "messages", messages),
    ("anthropic", "messages, streamed", messages_stream),
    ("anthropic", "messages, a tool and its result", messages_tool),
    ("anthropic", "count_tokens", count_tokens),
    ("ollama", "list, show", ollama_list),
    ("ollama", "chat, whole and streamed", ollama_chat),
    ("ollama", "chat with a schema", ollama_format),
    ("ollama", "generate", ollama_generate),
    ("ollama", "embed", ollama_embed),
    ("litellm", "chat, whole and streamed", litellm_chat),
    ("litellm", "ContextWindowExceededError", litellm_context),
    ("langchain", "with_structured_output", langchain_structured),
    ("langchain", "bind_tools", langchain_tools),
    ("langchain", "embeddings", langchain_embeddings),
]:
    table.call(name, what, check)
table.end()
