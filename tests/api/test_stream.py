"""The order of chunks, and what each may hold."""
import json
import time

import httpx
import pytest

from helpers import STORY, SUM, SUM_ANSWER, ask, body, eval_rows, events, fields, metric, user, wait_until_idle


def test_the_client_reads_it(client, model):
    stream = client.chat.completions.create(stream=True, **fields(model, user(SUM)))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == SUM_ANSWER


def test_order_with_thinking_and_usage(http, model):
    data = events(http, body(model, user("106 + 4 = "), thinking=True, stream=True,
                             stream_options={"include_usage": True}))
    assert data[-1] == "[DONE]"
    chunks = [json.loads(text) for text in data[:-1]]
    assert {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks} == {
        (chunks[0]["id"], "chat.completion.chunk", chunks[0]["created"], model)}
    *deltas, finish, usage = chunks
    assert deltas[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    kinds = []
    for chunk in deltas[1:]:
        choice = chunk["choices"][0]
        assert choice["index"] == 0 and choice["finish_reason"] is None and "usage" not in chunk
        assert set(choice["delta"]) in ({"content"}, {"reasoning", "reasoning_content"})
        assert "" not in choice["delta"].values()
        kinds.append("content" if "content" in choice["delta"] else "reasoning")
    assert kinds == sorted(kinds, reverse=True), "all reasoning comes before all content"
    assert kinds[0] == "reasoning" and kinds[-1] == "content"
    assert finish["choices"][0]["delta"] == {}
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in finish
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens_details"]["reasoning_tokens"] > 10


def test_no_usage_unasked(http, model):
    for options in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": None}):
        data = events(http, body(model, user(SUM), stream=True, **options))
        assert data[-1] == "[DONE]"
        assert not any("usage" in text for text in data)
        assert json.loads(data[-2])["choices"][0]["finish_reason"] == "stop"


def test_exactly_one_finish(http, model):
    for more, reason in (({}, "stop"), ({"max_tokens": 3}, "length"), ({"stop": ["55"]}, "stop")):
        chunks = [json.loads(text) for text in events(http, body(model, user(SUM), stream=True, **more))[:-1]]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"][0]["finish_reason"]] == [
            reason]


@pytest.mark.parametrize("thinking", [False, True])
def test_same_as_whole(client, http, model, thinking):
    for messages, more in ((user(STORY), {"max_tokens": 300}), (user("106 + 4 = "), {}), (user(SUM), {"stop": "55"})):
        whole = ask(client, model, messages, thinking, **more)
        chunks = [json.loads(text) for text in events(http, body(
            model, messages, thinking, stream=True, stream_options={"include_usage": True}, **more))[:-1]]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert "".join(delta.get("content", "") for delta in deltas) == whole.choices[0].message.content
        assert "".join(delta.get("reasoning", "") for delta in deltas) == (whole.choices[0].message.reasoning or "")
        assert chunks[-1]["usage"] == whole.usage.model_dump(exclude_unset=True)
        assert chunks[-2]["choices"][0]["finish_reason"] == whole.choices[0].finish_reason
        assert chunks[-2]["choices"][0]["stop_reason"] == whole.choices[0].stop_reason


def test_tokens_arrive_one_by_one(http, model):
    data = events(http, body(model, user(STORY), stream=True, max_tokens=60))
    assert len(data) > 20


def test_whole_characters_only(http, model):
    """Characters of several bytes come from several tokens, and never in parts."""
    row = next(row for row in eval_rows() if row["family"] == "copy" and not row["thinking"]
               and any(ord(letter) > 0x2E80 for letter in row["answer"]))
    chunks = [json.loads(text) for text in events(http, body(model, row["messages"], stream=True))[:-1]]
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(pieces) == row["answer"]
    assert not any("\ufffd" in piece for piece in pieces)


def test_hanging_up_cancels(url, http, model):
    wait_until_idle(http)
    before = metric(http, "generation_tokens_total")
    with httpx.Client(base_url=url, timeout=60) as other:
        with other.stream("POST", "/v1/chat/completions", json=body(model, user(STORY), stream=True)) as response:
            lines = response.iter_lines()
            for _ in range(6):
                next(lines)
    wait_until_idle(http)
    assert metric(http, "generation_tokens_total") - before < 150, "the story has more than 200 tokens"


def test_hanging_up_without_a_stream_cancels(url, http, model):
    wait_until_idle(http)
    aborted = metric(http, 'request_success_total\\{finished_reason="abort".*')
    with httpx.Client(base_url=url, timeout=httpx.Timeout(60, read=0.02)) as other:
        with pytest.raises(httpx.ReadTimeout):
            other.post("/v1/chat/completions", json=body(model, user("x " * 1000), max_tokens=4000, stop=[]))
    wait_until_idle(http)
    deadline = time.monotonic() + 10
    while metric(http, 'request_success_total\\{finished_reason="abort".*') == aborted:
        assert time.monotonic() < deadline
        time.sleep(0.02)
