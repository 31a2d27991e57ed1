"""/v1/completions, and the endpoints that only handle text."""
import json
import math

import openai
import pytest

from helpers import POCKET, STORY, SUM_ANSWER, events, user

PROMPT = "<|im_start|>user\nWhat is 34 plus 55?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def complete(client, model, prompt=PROMPT, **more):
    return client.completions.create(model=model, prompt=prompt, **{"temperature": 0, "max_tokens": 50, **more})


def tokenize(http, text):
    return http.post("/tokenize", json={"prompt": text}).json()["tokens"]


def test_shape(client, model):
    done = complete(client, model)
    assert done.object == "text_completion" and done.id.startswith("cmpl-") and done.model == model
    [choice] = done.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, SUM_ANSWER, "stop")
    assert choice.logprobs is None
    assert done.usage.prompt_tokens == 22
    assert done.usage.total_tokens == 22 + done.usage.completion_tokens


def test_default_length(client, model):
    prompt = PROMPT.replace("What is 34 plus 55?", STORY)
    done = client.completions.create(model=model, prompt=prompt, temperature=0)
    assert done.usage.completion_tokens == 16 and done.choices[0].finish_reason == "length"


def test_forms_of_the_prompt(client, http, model):
    ids = tokenize(http, PROMPT)
    for prompt in (PROMPT, ids, [PROMPT], [ids]):
        assert [choice.text for choice in complete(client, model, prompt).choices] == [SUM_ANSWER]
    other = PROMPT.replace("34", "12")
    several = complete(client, model, [PROMPT, other, PROMPT], n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3, 4, 5]
    assert [choice.text for choice in several.choices] == [SUM_ANSWER] * 2 + ["12 + 55 = 67"] * 2 + [SUM_ANSWER] * 2
    assert several.usage.prompt_tokens == 66
    lists = complete(client, model, [ids, tokenize(http, other)])
    assert [choice.text for choice in lists.choices] == [SUM_ANSWER, "12 + 55 = 67"]


def test_nothing_is_added_to_the_prompt(client, model):
    assert complete(client, model, "a", max_tokens=1).usage.prompt_tokens == 1


def test_echo(client, http, model):
    assert complete(client, model, echo=True).choices[0].text == PROMPT + SUM_ANSWER
    assert complete(client, model, tokenize(http, PROMPT), echo=True).choices[0].text == PROMPT + SUM_ANSWER


def goldens():
    prompts = json.loads((POCKET / "golden/golden.json").read_text())["prompts"]
    return [golden for golden in prompts if len(golden["input_ids"]) < 200]


@pytest.mark.parametrize("golden", goldens(), ids=lambda golden: golden["id"])
def test_scoring_a_prompt(client, model, golden):
    """echo with max_tokens 0: the log-probabilities of a text, against transformers' in float32. Questions are text
    that the model was never trained to predict, so bf16 shows in single tokens; stories it was trained on."""
    done = complete(client, model, golden["input_ids"], max_tokens=0, echo=True, logprobs=1)
    [choice] = done.choices
    assert done.usage.completion_tokens == 0
    assert choice.text == golden["prompt"]
    assert choice.logprobs.token_logprobs[0] is None
    assert "".join(choice.logprobs.tokens) == golden["prompt"]
    scored, expected = choice.logprobs.token_logprobs[1:], golden["prompt_logprobs"][1:]
    assert len(scored) == len(expected)
    is_story = golden["id"].startswith("story-forced")
    assert math.fsum(scored) / len(scored) == pytest.approx(math.fsum(expected) / len(expected),
                                                            abs=0.003 if is_story else 0.05)
    if is_story:
        assert scored == pytest.approx(expected, abs=0.2)


@pytest.mark.parametrize("echo", [False, True])
def test_logprobs(client, model, echo):
    done = complete(client, model, logprobs=3, echo=echo)
    logprobs = done.choices[0].logprobs
    count = done.usage.completion_tokens + (22 if echo else 0)
    assert {len(logprobs.tokens), len(logprobs.token_logprobs), len(logprobs.top_logprobs),
            len(logprobs.text_offset)} == {count}
    text = done.choices[0].text
    for token, offset in list(zip(logprobs.tokens, logprobs.text_offset))[:-1]:
        assert text[offset:offset + len(token)] == token
    for token, own, top in list(zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs))[echo:]:
        assert top[token] == own and len(top) in (3, 4)
    assert (logprobs.token_logprobs[0] is None) == echo
    none = complete(client, model, logprobs=0).choices[0].logprobs
    assert none.top_logprobs == [{token: own} for token, own in zip(none.tokens, none.token_logprobs)]


@pytest.mark.parametrize("more", [{}, {"logprobs": 2}, {"echo": True}, {"echo": True, "logprobs": 2}, {"n": 3}])
def test_stream_is_the_same(client, http, model, more):
    whole = complete(client, model, **more)
    request = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 50, "stream": True,
               "stream_options": {"include_usage": True}, **more}
    with http.stream("POST", "/v1/completions", json=request) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole.usage.model_dump(exclude_unset=True)
    for choice in whole.choices:
        mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == choice.index]
        assert "".join(chunk["text"] for chunk in mine) == choice.text
        assert [chunk["finish_reason"] for chunk in mine if chunk["finish_reason"]] == [choice.finish_reason]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset") if "logprobs" in more else ():
            assert sum((c["logprobs"][name] for c in mine if c["logprobs"]), []) == getattr(choice.logprobs, name)


def test_best_of(client, model):
    prompt = PROMPT.replace("What is 34 plus 55?", STORY)
    more = {"temperature": 1, "seed": 9, "max_tokens": 30, "logprobs": 0}
    every = complete(client, model, prompt, n=5, **more)
    best = complete(client, model, prompt, n=2, best_of=5, **more)

    def mean(choice):
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    ranked = sorted(every.choices, key=mean, reverse=True)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.usage.completion_tokens == every.usage.completion_tokens


def test_token_ids_and_prompt_logprobs(http, model):
    reply = http.post("/v1/completions", json={"model": model, "prompt": [PROMPT, "a b"], "temperature": 0,
                                               "max_tokens": 50, "return_token_ids": True, "prompt_logprobs": 1}).json()
    for choice, prompt in zip(reply["choices"], (PROMPT, "a b")):
        assert choice["prompt_token_ids"] == tokenize(http, prompt)
        assert len(choice["prompt_logprobs"]) == len(choice["prompt_token_ids"])
        assert choice["prompt_logprobs"][0] is None
    assert http.post("/detokenize", json={"tokens": reply["choices"][0]["token_ids"]}).json()["content"] == (
        SUM_ANSWER + "<|im_end|>")


def test_stop(client, model):
    done = complete(client, model, stop=[" ="])
    assert done.choices[0].text == "34 + 55" and done.choices[0].finish_reason == "stop"


def test_sampling_fields_reach_it(client, http, model):
    [nine] = tokenize(http, "9")
    assert complete(client, model, logit_bias={str(nine): 100}, max_tokens=4).choices[0].text == "9999"
    assert complete(client, model, presence_penalty=2, frequency_penalty=2).choices[0].text != ""


@pytest.mark.parametrize("more, param", [
    ({"prompt": []}, "prompt"), ({"prompt": {}}, "prompt"), ({"prompt": [10**6]}, "prompt"), ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 21}, "logprobs"), ({"best_of": 0}, "best_of"), ({"n": 3, "best_of": 2}, "best_of"), ({"echo": 1}, "echo"),
    ({"suffix": "x"}, "suffix"), ({"prompt": ""}, "prompt"), ({"temperature": 9}, "temperature"),
    ({"prompt": ["x"] * 20, "n": 20}, "n"), ({"stop_token_ids": [-1]}, "stop_token_ids"), ({"response_format": {"type": "json_object"}}, "response_format")])
def test_refusals(http, model, more, param):
    response = http.post("/v1/completions", json={"model": model, "prompt": "x", **more})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_too_long(client, http, model):
    context = http.get("/v1/models").json()["data"][0]["max_model_len"]
    with pytest.raises(openai.BadRequestError) as raised:
        complete(client, model, [65] * context)
    assert raised.value.code == "context_length_exceeded"


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError):
        complete(client, "nobody")


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokenize_and_back(http, model, prefix):
    for text in ("", "Hello, world!", "Grüße 世界 🙂\n\ttabs", PROMPT):
        reply = http.post(prefix + "/tokenize", json={"model": model, "prompt": text, "return_token_strs": True}).json()
        assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"])
        assert reply["max_model_len"] == http.get("/v1/models").json()["data"][0]["max_model_len"]
        assert http.post(prefix + "/detokenize", json={"tokens": reply["tokens"]}).json()["prompt"] == text
    assert http.post(prefix + "/tokenize", json={"content": "a"}).json()["tokens"] == tokenize(http, "a")


def test_apply_template(http):
    context = {"messages": user("What is 34 plus 55?"), "chat_template_kwargs": {"enable_thinking": False}}
    assert http.post("/apply-template", json=context).json() == {"prompt": PROMPT}
    assert http.post("/tokenize", json=context).json()["tokens"] == tokenize(http, PROMPT)
    bare = http.post("/apply-template", json={**context, "add_generation_prompt": False}).json()["prompt"]
    assert PROMPT.startswith(bare) and bare.endswith("<|im_end|>\n")


@pytest.mark.parametrize("path, request_body, param", [
    ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 5}, "prompt"), ("/tokenize", {"messages": []}, "messages"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ("/detokenize", {"tokens": [10**6]}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/apply-template", {}, "messages"), ("/apply-template", {"messages": [{"role": "system", "content": "x"}]}, "messages"),
    ("/tokenize", {"prompt": "x", "return_token_strs": 1}, "return_token_strs")])
def test_text_endpoints_refuse(http, path, request_body, param):
    response = http.post(path, json=request_body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
