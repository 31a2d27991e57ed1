"""One server for all tests here, driven over a real socket by the real OpenAI client.

ASSAY_BIN: the program (build/release/bin/assay). ASSAY_MODEL: the model directory (models/pocket)."""
import os
import pathlib
import queue
import subprocess
import threading

import httpx
import openai
import pytest

from helpers import POCKET, ROOT

BINARY = os.environ.get("ASSAY_BIN", str(ROOT / "build/release/bin/assay"))
MODEL = os.environ.get("ASSAY_MODEL", str(POCKET))
READY_SECONDS = 240


@pytest.fixture(scope="session")
def url(tmp_path_factory):
    """The address of the server."""
    log_path = tmp_path_factory.mktemp("server") / "stderr"
    with open(log_path, "w") as log:
        process = subprocess.Popen([BINARY, "serve", MODEL, "--port", "0"], stdout=subprocess.PIPE, stderr=log,
                                   text=True, cwd=ROOT)
    lines = queue.Queue()
    threading.Thread(target=lambda: lines.put(process.stdout.readline()), daemon=True).start()
    try:
        line = lines.get(timeout=READY_SECONDS)
        assert line.startswith("READY http://"), f"{line!r}\n{pathlib.Path(log_path).read_text()[-4000:]}"
        yield line.removeprefix("READY ").strip()
        assert process.poll() is None, f"the server died\n{pathlib.Path(log_path).read_text()[-4000:]}"
        process.terminate()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def client(url):
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def http(url):
    with httpx.Client(base_url=url, timeout=120) as http:
        yield http


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id
