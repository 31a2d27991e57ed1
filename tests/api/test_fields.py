"""Fields that change how tokens are chosen, when a choice ends, and what is returned."""
import json
import math

import openai
import pytest

from helpers import STORY, SUM, SUM_ANSWER, ask, body, events, user, wait_until_idle


def ids_of(http, text):
    return http.post("/tokenize", json={"prompt": text}).json()["tokens"]


def extra(**more):
    return {"extra_body": more}


def text_of(done):
    return done.choices[0].message.content


def test_n(client, model):
    done = ask(client, model, user(STORY), n=4, temperature=1, seed=5, max_tokens=60)
    assert [choice.index for choice in done.choices] == [0, 1, 2, 3]
    texts = [choice.message.content for choice in done.choices]
    assert len(set(texts)) > 1
    assert done.usage.completion_tokens == 4 * 60
    assert done.usage.prompt_tokens == ask(client, model, user(STORY), max_tokens=1).usage.prompt_tokens
    for index, text in enumerate(texts):
        """Choice i is what seed + i alone gives, although the prompt was run once for all."""
        alone = ask(client, model, user(STORY), temperature=1, seed=5 + index, max_tokens=60)
        assert text_of(alone) == text


def test_n_with_a_long_prompt_gives_the_bits_of_solo_runs(client, http, model):
    question = user("Here are words. " * 60 + SUM)
    more = {"temperature": 1, "seed": 40, "max_tokens": 30, "logprobs": True, "top_logprobs": 3}
    together = ask(client, model, question, n=5, **more)
    assert together.usage.prompt_tokens > 200
    for index, choice in enumerate(together.choices):
        alone = ask(client, model, question, **{**more, "seed": 40 + index})
        assert [entry.model_dump() for entry in choice.logprobs.content] == [
            entry.model_dump() for entry in alone.choices[0].logprobs.content]
    wait_until_idle(http)


def test_n_streamed(http, model):
    request = body(model, user(STORY), n=3, temperature=1, seed=5, max_tokens=30)
    whole = http.post("/v1/chat/completions", json=request).json()
    data = events(http, {**request, "stream": True, "stream_options": {"include_usage": True}})
    assert data[-1] == "[DONE]"
    chunks = [json.loads(text) for text in data[:-1]]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    for index in range(3):
        mine = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == whole["choices"][index]["message"]["content"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["length"] and mine[-1]["delta"] == {}


def test_n_choices_end_at_their_own_time(client, model):
    done = ask(client, model, user(STORY), n=6, temperature=1, seed=3, stop=["forest", "river"], max_tokens=250)
    assert len({len(choice.message.content) for choice in done.choices}) > 1


def test_logit_bias(client, http, model):
    eight = ids_of(http, "8")
    assert len(eight) == 1
    assert "8" not in text_of(ask(client, model, user(SUM), logit_bias={str(eight[0]): -100}, max_tokens=40))
    nines = text_of(ask(client, model, user(SUM), logit_bias={str(ids_of(http, "9")[0]): 100}, max_tokens=8))
    assert nines == "9" * 8


def test_logprobs_stay_the_models(client, http, model):
    """A bias changes the choice, not what the model thinks of it."""
    more = {"logprobs": True, "top_logprobs": 5, "max_tokens": 1}
    plain = ask(client, model, user(SUM), **more).choices[0].logprobs.content[0]
    second = plain.top_logprobs[1]
    [token] = ids_of(http, second.token)
    biased = ask(client, model, user(SUM), logit_bias={str(token): 100}, **more).choices[0].logprobs.content[0]
    assert biased.token == second.token
    assert biased.logprob == second.logprob
    assert biased.top_logprobs == plain.top_logprobs


def test_penalties_follow_openai_s_formula(client, model):
    """The greedy choice under a penalty is the largest of the model's logits less the penalty, step by step."""
    presence, frequency = 2.0, 1.5
    done = ask(client, model, user(STORY), presence_penalty=presence, frequency_penalty=frequency, max_tokens=80,
               logprobs=True, top_logprobs=20)
    counts, changed = {}, 0
    for entry in done.choices[0].logprobs.content:
        def penalised(top):
            count = counts.get(bytes(top.bytes), 0)
            return top.logprob - presence * (count > 0) - frequency * count

        best = max(entry.top_logprobs, key=penalised)
        if penalised(best) > min(map(penalised, entry.top_logprobs[-1:])):
            assert bytes(entry.bytes) == bytes(best.bytes)
        changed += best is not entry.top_logprobs[0]
        counts[bytes(entry.bytes)] = counts.get(bytes(entry.bytes), 0) + 1
    assert changed >= 3


def test_repetition_penalty(client, model):
    plain = text_of(ask(client, model, user(STORY), max_tokens=120))
    penalised = text_of(ask(client, model, user(STORY), max_tokens=120, **extra(repetition_penalty=1.5)))
    neutral = text_of(ask(client, model, user(STORY), max_tokens=120, **extra(repetition_penalty=1.0)))
    assert neutral == plain != penalised

    def distinct(text):
        return len(set(text.split())) / len(text.split())

    assert distinct(penalised) > distinct(plain)
    assert text_of(ask(client, model, user(STORY), max_tokens=120, **extra(repetition_penalty=1.5))) == penalised


def test_min_tokens(client, model):
    short = ask(client, model, user(SUM))
    count = short.usage.completion_tokens
    long = ask(client, model, user(SUM), max_tokens=count + 20, **extra(min_tokens=count + 10))
    assert long.usage.completion_tokens >= count + 10
    assert text_of(long).startswith(SUM_ANSWER)
    late = ask(client, model, user(SUM), stop=["34", "55"], **extra(min_tokens=2))
    assert text_of(late) == "34 + ", "the stop string within the first tokens does not count"


def test_ignore_eos(client, model):
    count = ask(client, model, user(SUM)).usage.completion_tokens
    done = ask(client, model, user(SUM), max_tokens=count + 5, **extra(ignore_eos=True))
    assert done.choices[0].finish_reason == "length"
    assert done.usage.completion_tokens == count + 5


def test_stop_token_ids(client, http, model):
    [token] = ids_of(http, " =")
    done = ask(client, model, user(SUM), **extra(stop_token_ids=[token]))
    assert text_of(done) == "34 + 55"
    assert done.choices[0].finish_reason == "stop"
    assert done.choices[0].stop_reason == token
    kept = ask(client, model, user(SUM), **extra(stop_token_ids=[token], include_stop_str_in_output=True))
    assert text_of(kept) == "34 + 55 ="


def test_include_stop_str_in_output(client, model):
    for stop in (" = ", "55", "5 ="):
        done = ask(client, model, user(SUM), stop=stop, **extra(include_stop_str_in_output=True))
        assert text_of(done) == SUM_ANSWER[:SUM_ANSWER.index(stop)] + stop
        assert done.choices[0].stop_reason == stop


def test_skip_special_tokens(client, model):
    done = ask(client, model, user(SUM), max_tokens=20, **extra(skip_special_tokens=False, ignore_eos=True))
    assert text_of(done).startswith(SUM_ANSWER + "<|im_end|>")


def test_return_token_ids(http, model):
    request = body(model, user(SUM), return_token_ids=True)
    reply = http.post("/v1/chat/completions", json=request).json()
    prompt = http.post("/tokenize", json={k: request[k] for k in ("messages", "chat_template_kwargs")}).json()["tokens"]
    assert reply["prompt_token_ids"] == prompt
    ids = reply["choices"][0]["token_ids"]
    assert len(ids) == reply["usage"]["completion_tokens"]
    assert http.post("/detokenize", json={"tokens": ids}).json()["prompt"] == SUM_ANSWER + "<|im_end|>"
    chunks = [json.loads(text) for text in events(http, {**request, "stream": True})[:-1]]
    assert chunks[0]["prompt_token_ids"] == prompt
    assert sum((chunk["choices"][0].get("token_ids", []) for chunk in chunks), []) == ids
    assert "token_ids" not in http.post("/v1/chat/completions", json=body(model, user(SUM))).json()["choices"][0]


def test_prompt_logprobs(http, model):
    request = body(model, user(SUM), prompt_logprobs=2, return_token_ids=True)
    reply = http.post("/v1/chat/completions", json=request).json()
    scored, ids = reply["prompt_logprobs"], reply["prompt_token_ids"]
    assert len(scored) == len(ids) and scored[0] is None
    for entry, token in zip(scored[1:], ids[1:]):
        own = entry[str(token)]
        assert own["logprob"] <= 0 and len(entry) in (2, 3)
        ranked = sorted((one for one in entry.values() if one["rank"]), key=lambda one: one["rank"])
        assert [one["rank"] for one in ranked[:2]] == [1, 2]
        assert ranked[0]["logprob"] >= ranked[1]["logprob"]
    assert reply["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("format", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x"}}])
def test_response_format(client, model, format):
    assert text_of(ask(client, model, user(SUM), response_format={"type": "text"})) == SUM_ANSWER
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, model, user(SUM), response_format=format)
    assert raised.value.param == "response_format"
    assert "not supported yet" in raised.value.message


def test_fields_of_no_effect(client, model):
    done = ask(client, model, user(SUM), user="me", metadata={"a": "b"}, store=False, service_tier="auto")
    assert text_of(done) == SUM_ANSWER
