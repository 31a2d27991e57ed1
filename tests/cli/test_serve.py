"""assay serve as a process: its address, its signals, its failures. The API itself is tested elsewhere."""
import ctypes
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest


class Server:
    def __init__(self, assay, *flags):
        self.process = subprocess.Popen([assay.binary, "serve", assay.pocket, "--port", "0", *flags], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=assay.environment())
        self.stderr = []
        self.reader = threading.Thread(target=lambda: self.stderr.extend(self.process.stderr), daemon=True)
        self.reader.start()
        self.ready_line = self.process.stdout.readline()
        self.url = self.ready_line.removeprefix("READY ").strip()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return json.load(response)

    def chat(self, text, **fields):
        body = {"model": "pocket", "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)


@pytest.fixture
def serve(assay):
    servers = []

    def start(*flags):
        servers.append(Server(assay, *flags))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()


def wait_until_running(server, count):
    deadline = time.monotonic() + 30
    while True:
        with urllib.request.urlopen(server.url + "/metrics", timeout=10) as response:
            if re.search(rf"requests_running\S* {count}(\.0)?$", response.read().decode(), re.MULTILINE):
                return
        assert time.monotonic() < deadline, f"never saw {count} requests running"


def test_ready_line_progress_and_sigterm(serve):
    server = serve()
    assert re.fullmatch(r"READY http://127\.0\.0\.1:\d+\n", server.ready_line)
    assert [model["id"] for model in server.get("/v1/models")["data"]] == ["pocket"]
    answer = server.chat("What is 34 plus 55?", chat_template_kwargs={"enable_thinking": False})
    assert answer["choices"][0]["message"]["content"] == "34 + 55 = 89"
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=30) == 0
    assert server.process.stdout.read() == ""
    server.reader.join(timeout=10)
    assert len(server.stderr) >= 2  # progress while loading


def test_served_model_name(serve):
    server = serve("--served-model-name", "tiny")
    assert [model["id"] for model in server.get("/v1/models")["data"]] == ["tiny"]


def test_prints_the_memory_it_takes_and_what_was_changed_to_fit(serve):
    server = serve("--max-running-requests", "4000", "--memory-utilization", "0.02")
    assert server.ready_line.startswith("READY")
    lines = "".join(server.stderr)
    for name in ["checkpoint ", "KV cache ", "recurrent state ", "workspace ", "logits ", "all ", "allowed "]:
        assert name in lines, name
    assert re.search(r"changed to fit: max-running-requests 4000 -> \d+: each takes .* of state, and .* left for it", lines)


def test_memory_too_small_is_refused(assay):
    done = assay.run("serve", assay.pocket, "--port", "0", "--context-length", "4096", "--kv-cache-bytes", "1MB")
    assert done.returncode == 2
    assert "kv-cache-bytes" in done.stderr and "for 4096 tokens" in done.stderr


def nice_values(process):
    stats = [path.read_text() for path in pathlib.Path(f"/proc/{process.pid}/task").glob("*/stat")]
    return [int(stat.rpartition(")")[2].split()[16]) for stat in stats]


def test_nice_is_that_of_the_threads_that_compute(serve):
    wanted = min(os.nice(0) + 4, 19)
    server = serve("--threads", "3", "--nice", str(wanted))
    values = nice_values(server.process)
    assert set(values) == {wanted, os.nice(0)}
    assert values.count(wanted) == 5  # main, two workers, the engine's, delivery


def test_nice_that_the_system_refuses(assay):
    def without_permission():
        libc = ctypes.CDLL(None, use_errno=True)
        resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
        drop_from_bounding_set, sys_nice = 24, 23  # for root; another has no capability to lose
        assert libc.prctl(drop_from_bounding_set, sys_nice, 0, 0, 0) == 0 or os.geteuid() != 0

    for command in ["serve", "bench"]:
        done = subprocess.run([assay.binary, command, assay.pocket, "--nice", "-5"], capture_output=True, text=True,
                              env=assay.environment(), preexec_fn=without_permission, timeout=60)
        assert done.returncode == 2 and not done.stdout
        assert re.search(r"--nice: .*Permission denied: got -5, wanted \d+ to 19 .*CAP_SYS_NICE", done.stderr)


def test_request_timeout_answers_504(serve):
    server = serve("--request-timeout", "0.001")
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.chat("Tell me a story.")
    assert refused.value.code == 504
    assert json.load(refused.value)["error"]["code"] == "request_timeout"


def test_sigint_lets_running_requests_end(serve):
    server = serve("--threads", "1")
    answers = []
    client = threading.Thread(target=lambda: answers.append(
        server.chat("Tell me a story about a fox.", chat_template_kwargs={"enable_thinking": False})))
    client.start()
    wait_until_running(server, 1)
    server.process.send_signal(signal.SIGINT)
    client.join(timeout=60)
    assert answers and answers[0]["choices"][0]["finish_reason"] == "stop"
    assert len(answers[0]["choices"][0]["message"]["content"]) > 200
    assert server.process.wait(timeout=30) == 0


def test_second_signal_exits_at_once(serve):
    server = serve("--threads", "1")
    count = 24  # so many stories take one thread seconds
    clients = [threading.Thread(target=lambda: pytest.raises(OSError, server.chat, "Tell me a story about a fox."))
               for _ in range(count)]
    for client in clients:
        client.start()
    wait_until_running(server, count)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=5) == 1
    for client in clients:
        client.join(timeout=30)


def test_signal_while_loading_ends_at_once(assay):
    process = subprocess.Popen([assay.binary, "serve", assay.pocket, "--port", "0"], text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env=assay.environment())
    assert "listening" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
    process.communicate()


def test_port_in_use_is_1(assay):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = assay.run("serve", assay.pocket, "--port", port, timeout=60)
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "READY" not in done.stdout


def test_wrong_host_is_2(assay):
    done = assay.run("serve", assay.pocket, "--host", "no.such.address.invalid", timeout=60)
    assert done.returncode == 2
    assert "no.such.address.invalid" in done.stderr
