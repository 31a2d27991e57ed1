"""Tool calls, as the OpenAI client sees them."""
import json

import openai
import pytest

from helpers import SUM, SUM_ANSWER, ask, body, calls_of, eval_rows, events, expected_calls, fields, user

ROWS = [row for row in eval_rows() if row["family"] in ("toolcall", "toolmulti", "toolanswer")]
WITH_CALLS = [row for row in ROWS if expected_calls(row)]
PARALLEL = next(row for row in WITH_CALLS if len(expected_calls(row)) == 2 and not row["thinking"])
ONE = next(row for row in WITH_CALLS if len(expected_calls(row)) == 1 and not row["thinking"])


def test_there_are_enough():
    assert len(ROWS) > 100 and len(WITH_CALLS) >= 70
    assert sum(len(expected_calls(row)) > 1 for row in WITH_CALLS) > 10


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_calls_are_the_expected_ones(client, model, row):
    done = ask(client, model, row["messages"], row["thinking"], tools=row["tools"], max_tokens=row["max_tokens"])
    choice, calls = done.choices[0], expected_calls(row)
    assert calls_of(choice.message) == calls
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    assert bool(choice.message.reasoning) == row["thinking"]
    if not calls:
        assert choice.message.content.strip() == row["answer"]
        return
    assert choice.message.content is None
    assert {call.type for call in choice.message.tool_calls} == {"function"}
    ids = [call.id for call in choice.message.tool_calls]
    assert len(set(ids)) == len(ids) and all(id.startswith("call_") for id in ids)


@pytest.mark.parametrize("row", WITH_CALLS[::6] + [PARALLEL], ids=lambda row: row["id"])
def test_stream(http, model, row):
    data = events(http, body(model, row["messages"], row["thinking"], tools=row["tools"], stream=True))
    chunks = [json.loads(text)["choices"][0] for text in data[:-1]]
    calls = []
    for chunk in chunks:
        for call in chunk["delta"].get("tool_calls", []):
            if "id" in call:
                assert set(call) == {"index", "id", "type", "function"} and call["type"] == "function"
                assert call["index"] == len(calls) and call["function"]["arguments"] == ""
                calls.append([call["function"]["name"], ""])
            else:
                assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                assert call["index"] == len(calls) - 1 and call["function"]["arguments"]
                calls[-1][1] += call["function"]["arguments"]
        assert "content" not in chunk["delta"] or chunk["delta"].get("role")
    assert [(name, json.loads(arguments)) for name, arguments in calls] == expected_calls(row)
    assert chunks[-1]["delta"] == {} and chunks[-1]["finish_reason"] == "tool_calls"
    assert sum(chunk["finish_reason"] is not None for chunk in chunks) == 1


def test_arguments_arrive_in_pieces(http, model):
    row = next(row for row in WITH_CALLS if any(len(str(v)) > 20 for v in expected_calls(row)[0][1].values()))
    data = events(http, body(model, row["messages"], row["thinking"], tools=row["tools"], stream=True))
    assert sum("arguments" in text for text in data) > 4


def test_the_client_s_stream_helper(client, model):
    with client.chat.completions.stream(**fields(model, PARALLEL["messages"], tools=PARALLEL["tools"])) as stream:
        final = stream.get_final_completion()
    assert calls_of(final.choices[0].message) == expected_calls(PARALLEL)


def test_a_whole_conversation(client, model):
    """The call goes back as it came, with a result; the model answers from it."""
    row = next(row for row in ROWS if row["family"] == "toolanswer" and not row["thinking"]
               and len(row["messages"]) == 3 and row["messages"][1].get("tool_calls"))
    question, assistant, result = row["messages"]
    call = assistant["tool_calls"][0]["function"]
    first = ask(client, model, [question], tools=row["tools"]).choices[0].message
    assert calls_of(first) == [(call["name"], call["arguments"])]
    answer = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": result["content"]}
    second = ask(client, model, [question, first.model_dump(exclude_none=True), answer], tools=row["tools"])
    assert second.choices[0].message.content.strip() == row["answer"]
    assert second.usage.prompt_tokens == row["prompt_tokens"]


def test_a_call_cut_off_is_still_json(client, model):
    for count in range(1, 40, 3):
        done = ask(client, model, ONE["messages"], tools=ONE["tools"], max_tokens=count)
        if done.choices[0].finish_reason == "length":
            for _, arguments in calls_of(done.choices[0].message):
                assert isinstance(arguments, dict)


def test_none(client, model):
    done = ask(client, model, user(SUM), tools=ONE["tools"], tool_choice="none")
    assert done.choices[0].message.content == SUM_ANSWER
    assert not done.choices[0].message.tool_calls
    assert done.usage.prompt_tokens == ask(client, model, user(SUM)).usage.prompt_tokens


def test_auto_is_the_default(client, model):
    done = ask(client, model, ONE["messages"], tools=ONE["tools"], tool_choice="auto")
    assert calls_of(done.choices[0].message) == expected_calls(ONE)


@pytest.mark.parametrize("thinking", [False, True])
def test_required(client, model, thinking):
    done = ask(client, model, ONE["messages"], thinking, tools=ONE["tools"], tool_choice="required")
    assert calls_of(done.choices[0].message) == expected_calls(ONE)
    assert done.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("tool", ONE["tools"], ids=lambda tool: tool["function"]["name"])
def test_named(http, model, tool):
    name = tool["function"]["name"]
    request = body(model, ONE["messages"], tools=ONE["tools"], max_tokens=200,
                   tool_choice={"type": "function", "function": {"name": name}})
    choice = http.post("/v1/chat/completions", json=request).json()["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == [name]
    assert isinstance(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]), dict)
    assert choice["finish_reason"] == "stop"
    streamed = [json.loads(text)["choices"][0] for text in events(http, {**request, "stream": True})[:-1]]
    deltas = [call["function"] for chunk in streamed for call in chunk["delta"].get("tool_calls", [])]
    assert deltas[0] == {"name": name, "arguments": ""}
    assert "".join(delta["arguments"] for delta in deltas) == choice["message"]["tool_calls"][0]["function"]["arguments"]


def test_named_must_exist(client, model):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, model, user(SUM), tools=ONE["tools"], tool_choice={"type": "function", "function": {"name": "no"}})
    assert raised.value.param == "tool_choice"


def test_no_parallel_calls(client, http, model):
    both = expected_calls(PARALLEL)
    done = ask(client, model, PARALLEL["messages"], tools=PARALLEL["tools"], parallel_tool_calls=False)
    assert calls_of(done.choices[0].message) == both[:1]
    assert done.choices[0].finish_reason == "tool_calls"
    data = events(http, body(model, PARALLEL["messages"], tools=PARALLEL["tools"], parallel_tool_calls=False, stream=True))
    assert sum('"id":"call_' in text for text in data) == 1


def test_n_choices_have_calls_of_their_own(client, model):
    done = ask(client, model, PARALLEL["messages"], tools=PARALLEL["tools"], n=3)
    assert [calls_of(choice.message) for choice in done.choices] == [expected_calls(PARALLEL)] * 3
    assert len({call.id for choice in done.choices for call in choice.message.tool_calls}) == 6
