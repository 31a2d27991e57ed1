"""assay perplexity, eval, inspect and bench: the numbers they print."""
import json

import pytest


def story(goldens):
    return next(golden for name, golden in goldens.items() if "story-forced" in name)


def golden_nll(golden, begin=0, end=None):
    logprobs = golden["prompt_logprobs"][begin + 1:end]
    return len(logprobs), -sum(logprobs) / len(logprobs)


def test_perplexity_of_a_story_equals_the_golden(assay, goldens, tmp_path):
    golden = story(goldens)
    file = tmp_path / "story.txt"
    file.write_text(golden["prompt"])
    tokens, mean = golden_nll(golden)
    exact = assay.json("perplexity", assay.pocket, "--file", file, "--compute", "f32")
    assert exact["tokens"] == tokens
    assert exact["mean_nll"] == pytest.approx(mean, abs=2e-5)
    rounded = assay.json("perplexity", assay.pocket, "--file", file)
    assert rounded["tokens"] == tokens
    assert rounded["mean_nll"] == pytest.approx(mean, abs=0.05)


def test_perplexity_in_windows(assay, goldens, tmp_path):
    golden = story(goldens)
    file = tmp_path / "story.txt"
    file.write_text(golden["prompt"])
    length = len(golden["input_ids"])
    window = length - 10
    out = assay.json("perplexity", assay.pocket, "--file", file, "--compute", "f32", "--window", window)
    assert out["windows"] == 2 and out["window_tokens"] == window
    assert out["tokens"] == length - 2
    first_tokens, first_mean = golden_nll(golden, 0, window)
    rest = out["mean_nll"] * out["tokens"] - first_mean * first_tokens
    whole_tokens, whole_mean = golden_nll(golden)
    assert rest > whole_mean * whole_tokens - first_mean * first_tokens  # the second window has lost its context


def test_perplexity_of_too_short_a_text(assay, tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("a")
    done = assay.run("perplexity", assay.pocket, "--file", file)
    assert done.returncode == 2 and "too short" in done.stderr


def test_eval_is_mostly_right_and_counts_by_family(assay):
    out = assay.json("eval", assay.pocket, "--file", f"{assay.pocket}/eval.jsonl", "--limit", 41)
    assert out["total"] == 41
    assert out["correct"] >= 39
    assert len(out["families"]) == 41
    assert all(family["total"] == 1 for family in out["families"].values())
    assert sum(family["correct"] for family in out["families"].values()) == out["correct"]
    assert out["prompt_mismatches"] == 0


def test_eval_sees_wrong_answers_and_wrong_prompts(assay, tmp_path):
    lines = [json.loads(line) for line in open(f"{assay.pocket}/eval.jsonl")][:3]
    lines[1]["answer"] += "!"
    lines[2]["prompt"] += " "
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = assay.json("eval", assay.pocket, "--file", file)
    assert (out["total"], out["correct"], out["prompt_mismatches"]) == (3, 2, 1)
    assert out["wrong"] == [lines[1]["id"]]
    table = assay.run("eval", assay.pocket, "--file", file).stdout
    assert f"wrong: {lines[1]['id']}" in table and "66.67" in table


def test_eval_names_the_line_that_is_no_question(assay, tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text(open(f"{assay.pocket}/eval.jsonl").readline() + '{"id": 1}\n')
    done = assay.run("eval", assay.pocket, "--file", file)
    assert done.returncode == 2 and f"{file}:2" in done.stderr


def test_inspect_counts_pocket(assay):
    out = assay.json("inspect", assay.pocket)
    assert out["tensors"] == 1309
    assert out["parameters"] == 17920288  # scales are not parameters, a byte of NVFP4 holds two
    assert out["bytes"] == 22276928
    assert sum(entry["tensors"] for entry in out["formats"].values()) == 1309
    assert out["formats"]["NVFP4"]["tensors"] == 6 * 16 * 3
    listed = assay.json("inspect", assay.pocket, "--list")["list"]
    assert len(listed) == 1309 and sum(entry["bytes"] for entry in listed) == out["bytes"]
