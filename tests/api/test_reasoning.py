"""Reasoning apart from content, by the prompt's end."""
import pytest

from helpers import SUM, SUM_ANSWER, ask, eval_rows, user

THINKING = [row for row in eval_rows() if row["thinking"] and row["prompt_tokens"] < 200 and not row["tools"]][::97]


def test_off(client, model):
    message = ask(client, model, user(SUM), thinking=False).choices[0].message
    assert message.content == SUM_ANSWER
    assert message.reasoning_content is None and message.reasoning is None


@pytest.mark.parametrize("row", THINKING, ids=lambda row: row["id"])
def test_on(client, model, row):
    done = ask(client, model, row["messages"], thinking=True, max_tokens=row["max_tokens"])
    message = done.choices[0].message
    assert message.content == row["answer"]
    reasoning = row["target"].split("</think>")[0]
    assert message.reasoning.strip() == reasoning.strip()
    assert message.reasoning_content == message.reasoning
    assert 0 < done.usage.completion_tokens_details.reasoning_tokens < done.usage.completion_tokens


def test_on_is_the_template_s_default(client, model):
    done = client.chat.completions.create(model=model, messages=user("106 + 4 = "), temperature=0)
    assert done.choices[0].message.reasoning
    assert done.choices[0].message.content == "106 + 4 = 110"


def test_cut_within_reasoning(client, model):
    done = ask(client, model, user("106 + 4 = "), thinking=True, max_tokens=5)
    assert done.choices[0].finish_reason == "length"
    assert done.choices[0].message.reasoning
    assert done.choices[0].message.content == ""
    assert done.usage.completion_tokens_details.reasoning_tokens == 5


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_both_names_are_read(client, model, name):
    """An assistant's turn behind the last question keeps its reasoning in the prompt, whatever its name."""
    call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": '{"city": "Rome"}'}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "10:00"}
    question = user("What time is it in Rome?")

    def prompt_tokens(more):
        return ask(client, model, question + [turn | more, answer], max_tokens=1).usage.prompt_tokens

    assert prompt_tokens({name: "the user asks for the time of a city"}) > prompt_tokens({})
