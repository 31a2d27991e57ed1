"""Log-probabilities: of every generated token, with alternatives, always numbers."""
import json
import math

import pytest

from helpers import POCKET, STORY, SUM, ask, body, events, user


def greedy_goldens():
    prompts = json.loads((POCKET / "golden/golden.json").read_text())["prompts"]
    short = [prompt for prompt in prompts if len(prompt["input_ids"]) < 200 and prompt["min_margin"] > 0.05]
    return [prompt for prompt in short if prompt["prompt"].count("<|im_start|>") == 2
            and prompt["prompt"].startswith("<|im_start|>user\n")][:5]


def test_shape(client, model):
    done = ask(client, model, user(SUM), logprobs=True, top_logprobs=5)
    entries = done.choices[0].logprobs.content
    assert len(entries) == done.usage.completion_tokens
    assert b"".join(bytes(entry.bytes) for entry in entries) == b"34 + 55 = 89<|im_end|>"
    for entry in entries:
        assert entry.token == bytes(entry.bytes).decode()
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 5
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.top_logprobs[0].token == entry.token, "greedy takes the first"
        assert entry.top_logprobs[0].logprob == entry.logprob
        assert sum(map(math.exp, values)) <= 1 + 1e-5


def test_counts(client, model):
    for count in (0, 1, 20):
        done = ask(client, model, user(SUM), logprobs=True, top_logprobs=count)
        assert {len(entry.top_logprobs) for entry in done.choices[0].logprobs.content} == {count}
    assert ask(client, model, user(SUM), logprobs=False).choices[0].logprobs is None


@pytest.mark.parametrize("thinking", [False, True])
def test_stream_gives_the_same(client, http, model, thinking):
    more = {"logprobs": True, "top_logprobs": 2, "max_tokens": 100}
    whole = ask(client, model, user(STORY), thinking, **more).choices[0].logprobs.content
    streamed = []
    for text in events(http, body(model, user(STORY), thinking, stream=True, **more))[:-1]:
        logprobs = json.loads(text)["choices"][0]["logprobs"]
        streamed += logprobs["content"] if logprobs else []
    assert streamed == [entry.model_dump() for entry in whole]


def test_temperature_does_not_change_them(client, model):
    """They are the model's, before temperature."""
    cold = ask(client, model, user(SUM), logprobs=True).choices[0].logprobs.content
    hot = ask(client, model, user(SUM), temperature=1.5, seed=3, logprobs=True, extra_body={"top_k": 1})
    assert [entry.logprob for entry in hot.choices[0].logprobs.content] == [entry.logprob for entry in cold]


@pytest.mark.parametrize("golden", greedy_goldens(), ids=lambda golden: golden["id"])
def test_goldens(client, model, golden):
    question = golden["prompt"].removeprefix("<|im_start|>user\n").split("<|im_end|>")[0]
    done = ask(client, model, user(question), golden["thinking"], logprobs=True, top_logprobs=5, max_tokens=64)
    entries = done.choices[0].logprobs.content
    assert done.usage.prompt_tokens == len(golden["input_ids"])
    assert len(entries) == len(golden["greedy_ids"])
    for entry, expected in zip(entries, golden["greedy_top20"]):
        assert entry.logprob == pytest.approx(expected["logprobs"][0], abs=0.05)
