"""Runs the built program as a user would: its command line, its output, its exit code."""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ASSAY_BIN", str(ROOT / "build/release/bin/assay"))
FAULTY = os.environ.get("ASSAY_FAULTY_BIN", str(pathlib.Path(BINARY).with_name("assay_faulty")))
POCKET = ROOT / "models/pocket"


class Assay:
    pocket = str(POCKET)

    def __init__(self, binary=BINARY, env=None):
        self.binary = binary
        self.env = env or {}  # beside the caller's

    def environment(self, extra=None):
        clean = {key: value for key, value in os.environ.items() if not key.startswith("ASSAY_")}
        return {**clean, **self.env, **(extra or {})}

    def start(self, *arguments):
        return subprocess.Popen([self.binary, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=self.environment(), cwd=ROOT)

    def run(self, *arguments, env=None, stdin="", timeout=300):
        return subprocess.run([self.binary, *map(str, arguments)], input=stdin, capture_output=True, text=True,
                              timeout=timeout, env=self.environment(env), cwd=ROOT)

    def json(self, *arguments, **options):
        """The one object that a successful run with --json prints."""
        done = self.run(*arguments, "--json", **options)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") == 1
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def assay():
    assert os.access(BINARY, os.X_OK), f"{BINARY} is missing: make build"
    return Assay()


@pytest.fixture(scope="session")
def faulty():
    """The program with faults built in, as a function of the fault to put first ("": none)."""
    assert os.access(FAULTY, os.X_OK), f"{FAULTY} is missing: it is built with the tests"
    return lambda fault="": Assay(FAULTY, {"ASSAY_FAULT": fault} if fault else {})


@pytest.fixture(scope="session")
def goldens():
    return {prompt["id"]: prompt for prompt in json.loads((POCKET / "golden/golden.json").read_text())["prompts"]}
