"""What several files of tests use."""
import json
import pathlib
import re
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
POCKET = ROOT / "models/pocket"

SUM = "What is 34 plus 55?"
SUM_ANSWER = "34 + 55 = 89"
STORY = "Tell me a story about a fox."


def user(text):
    return [{"role": "user", "content": text}]


def eval_rows():
    """The questions of the model's evaluation that it is known to answer as expected."""
    with open(POCKET / "eval.jsonl") as lines:
        return [row for row in map(json.loads, lines) if row["ok_w4a16"]]


def fields(model, messages, thinking=False, **more):
    """Arguments of chat.completions.create; greedy unless `more` says otherwise."""
    extra = {"chat_template_kwargs": {"enable_thinking": thinking}, **more.pop("extra_body", {})}
    return {"model": model, "messages": messages, "temperature": 0, "extra_body": extra, **more}


def expected_calls(row):
    """(name, {argument: text}) of each tool call in the expected answer, by a reading of its own."""
    calls = []
    for block in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", row["answer"], re.DOTALL):
        name = re.match(r"<function=(.*)>", block).group(1)
        values = re.findall(r"<parameter=(.*?)>\n(.*?)\n</parameter>", block, re.DOTALL)
        calls.append((name, {key: typed(row, name, key, value) for key, value in values}))
    return calls


def typed(row, name, key, text):
    """The value that the tool's schema makes of a parameter's text."""
    function = next(tool["function"] for tool in row["tools"] if tool["function"]["name"] == name)
    kind = function["parameters"]["properties"][key]["type"]
    return text if kind == "string" else json.loads(text.lower() if kind == "boolean" else text)


def calls_of(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def ask(client, model, messages, thinking=False, **more):
    return client.chat.completions.create(**fields(model, messages, thinking, **more))


def body(model, messages, thinking=False, **more):
    """The same as a JSON body, for tests that go without the client."""
    return {"model": model, "messages": messages, "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": thinking}, **more}


def events(http, request):
    """The data of each server-sent event of a stream, as text."""
    with http.stream("POST", "/v1/chat/completions", json=request) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


def metrics(http):
    """name{labels} -> value"""
    response = http.get("/metrics")
    assert response.status_code == 200
    values = {}
    for line in response.text.splitlines():
        if not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            values[series] = float(value)
    return values


def metric(http, name):
    """The sum of a metric's series."""
    found = [value for series, value in metrics(http).items() if re.fullmatch(rf"assay:{name}(\{{.*\}})?", series)]
    assert found, f"no metric {name}"
    return sum(found)


def wait_until_idle(http, seconds=10):
    """Waits until no request holds pages or slots."""
    gauges = ["num_requests_running", "num_requests_waiting", "kv_pages_used", "state_slots_used"]
    deadline = time.monotonic() + seconds
    while any(left := {name: metric(http, name) for name in gauges}.values()):
        assert time.monotonic() < deadline, f"still held: {dict(zip(gauges, left))}"
        time.sleep(0.02)
