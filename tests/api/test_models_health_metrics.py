"""What is not chat: models, health, metrics."""
import re

import openai
import pytest

from helpers import SUM, ask, metric, metrics, user, wait_until_idle


def test_models(client, http, model):
    listed = client.models.list()
    assert listed.object == "list"
    entry = client.models.retrieve(model)
    assert entry == listed.data[0]
    assert entry.object == "model" and entry.owned_by and entry.created > 1_600_000_000
    raw = http.get("/v1/models").json()["data"][0]
    assert raw["max_model_len"] == raw["meta"]["n_ctx"] > 0
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_health_and_ready(http):
    assert http.get("/health").json() == {"status": "alive"}
    assert http.get("/ready").json() == {"status": "ready"}
    about = http.get("/").json()
    assert about["name"] == "assay"
    assert "/v1/chat/completions" in about["endpoints"]


def test_metrics_are_well_formed(http):
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    typed = set()
    for line in response.text.splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split()[2])
        elif not line.startswith("#"):
            assert re.fullmatch(r"assay:[a-z0-9_]+\{[^{}]*\} \S+", line), line
            float(line.rsplit(" ", 1)[1])
    assert {f"assay:{name}" for name in (
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
        "generation_tokens_total", "num_preemptions_total", "request_success_total", "time_to_first_token_seconds",
        "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_prompt_tokens",
        "request_generation_tokens")} <= typed


def test_metrics_count(client, http, model):
    wait_until_idle(http)
    names = ["prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count",
             "inter_token_latency_seconds_count", "e2e_request_latency_seconds_count", "request_success_total",
             "request_prompt_tokens_sum", "request_generation_tokens_sum"]
    before = {name: metric(http, name) for name in names}
    usage = ask(client, model, user(SUM)).usage
    grown = {name: metric(http, name) - before[name] for name in names}
    assert grown == {"prompt_tokens_total": usage.prompt_tokens, "generation_tokens_total": usage.completion_tokens,
                     "time_to_first_token_seconds_count": 1,
                     "inter_token_latency_seconds_count": usage.completion_tokens - 1,
                     "e2e_request_latency_seconds_count": 1, "request_success_total": 1,
                     "request_prompt_tokens_sum": usage.prompt_tokens,
                     "request_generation_tokens_sum": usage.completion_tokens}


def test_http_statuses_are_counted(http):
    name = 'http_responses_total\\{.*status="404".*'
    http.get("/nothing")
    before = metric(http, name)
    http.get("/nothing")
    assert metric(http, name) == before + 1
    assert all(value >= 0 for value in metrics(http).values())
