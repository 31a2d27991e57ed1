"""assay bench: what it prints, and what it refuses. Speeds themselves are never tested."""
import json
import pathlib
import re
from xml.etree import ElementTree

import pytest

SVG = "{http://www.w3.org/2000/svg}"
QUICK = ["--repeats", 1, "--decode-tokens", 3]


@pytest.fixture(scope="module")
def config(assay):
    return json.loads((pathlib.Path(assay.pocket) / "config.json").read_text())


def test_default_fields(assay):
    out = assay.json("bench", assay.pocket, "--context", 64, "--threads", 1, *QUICK)
    assert out["prefill_tokens_per_s"] == out["prefill"][0]["tokens_per_s"] > 0
    assert out["decode_tokens_per_s"] == out["decode"][0]["tokens_per_s"] > 0
    assert out["threads"] == 1 and out["machine"]


def test_sweeps_over_contexts_and_batches(assay):
    out = assay.json("bench", assay.pocket, "--context", "1,64,600", "--batch", "3,1", *QUICK)
    assert [point["tokens"] for point in out["prefill"]] == [1, 64, 600]
    assert [(point["context"], point["batch"]) for point in out["decode"]] == [(c, b) for c in (1, 64, 600) for b in (3, 1)]
    for point in out["decode"]:
        assert abs(point["tokens_per_s"] * point["step_us"] / 1e6 / point["batch"] - 1) < 1e-9


def test_memory_ledger(assay, config):
    memory = assay.json("bench", assay.pocket, "--context", "64,130", "--batch", 2, *QUICK)["memory"]
    lines = {line["what"]: line for line in memory["lines"]}
    assert memory["bytes"] == sum(line["bytes"] for line in memory["lines"]) <= memory["allowed_bytes"]
    page = 2 * 2 * 64 * config["num_key_value_heads"] * config["head_dim"] * config["layer_types"].count("full_attention")
    assert lines["KV cache"]["bytes"] == 2 * 3 * page  # two sequences of 130 and a few tokens, in pages of 64
    assert lines["KV cache"]["detail"].startswith("6 pages")
    assert lines["recurrent state"]["bytes"] > 0 and lines["logits"]["bytes"] % (4 * config["vocab_size"]) == 0
    assert memory["changes"] == []


def test_table_and_progress(assay):
    done = assay.run("bench", assay.pocket, "--context", 64, "--batch", "1,2", *QUICK)
    assert done.returncode == 0
    assert "prefill" in done.stdout and "decode" in done.stdout
    assert "decode step of 2 sequences at 64 tokens: " in done.stderr


@pytest.mark.parametrize("arguments, words", [
    (["--batch", "0"], "--batch"), (["--batch", "1,x"], "--batch"), (["--op", "abacus"], "--op"), (["--context", "0"], "--context"),
    (["--context", "64", "--repeats", "0"], "--repeats"),
    (["--context", "64", "--context-length", "66"], "at most 66"),
    (["--context", "64", "--batch", "3", "--max-running-requests", "2"], "at most 2"),
    (["--context", "64", "--batch", "3", "--kv-cache-bytes", "1MB"], "KV pages")])
def test_wrong_values_are_2(assay, arguments, words):
    done = assay.run("bench", assay.pocket, *QUICK, *arguments)
    assert done.returncode == 2
    assert words in done.stderr and not done.stdout


def test_op_tables(assay, config):
    out = assay.json("bench", assay.pocket, "--context", 70, "--batch", "1,2", "--ops", *QUICK)
    assert [(table["phase"], table["batch"]) for table in out["ops"]] == [("prefill", 1), ("decode", 1), ("decode", 2)]
    assert [table["tokens_per_s"] for table in out["ops"]] == [
        point["tokens_per_s"] for point in out["prefill"] + out["decode"]]
    assert out["limits"]["dram_read_bytes_per_s"] > 0 and out["limits"]["best_flop_per_s"] > 0
    layers = config["layer_types"]
    for table in out["ops"]:
        rows = table["rows"]
        assert table["context"] == 70
        assert 0 < table["limits"]["best_flop_per_s"] <= out["limits"]["best_flop_per_s"]
        tokens = 70 if table["phase"] == "prefill" else table["batch"]
        assert abs(table["tokens_per_s"] * table["whole_us"] / 1e6 / tokens - 1) < 1e-9
        least_us = 0
        for row in rows:
            least_us += 1e6 * row["calls"] * max(row["bytes_per_call"] / table["bytes_per_s_of_limit"],
                                                 row["flop_per_call"] / table["limits"]["best_flop_per_s"])
        assert abs(least_us / table["least_us"] - 1) < 1e-6
        assert abs(table["whole_share_of_limit"] * table["whole_us"] / least_us - 1) < 1e-6
        assert abs(table["share_of_limit"] * table["us"] / least_us - 1) < 1e-6
        assert abs(sum(row["share_of_time"] for row in rows) - 1) < 1e-6
        assert abs(sum(row["calls"] * row["us_per_call"] for row in rows) / table["us"] - 1) < 1e-6
        assert [row["us_per_call"] * row["calls"] for row in rows] == sorted(
            (row["us_per_call"] * row["calls"] for row in rows), reverse=True)
        calls = {op: sum(row["calls"] for row in rows if row["op"] == op) for op in {row["op"] for row in rows}}
        assert calls["attention"] == layers.count("full_attention")
        assert calls["gated_delta"] == len(layers) - calls["attention"]
        assert calls["sample"] == calls["embed"] == 1


def test_work_of_the_ops(assay, config):
    """Bytes and FLOPs from the Desc, as an op's formula has them."""
    out = assay.json("bench", assay.pocket, "--context", 70, "--batch", 2, "--ops", *QUICK)
    prefill, decode = out["ops"]
    for table, tokens in [(prefill, 70), (decode, 2)]:
        linears = [row for row in table["rows"] if row["op"] == "linear" and row["desc"].endswith("->F32")]
        assert len(linears) == 1  # the head: one token of a prefill, every sequence of a decode step
        n, k = (int(x) for x in re.match(r"n=(\d+) k=(\d+) bf16", linears[0]["desc"]).groups())
        outputs = 1 if tokens == 70 else 2
        assert linears[0]["bytes_per_call"] == 2 * n * k + outputs * (2 * k + 4 * n)
        assert linears[0]["flop_per_call"] == 2 * outputs * n * k
        attention = next(row for row in table["rows"] if row["op"] == "attention")
        heads, kv_heads, dim = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        cached, scored = (70, 70 * 71 // 2) if tokens == 70 else (2 * 71, 2 * 71)
        assert attention["bytes_per_call"] == 2 * (2 * cached * kv_heads * dim + 3 * tokens * heads * dim)
        assert attention["flop_per_call"] == 4 * scored * heads * dim


def test_one_op_and_the_picture(assay, tmp_path):
    picture = tmp_path / "roof.svg"
    out = assay.json("bench", assay.pocket, "--context", 64, "--op", "linear", "--plot", picture, *QUICK)
    assert all(row["op"] == "linear" for table in out["ops"] for row in table["rows"])
    svg = ElementTree.parse(picture).getroot()
    assert svg.tag == SVG + "svg"
    texts = " ".join("".join(text.itertext()) for text in svg.iter(SVG + "text"))
    assert "GB/s" in texts and "GFLOP/s" in texts and "experts" in texts and "decode step of 1 sequence" in texts
    width, height = float(svg.get("width")), float(svg.get("height"))
    circles = list(svg.iter(SVG + "circle"))
    assert len(circles) > 10
    for circle in circles:
        assert 0 < float(circle.get("cx")) < width and 0 < float(circle.get("cy")) < height


def test_picture_that_cannot_be_written_is_1(assay, tmp_path):
    done = assay.run("bench", assay.pocket, "--context", 64, "--plot", tmp_path / "none" / "roof.svg", *QUICK)
    assert done.returncode == 1
    assert "roof.svg" in done.stderr


def test_limits(assay):
    out = assay.json("bench", "limits", "--threads", 1)
    assert out["threads"] == 1 and out["machine"] and out["cache_bytes"] > 0
    assert out["dram_read_bytes_per_s"] > 0 and out["dram_copy_bytes_per_s"] > 0 and out["l3_read_bytes_per_s"] > 0
    passes = {key: value for key, value in out.items() if key.endswith("_flop_per_s") and not key.startswith("best_")}
    assert passes and out["best_flop_per_s"] == max(passes.values())
    bursts = {key.removeprefix("best_burst_"): value for key, value in out.items() if key.startswith("best_burst_")}
    assert bursts and all(value >= out[key] for key, value in bursts.items())
    assert assay.run("bench", "limits", "--device", "abacus").returncode == 2
