"""Runs the built program as a user would: its command line, its output, its exit code."""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ASSAY_BIN", str(ROOT / "build/release/bin/assay"))
POCKET = ROOT / "models/pocket"


class Assay:
    binary = BINARY
    pocket = str(POCKET)

    def environment(self, extra=None):
        clean = {key: value for key, value in os.environ.items() if not key.startswith("ASSAY_")}
        return {**clean, **(extra or {})}

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
def goldens():
    return {prompt["id"]: prompt for prompt in json.loads((POCKET / "golden/golden.json").read_text())["prompts"]}
