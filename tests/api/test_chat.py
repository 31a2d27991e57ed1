"""Whole chat completions."""
import random

import pytest

from helpers import STORY, SUM, SUM_ANSWER, ask, body, calls_of, eval_rows, expected_calls, user


def test_answer_and_shape(client, model):
    done = ask(client, model, user(SUM))
    assert done.object == "chat.completion"
    assert done.id.startswith("chatcmpl-")
    assert done.model == model
    assert done.system_fingerprint
    choice = done.choices[0]
    assert len(done.choices) == 1 and choice.index == 0
    assert choice.message.role == "assistant"
    assert choice.message.content == SUM_ANSWER
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    assert done.usage.prompt_tokens == 22
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
    assert done.usage.prompt_tokens_details.cached_tokens == 0
    assert done.usage.completion_tokens_details.reasoning_tokens == 0


def sample_rows():
    rows = [row for row in eval_rows() if row["prompt_tokens"] < 400]
    families = sorted({row["family"] for row in rows})
    pick = random.Random(1)
    return [pick.choice([row for row in rows if row["family"] == family]) for family in families]


@pytest.mark.parametrize("row", sample_rows(), ids=lambda row: row["id"])
def test_known_answers(client, model, row):
    more = {"tools": row["tools"]} if row["tools"] else {}
    done = ask(client, model, row["messages"], thinking=row["thinking"], max_tokens=row["max_tokens"], **more)
    assert done.usage.prompt_tokens == row["prompt_tokens"]
    message, calls = done.choices[0].message, expected_calls(row) if row["tools"] else []
    assert calls_of(message) == calls
    assert done.choices[0].finish_reason == ("tool_calls" if calls else "stop")
    assert (message.content is None) if calls else (message.content.strip() == row["answer"])


def test_content_parts_are_joined(client, model):
    parts = [{"type": "text", "text": "What is 34"}, {"type": "text", "text": " plus 55?"}]
    assert ask(client, model, [{"role": "user", "content": parts}]).choices[0].message.content == SUM_ANSWER


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_length(client, model, name):
    done = ask(client, model, user(STORY), **{name: 5})
    assert done.choices[0].finish_reason == "length"
    assert done.usage.completion_tokens == 5


def test_newer_name_of_max_tokens_wins(client, model):
    done = ask(client, model, user(STORY), max_tokens=9, max_completion_tokens=4)
    assert done.usage.completion_tokens == 4


def test_stop_string(client, model):
    done = ask(client, model, user(SUM), stop=" = ")
    assert done.choices[0].message.content == "34 + 55"
    assert done.choices[0].finish_reason == "stop"
    assert done.choices[0].stop_reason == " = "


def test_first_of_several_stop_strings(client, model):
    done = ask(client, model, user(SUM), stop=["89", "55", "never"])
    assert done.choices[0].message.content == "34 + "
    assert done.choices[0].stop_reason == "55"


def test_natural_end_has_no_stop_reason(client, model):
    assert ask(client, model, user(SUM), stop=["never"]).choices[0].stop_reason is None


def test_same_seed_same_story(client, model):
    def story(seed):
        return ask(client, model, user(STORY), temperature=1, seed=seed, max_tokens=80).choices[0].message.content

    assert story(11) == story(11)
    assert len({story(seed) for seed in range(6)}) > 1


def test_without_a_seed_stories_differ(client, model):
    stories = {ask(client, model, user(STORY), temperature=1, max_tokens=80).choices[0].message.content
               for _ in range(6)}
    assert len(stories) > 1


def test_top_k_1_is_greedy(client, model):
    greedy = ask(client, model, user(STORY), max_tokens=60).choices[0].message.content
    for seed in range(3):
        top_1 = ask(client, model, user(STORY), temperature=1, seed=seed, max_tokens=60, extra_body={"top_k": 1})
        assert top_1.choices[0].message.content == greedy
        min_p = ask(client, model, user(STORY), temperature=1, seed=seed, max_tokens=60, extra_body={"min_p": 1.0})
        assert min_p.choices[0].message.content == greedy


def test_unknown_fields_are_ignored(http, model):
    response = http.post("/v1/chat/completions", json=body(model, user(SUM), no_such_field={"x": [1]}, logit_bias=None))
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == SUM_ANSWER


def test_exact_members_of_the_body(http, model):
    reply = http.post("/v1/chat/completions", json=body(model, user(SUM))).json()
    assert list(reply) == ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"]
    assert list(reply["choices"][0]) == ["index", "message", "logprobs", "finish_reason", "stop_reason"]
    message = reply["choices"][0]["message"]
    assert message["refusal"] is None and message["tool_calls"] == []
