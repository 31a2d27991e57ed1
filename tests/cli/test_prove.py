"""assay prove: its object keeps to its schema, evidence is kept between runs, pins, and a checkpoint that changed."""
import copy
import json
import os
import shutil
import struct
import time
import urllib.request

import jsonschema
import pytest

from conftest import ROOT
from test_serve import Server

SCHEMA = json.loads((ROOT / "docs/proof.schema.json").read_text())


@pytest.fixture(scope="session")
def proof(assay, tmp_path_factory):
    """A first run: what it printed and where it kept its evidence."""
    directory = tmp_path_factory.mktemp("receipts")
    done = assay.run("prove", assay.pocket, "--json", "--explain", "--receipt-dir", directory, "--export",
                     directory / "export.json", "--log-level", "info")
    assert done.returncode == 0, done.stderr
    return {"directory": directory, "text": done.stdout, "report": json.loads(done.stdout), "stderr": done.stderr}


def rows(report, verdict=None):
    return [v for v in report["verdicts"] if verdict in (None, v["verdict"])]


def receipt_of(report):
    return json.loads(open(report["receipt"]).read())


def test_the_object_keeps_to_its_schema(proof):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(proof["report"], SCHEMA)
    for broken in [{"schema": 1}, {"proven": "yes"}, {"model": {}}, {"chosen": [{}]}, {"extra": 1}]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**proof["report"], **broken}, SCHEMA)
    assert proof["text"] == (proof["directory"] / "export.json").read_text()


def test_the_checkpoint_is_told_of_once(proof):
    """The proof makes more models of it than one."""
    assert proof["stderr"].count("of mtp.*: the draft head") == 1


def test_every_chosen_row_is_proven_and_the_fastest(proof):
    report = proof["report"]
    assert report["proven"] and len(report["chosen"]) > 10
    by_desc = {}
    for row in rows(report, "passed"):
        by_desc.setdefault((row["op"], row["desc"]), []).append(row)
    for candidates in by_desc.values():
        taken = [row for row in candidates if not row["passed_over"]]
        assert len(taken) == 1
        assert {"op": taken[0]["op"], "desc": taken[0]["desc"], "row": taken[0]["row"], "order": taken[0]["order"],
                "proven": True} in report["chosen"]

        def mean(row):
            product = 1
            for timing in row["timings"]:
                product *= timing["microseconds"]
            return product ** (1 / len(row["timings"])) if row["timings"] else float("inf")
        assert mean(taken[0]) <= 1.031 * min(map(mean, candidates))


def test_the_table_says_where_the_time_went(proof):
    stages = proof["report"]["stages"]
    assert {"tensor hashes", "until the first row", "rows", "choice and weights", "model"} <= {s["name"] for s in stages}
    assert sum(s["milliseconds"] for s in stages) <= 1e3 * proof["report"]["seconds"] + 1


def test_explain_gives_every_row_and_a_reason(proof):
    for verdict in rows(proof["report"]):
        assert any(line.split()[:1] == [verdict["row"]] and len(line.split()) > 1
                   for line in proof["stderr"].splitlines()), verdict["row"]
    assert "chosen: proven" in proof["stderr"] and "slower: " in proof["stderr"]


def test_a_second_run_takes_everything_from_the_receipt(assay, proof):
    report = assay.json("prove", assay.pocket, "--receipt-dir", proof["directory"])
    assert all(row["from_receipt"] for row in rows(report, "passed"))
    assert all(weight["from_receipt"] for weight in report["weights"]) and report["model"]["from_receipt"]
    assert report["chosen"] == proof["report"]["chosen"]
    assert report["fingerprint"] == proof["report"]["fingerprint"]


def test_only_rows_that_were_asked_for(assay, proof):
    report = assay.json("prove", assay.pocket, "--receipt-dir", proof["directory"], "--op", "rms_norm", "--row",
                        "reference")
    jsonschema.validate(report, SCHEMA)
    assert {(row["op"], row["row"]) for row in rows(report)} == {("rms_norm", "reference")}
    assert report["partial"] and not report["proven"] and not proof["report"]["partial"]


def test_a_run_of_some_rows_says_what_it_did_and_what_it_did_not(assay, proof):
    done = assay.run("prove", assay.pocket, "--receipt-dir", proof["directory"], "--op", "silu_mul")
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0 and "PROVEN" not in done.stdout and "fingerprint" not in done.stdout
    assert " rows passed, 0 failed, in " in last and "nothing was chosen, and the model was not run" in last
    assert last.endswith("kept in " + proof["report"]["receipt"])
    for flags, known in [(["--op", "abacus"], "rms_norm"), (["--op", "silu_mul", "--row", "abacus"], "cpu_portable")]:
        done = assay.run("prove", assay.pocket, "--no-receipt", *flags)
        assert done.returncode == 2 and "abacus" in done.stderr and known in done.stderr


def test_more_repeats_than_the_receipt_knows_are_run(assay, proof):
    report = assay.json("prove", assay.pocket, "--receipt-dir", proof["directory"], "--op", "rms_norm", "--repeats", 9)
    assert rows(report, "passed") and all(row["repeats"] == 9 for row in rows(report, "passed"))


def test_full_is_evidence_of_its_own_and_more(assay, proof):
    asked = ["prove", assay.pocket, "--receipt-dir", proof["directory"], "--op", "silu_mul", "--row", "cpu_portable"]
    normal, full = [assay.json(*asked, *flags)["verdicts"][0] for flags in ([], ["--full"])]
    assert normal["from_receipt"] and not full["from_receipt"] and full["verdict"] == "passed"
    assert full["comparisons"] > normal["comparisons"]
    assert assay.json(*asked, "--full")["verdicts"][0]["from_receipt"]


def test_a_server_shows_what_prove_shows(assay, proof):
    server = Server(assay, "--receipt-dir", str(proof["directory"]))
    try:
        report = server.get("/v1/verification")
        with urllib.request.urlopen(server.url + "/metrics", timeout=60) as response:
            metrics = response.read().decode()
        answer = server.chat("What is 34 plus 55?", max_tokens=4)
    finally:
        server.process.kill()
        server.process.wait()
    jsonschema.validate(report, SCHEMA)
    prove = assay.json("prove", assay.pocket, "--receipt-dir", proof["directory"])
    assert report["proven"] and report["chosen"] == prove["chosen"]
    assert answer["system_fingerprint"] == report["fingerprint"] == prove["fingerprint"]
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith("assay:"))
    for verdict in ["passed", "failed", "refused", "skipped"]:
        assert float(values[f'assay:rows{{model_name="pocket",verdict="{verdict}"}}']) == len(rows(report, verdict))
    assert float(values['assay:proven{model_name="pocket"}']) == 1
    assert float(values['assay:proof_seconds{model_name="pocket"}']) == pytest.approx(report["seconds"], rel=1e-3)


def test_diff_shows_what_differs_and_nothing_else(assay, proof, tmp_path):
    export = proof["directory"] / "export.json"
    done = assay.run("prove", "--diff", export, export)
    assert (done.returncode, done.stdout) == (0, "")
    changed = copy.deepcopy(proof["report"])
    row = rows(changed, "passed")[0]
    row["digest"] = "0123456789abcdef"
    changed["chosen"][0]["row"] = "abacus"
    (tmp_path / "b").write_text(json.dumps(changed))
    lines = assay.run("prove", "--diff", export, tmp_path / "b").stdout.splitlines()
    assert len(lines) == 6
    assert f"{row['op']} {row['desc']} {row['row']}" in lines and any("0123456789abcdef" in line for line in lines)
    assert "  > abacus" in lines
    (tmp_path / "c").write_text("{}")
    done = assay.run("prove", "--diff", export, tmp_path / "c")
    assert done.returncode == 2 and "not an exported proof" in done.stderr and str(tmp_path / "c") in done.stderr
    for damaged in [{"kind": 5}, {"verdicts": 5}, {"verdicts": [5, {"op": 5, "worst": 5}]}, {"chosen": [{"row": 5}]}]:
        (tmp_path / "d").write_text(json.dumps({**proof["report"], **damaged}))
        done = assay.run("prove", "--diff", export, tmp_path / "d")
        assert done.returncode in (0, 2) and bool(done.stdout) == (done.returncode == 0), damaged


def test_a_directory_that_cannot_be_written_is_said_and_nothing_is_claimed(assay):
    done = assay.run("prove", assay.pocket, "--receipt-dir", "/proc/receipts", "--op", "silu_mul")
    assert done.returncode == 0 and done.stdout.count("cannot write") == 2
    assert "no manifest: a changed tensor cannot be noticed" in done.stdout
    assert "kept" not in done.stdout


@pytest.mark.parametrize("command", [["repro", "{}"], ["prove", "--diff", "{}", "{}"]])
def test_a_directory_is_no_file(assay, tmp_path, command):
    done = assay.run(*[word.format(tmp_path) for word in command])
    assert done.returncode in (1, 2) and "Is a directory" in done.stderr and str(tmp_path) in done.stderr


def test_two_at_once_share_a_directory(assay, tmp_path):
    both = [assay.start("prove", assay.pocket, "--json", "--receipt-dir", tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    report = assay.json("prove", assay.pocket, "--receipt-dir", tmp_path)
    assert report["proven"] and all(row["from_receipt"] for row in rows(report, "passed"))
    assert not any("ignored" in note for note in report["notes"])


def test_a_kill_at_any_moment_does_no_harm(assay, tmp_path):
    for delay in [0.1, 0.5, 1.0, 1.6, 2.2]:
        process = assay.start("prove", assay.pocket, "--receipt-dir", tmp_path)
        time.sleep(delay)
        process.kill()
        process.communicate(timeout=60)
        for file in tmp_path.glob("*.json"):
            json.loads(file.read_text())
    report = assay.json("prove", assay.pocket, "--receipt-dir", tmp_path)
    assert report["proven"] and not any("ignored" in note for note in report["notes"])
    assert assay.json("prove", assay.pocket, "--receipt-dir", tmp_path)["model"]["from_receipt"]


@pytest.mark.parametrize("damage, words", [
    (lambda text: text[:len(text) // 2], "damaged"),
    (lambda text: "\0" * 100, "damaged"),
    (lambda text: text.replace('"machine": "', '"machine": "another '), "another machine"),
    (lambda text: text.replace('"build": "', '"build": "f'), "another build"),
    (lambda text: text.replace('"repeats": 4', '"repeats": 5').replace('"repeats": 2', '"repeats": 5'), "checksum"),
])
def test_a_foreign_or_damaged_receipt_is_ignored_with_one_line(assay, proof, tmp_path, damage, words):
    name = os.path.basename(proof["report"]["receipt"])
    (tmp_path / name).write_text(damage((proof["directory"] / name).read_text()))
    report = assay.json("prove", assay.pocket, "--receipt-dir", tmp_path, "--op", "rms_norm")
    notes = [note for note in report["notes"] if "ignored" in note]
    assert len(notes) == 1 and words in notes[0] and name in notes[0]
    assert not any(row["from_receipt"] for row in rows(report))


def test_a_flipped_scale_byte_is_named_by_the_manifest_alone(assay, proof, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(assay.pocket, model)
    receipts = tmp_path / "receipts"
    shutil.copytree(proof["directory"], receipts)
    assert assay.run("prove", model, "--receipt-dir", receipts).returncode == 0
    weights = bytearray((model / "model.safetensors").read_bytes())
    header_bytes, = struct.unpack("<Q", weights[:8])
    header = json.loads(weights[8:8 + header_bytes])
    name = next(name for name in sorted(header) if name.endswith("weight_scale") and header[name]["dtype"] == "F8_E4M3")
    begin, end = header[name]["data_offsets"]
    at = next(i for i in range(8 + header_bytes + begin, 8 + header_bytes + end) if 0x20 < weights[i] < 0x70)
    weights[at] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    done = assay.run("prove", model, "--receipt-dir", receipts)
    assert done.returncode == 3
    assert "tensors are not what they were" in done.stderr and f" {name}" in done.stderr
    assert assay.run("prove", model, "--receipt-dir", receipts, "--trust-checkpoint").returncode == 0
    assert assay.run("prove", model, "--receipt-dir", receipts).returncode == 0
    unseen = assay.json("prove", model, "--no-receipt")  # as the documentation says
    assert unseen["proven"] and any("no manifest" in note for note in unseen["notes"])


def test_pins_by_the_flags_of_sglang(assay, proof):
    report = assay.json("prove", assay.pocket, "--receipt-dir", proof["directory"], "--attention-backend",
                        "torch_native", "--moe-runner-backend", "cpu_portable", "--fp4-gemm-backend", "cpu_portable")
    for row in report["chosen"]:
        if row["op"] == "attention":
            assert row["row"] == "reference"
        if row["op"] == "experts" or row["op"] == "linear" and "nvfp4" in row["desc"]:
            assert row["row"] == "cpu_portable"
    other = [row["row"] for row in report["chosen"] if row["op"] == "linear" and "nvfp4" not in row["desc"]]
    assert other == [row["row"] for row in proof["report"]["chosen"]
                     if row["op"] == "linear" and "nvfp4" not in row["desc"]]


@pytest.mark.parametrize("flag", ["--attention-backend", "--moe-runner-backend", "--fp4-gemm-backend"])
def test_values_that_do_not_exist_list_those_that_do(assay, flag):
    done = assay.run("generate", assay.pocket, "--prompt", "x", flag, "abacus")
    assert done.returncode == 2
    assert "unknown value abacus" in done.stderr and "auto, " in done.stderr and "cpu_portable" in done.stderr
    theirs = "flashinfer_trtllm" if flag != "--attention-backend" else "fa3"
    done = assay.run("generate", assay.pocket, "--prompt", "x", flag, theirs)
    assert done.returncode == 2
    assert f"{theirs} of SGLang has no counterpart" in done.stderr and "cpu_portable" in done.stderr
