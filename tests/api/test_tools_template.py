"""Tools reach the chat template, and its other arguments too."""
import json

import openai
import pytest

from helpers import ask, calls_of, eval_rows, expected_calls, user

ROWS = [row for row in eval_rows() if row["tools"] and row["prompt_tokens"] < 600]


@pytest.mark.parametrize("row", ROWS[::max(1, len(ROWS) // 8)], ids=lambda row: row["id"])
def test_prompt_is_the_template_s(client, model, row):
    done = ask(client, model, row["messages"], row["thinking"], tools=row["tools"], max_tokens=row["max_tokens"])
    assert done.usage.prompt_tokens == row["prompt_tokens"]
    assert calls_of(done.choices[0].message) == expected_calls(row)
    assert bool(expected_calls(row)) == (done.choices[0].message.content is None)


def test_no_tools_and_an_empty_list_are_the_same(client, model):
    counts = {ask(client, model, user("hi"), max_tokens=1, **more).usage.prompt_tokens
              for more in ({}, {"tools": []})}
    assert len(counts) == 1


def test_arguments_may_be_text_or_an_object(client, model):
    arguments = {"city": "Rome", "n": 3}

    def prompt_tokens(value):
        call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": value}}
        return ask(client, model, user("time?") + [{"role": "assistant", "content": None, "tool_calls": [call]},
                                                   {"role": "tool", "tool_call_id": "c1", "content": "10:00"}],
                   max_tokens=1).usage.prompt_tokens

    assert prompt_tokens(json.dumps(arguments)) == prompt_tokens(arguments)


@pytest.mark.parametrize("tools, param", [
    ([{"type": "function"}], "tools[0].function"),
    ([{"type": "function", "function": {}}], "tools[0].function.name"),
    ([{"type": "web_search"}], "tools[0].type")])
def test_broken_tools(client, model, tools, param):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, model, user("hi"), tools=tools)
    assert raised.value.param == param


def test_template_arguments(client, model):
    on = ask(client, model, user("hi"), thinking=True, max_tokens=1).usage.prompt_tokens
    off = ask(client, model, user("hi"), thinking=False, max_tokens=1).usage.prompt_tokens
    bare = ask(client, model, user("hi"), max_tokens=1, extra_body={
        "chat_template_kwargs": {"add_generation_prompt": False}}).usage.prompt_tokens
    assert bare < on < off
