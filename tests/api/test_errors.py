"""What is refused, and how."""
import socket

import httpx
import openai
import pytest

from helpers import SUM, ask, body, user


@pytest.mark.parametrize("field, value", [
    ("temperature", -1), ("temperature", "hot"), ("temperature", 3), ("top_p", 1.5), ("top_p", "x"),
    ("max_tokens", 0), ("max_tokens", "ten"), ("max_completion_tokens", -1), ("n", 0), ("n", 129), ("n", "two"), ("seed", 1.5),
    ("stop", 7), ("stop", [""]), ("stop", ["x"] * 17), ("logprobs", "yes"), ("top_logprobs", 21),
    ("stream_options", {"include_usage": True}), ("top_k", -5), ("min_p", 2), ("tools", "hammer"), ("messages", []),
    ("messages", "hi"), ("model", 5), ("chat_template_kwargs", 1),
    ("presence_penalty", 3), ("frequency_penalty", -2.1), ("repetition_penalty", 0), ("logit_bias", [1]),
    ("logit_bias", {str(10**6): 1}), ("min_tokens", -1), ("ignore_eos", "yes"), ("stop_token_ids", [10**6]),
    ("stop_token_ids", 5), ("include_stop_str_in_output", 1), ("skip_special_tokens", 1), ("return_token_ids", 1),
    ("prompt_logprobs", 21), ("response_format", {"type": "json_object"}), ("grammar", "root ::= x"), ("regex", "a*"),
    ("guided_json", {}), ("structured_outputs", {}), ("tool_choice", "required"), ("parallel_tool_calls", 2),
    ("functions", [{}])])
def test_invalid_fields(http, model, field, value):
    request = body(model, user(SUM))
    if field == "top_logprobs":
        request["logprobs"] = True
    request[field] = value
    response = http.post("/v1/chat/completions", json=request)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    assert field in error["message"]


def test_the_client_raises(client, model):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, model, user(SUM), max_tokens=0)
    assert raised.value.param == "max_tokens"
    assert raised.value.type == "invalid_request_error"


def test_errors_of_a_stream_are_real_statuses(http, model):
    response = http.post("/v1/chat/completions", json=body(model, user(SUM), stream=True, max_tokens=0))
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as raised:
        ask(client, "no-such-model", user(SUM))
    assert raised.value.code == "model_not_found"
    assert raised.value.type == "not_found_error"


def test_too_long_a_prompt_names_both_numbers(client, http, model):
    context = http.get("/v1/models").json()["data"][0]["max_model_len"]
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, model, user("many words " * context))
    assert raised.value.code == "context_length_exceeded"
    assert str(context) in raised.value.message
    numbers = [int(word) for word in raised.value.message.split() if word.isdigit()]
    assert any(number > context for number in numbers), raised.value.message


def test_the_template_refuses(client, model):
    for messages in ([{"role": "system", "content": "no question"}], user("x") + [{"role": "system", "content": "late"}]):
        with pytest.raises(openai.BadRequestError) as raised:
            ask(client, model, messages)
        assert raised.value.param == "messages"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{\"messages\": NaN}", b"[" * 100_000,
                                     b"{\"messages\":" * 50_000])
def test_bad_json(http, content):
    response = http.post("/v1/chat/completions", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_images_are_refused(http, model):
    content = [{"type": "image_url", "image_url": {"url": "data:,x"}}]
    response = http.post("/v1/chat/completions", json=body(model, [{"role": "user", "content": content}]))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content[0].type"


def test_routes_and_methods(http):
    for path in ("/nothing", "/v1", "/v1/completions/x", "/v1/models/", "/../etc/passwd"):
        response = http.get(path)
        assert response.status_code == 404, path
        assert response.json()["error"]["type"] == "not_found_error"
    assert http.get("/v1/chat/completions").status_code == 405
    response = http.delete("/v1/models")
    assert response.status_code == 405
    assert "GET" in response.headers["allow"]
    assert response.json()["error"]["code"] == "method_not_allowed"
    assert http.options("/v1/chat/completions").status_code == 204
    assert http.head("/health").status_code == 200


def test_body_limit(url):
    with httpx.Client(base_url=url, timeout=60) as http:
        response = http.post("/v1/chat/completions", content=b"x" * (33 << 20))
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "request_too_large"


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"HELLO\r\n\r\n",
                                  b"GET / HTTP/1.1\r\nno colon\r\n\r\n"])
def test_what_is_not_http(url, http, data):
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(data)
        assert raw.recv(100).startswith(b"HTTP/1.1 400 ")
    assert http.get("/health").status_code == 200


def test_request_id_is_echoed(http):
    assert http.get("/health", headers={"X-Request-Id": "abc-123"}).headers["x-request-id"] == "abc-123"
    assert http.get("/nothing", headers={"X-Request-Id": "abc-124"}).headers["x-request-id"] == "abc-124"
