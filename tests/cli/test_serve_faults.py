"""A wrong row first in the list: assay serves with the next, says so, and answers as a healthy server does."""
import json
import re
import shutil

import pytest

from test_serve import Server

QUESTION = "What is 34 plus 55?"
FIELDS = {"logprobs": True, "top_logprobs": 5, "chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 24}


class Healthy:
    def __init__(self, faulty, directory):
        self.directory = directory
        server = Server(faulty(), "--receipt-dir", str(directory))
        try:
            self.logprobs = server.chat(QUESTION, **FIELDS)["choices"][0]["logprobs"]
            self.chosen = server.get("/v1/verification")["chosen"]
        finally:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="module")
def healthy(faulty, tmp_path_factory):
    return Healthy(faulty, tmp_path_factory.mktemp("healthy"))


@pytest.mark.parametrize("fault, reason", [
    ("linear:one NaN", r" is -?nan, expected "),
    ("experts:five percent on one expert", r"^(identity|sampled): .*\[\d+, \d+\] is \S+, expected \S+, bound "),
    ("linear:crash", "^contact: crashed: signal 6 "),
    ("linear:hang", "^contact: hung: no result within 1500 ms$"),
])
def test_serving_starts_on_the_next_row_and_names_the_reason(faulty, healthy, tmp_path, fault, reason):
    receipts = tmp_path / "receipts"
    shutil.copytree(healthy.directory, receipts)
    server = Server(faulty(fault), "--receipt-dir", str(receipts), "--row-timeout-ms", "1500")
    try:
        assert server.ready_line.startswith("READY "), server.stderr
        assert server.chat(QUESTION, **FIELDS)["choices"][0]["logprobs"] == healthy.logprobs
        report = server.get("/v1/verification")
    finally:
        server.process.kill()
        server.process.wait()
    assert report["proven"] and report["chosen"] == healthy.chosen
    op = fault.split(":")[0]
    failed = [row for row in report["verdicts"] if row["row"] == "faulty"]
    assert failed and {row["op"] for row in failed} == {op}
    assert all(row["verdict"] == "failed" and re.search(reason, row["reason"]) for row in failed), failed
    server.reader.join(timeout=10)
    table = [line for line in server.stderr if " faulty " in line and " failed " in line]
    assert len(table) == len(failed)
    for row in failed:
        assert any(row["desc"] in line and row["reason"] in line for line in table), row
    kept = [row for row in json.loads(open(report["receipt"]).read())["kernels"] if row["row"] == "faulty"]
    assert {row["reason"] for row in kept} == {row["reason"] for row in failed}


def test_a_pinned_row_that_fails_is_served_only_where_that_is_allowed_and_said(faulty, healthy):
    program = faulty("experts:five percent on one expert")
    flags = ["--receipt-dir", str(healthy.directory), "--moe-runner-backend", "faulty"]
    done = program.run("serve", program.pocket, "--port", "0", *flags)
    assert done.returncode == 1 and "READY" not in done.stdout
    assert "the forced row failed its proof" in done.stderr and "experts" in done.stderr
    server = Server(program, *flags, "--allow-unproven")
    try:
        assert server.ready_line.startswith("READY "), server.stderr
        assert server.get("/health")["status"] == "alive, unproven"
        report = server.get("/v1/verification")
        assert server.chat(QUESTION, **FIELDS)["system_fingerprint"] == report["fingerprint"]
    finally:
        server.process.kill()
        server.process.wait()
    assert not report["proven"] and report["fingerprint"].endswith("-unproven")
    assert [row["op"] for row in report["chosen"] if not row["proven"]] == ["experts"]


def test_a_failure_is_not_paid_for_at_every_start_and_can_be_shown_again(faulty, tmp_path):
    program = faulty("linear:one NaN")
    arguments = ["prove", program.pocket, "--receipt-dir", tmp_path, "--op", "linear", "--row", "faulty"]
    for remembered in [False, True]:
        done = program.run(*arguments, "--json")
        assert done.returncode == 1 and "rows failed their proof" in done.stderr
        rows = json.loads(done.stdout)["verdicts"]
        assert rows and all(row["verdict"] == "failed" and row["from_receipt"] == remembered for row in rows)
    done = program.run(*arguments, "--json", "--retry-failed")
    assert not any(row["from_receipt"] for row in json.loads(done.stdout)["verdicts"])
    files = sorted(tmp_path.glob("repro-linear-faulty-*.json"))
    assert files
    again = program.run("repro", files[0], "--device", "cpu")
    assert again.returncode == 1 and "the row fails" in again.stderr and "faulty" in again.stdout
    unknown = program.run("repro", files[0], "--device", "abacus")
    assert unknown.returncode == 2 and "abacus" in unknown.stderr
