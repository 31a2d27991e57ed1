"""Company changes nothing: 32 streams at once, a third of them hanging up, the others as if alone."""
import asyncio

import openai
import pytest

from helpers import STORY, eval_rows, fields, metric, user, wait_until_idle

STREAMS = 32


def requests(model):
    """Mixed lengths of prompts and answers, greedy and sampled; every third will hang up."""
    rows = sorted((row for row in eval_rows() if row["prompt_tokens"] < 700 and not row["tools"]),
                  key=lambda row: row["prompt_tokens"])
    picked = [rows[i * (len(rows) - 1) // (STREAMS - 1)] for i in range(STREAMS)]
    made = []
    for i, row in enumerate(picked):
        common = {"logprobs": True, "top_logprobs": 2, "stream": True}
        if i % 3 == 0:
            made.append(fields(model, user(STORY), **common))
        elif i % 3 == 1:
            made.append(fields(model, row["messages"], row["thinking"], max_tokens=row["max_tokens"], **common))
        else:
            made.append(fields(model, user(STORY) if i % 2 else row["messages"], max_tokens=40 + 4 * i, seed=i,
                               **common) | {"temperature": 0.9})
    return made


async def stream(client, request, hang_up_after=None):
    """(tokens with log-probabilities, finish reason); (None, None) after hanging up."""
    entries, reason, count = [], None, 0
    async with await client.chat.completions.create(**request) as chunks:
        async for chunk in chunks:
            count += 1
            if hang_up_after and count == hang_up_after:
                return None, None
            choice = chunk.choices[0]
            if choice.logprobs:
                entries += [(entry.token, entry.logprob, [(top.token, top.logprob) for top in entry.top_logprobs])
                            for entry in choice.logprobs.content]
            reason = choice.finish_reason or reason
    return entries, reason


async def run_alone_and_together(url, made):
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=240) as client:
        alone = {i: await stream(client, request) for i, request in enumerate(made) if i % 3}
        together = await asyncio.gather(*(stream(client, request, None if i % 3 else 3 + i)
                                          for i, request in enumerate(made)))
    return alone, together


@pytest.mark.timeout(600)
def test_streams_in_company_equal_streams_alone(url, http, model):
    wait_until_idle(http)
    made = requests(model)
    alone, together = asyncio.run(run_alone_and_together(url, made))
    assert len(alone) == STREAMS - (STREAMS + 2) // 3
    for i, solo in alone.items():
        assert len(solo[0]) > 1 and solo[1] in ("stop", "length")
        assert together[i] == solo, f"stream {i} differs in company"
    wait_until_idle(http)
    assert metric(http, "kv_pages_used") == 0
    assert metric(http, "state_slots_used") == 0
    assert metric(http, "num_requests_running") == 0
