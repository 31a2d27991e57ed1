"""assay generate against the goldens of Hugging Face, and what its flags do."""
import math

import pytest

MARGIN_NATS = 0.5  # so wide that bf16 activations must give the same tokens


def greedy(assay, golden, *flags):
    return assay.json("generate", assay.pocket, "--prompt", golden["prompt"], "--greedy", "--max-tokens", 64, *flags)


def clear_goldens(goldens):
    return [golden for golden in goldens.values() if golden["min_margin"] > MARGIN_NATS and len(golden["input_ids"]) < 2000]


def test_greedy_text_equals_the_goldens(assay, goldens):
    chosen = clear_goldens(goldens)
    assert len(chosen) >= 8
    for golden in chosen:
        out = greedy(assay, golden)
        assert out["prompt_ids"] == golden["input_ids"]
        assert out["ids"] == golden["greedy_ids"], golden["id"]
        assert out["text"] == golden["greedy_text"].removesuffix("<|im_end|>")
        assert out["finish_reason"] == ("stop" if golden["greedy_text"].endswith("<|im_end|>") else "length")


def test_logprobs_in_f32_equal_the_goldens(assay, goldens):
    golden = goldens["capital-001"]
    out = greedy(assay, golden, "--compute", "f32")
    wanted = [step["logprobs"][0] for step in golden["greedy_top20"]]
    assert out["ids"] == golden["greedy_ids"]
    assert len(out["logprobs"]) == len(wanted)
    assert max(abs(a - b) for a, b in zip(out["logprobs"], wanted)) < 2e-5


def test_plain_output_is_the_text(assay, goldens):
    golden = goldens["capital-001"]
    done = assay.run("generate", assay.pocket, "--prompt", golden["prompt"], "--greedy")
    assert done.returncode == 0
    assert done.stdout == golden["greedy_text"].removesuffix("<|im_end|>") + "\n"
    assert not done.stderr


def test_prompt_file_and_standard_input(assay, goldens, tmp_path):
    golden = goldens["capital-001"]
    file = tmp_path / "prompt.txt"
    file.write_text(golden["prompt"])
    flags = ["--greedy", "--max-tokens", 4]
    assert assay.json("generate", assay.pocket, "--prompt-file", file, *flags)["ids"] == golden["greedy_ids"][:4]
    from_input = assay.json("generate", assay.pocket, "--prompt-file", "-", *flags, stdin=golden["prompt"])
    assert from_input["ids"] == golden["greedy_ids"][:4]


def test_chat_applies_the_template(assay, goldens):
    golden = goldens["capital-001"]
    question = "Kuala Lumpur is the capital of what country"
    out = assay.json("generate", assay.pocket, "--chat", "--thinking", "off", "--prompt", question, "--greedy")
    assert out["prompt_ids"] == golden["input_ids"]
    assert out["text"] == "Kuala Lumpur is the capital of Malaysia."
    thinking = assay.json("generate", assay.pocket, "--chat", "--thinking", "on", "--prompt", question, "--greedy")
    assert thinking["prompt_ids"] != golden["input_ids"]
    assert "</think>" in thinking["text"]


def test_seed_decides_the_sample(assay):
    prompt = ["--chat", "--thinking", "off", "--prompt", "Tell me a story about a fox.", "--temperature", 1.2, "--top-k", 0,
              "--top-p", 1, "--max-tokens", 40]
    first, again, other = [assay.json("generate", assay.pocket, *prompt, "--seed", seed) for seed in (7, 7, 8)]
    assert first == again
    assert first["ids"] != other["ids"]
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in first["logprobs"])
    assert len(first["logprobs"]) == len(first["ids"])


def story(assay, temperature=3, top_k=0, top_p=1, min_p=0):
    return assay.json("generate", assay.pocket, "--chat", "--thinking", "off", "--prompt", "Tell me a story about a fox.",
                      "--max-tokens", 24, "--seed", 3, "--temperature", temperature, "--top-k", top_k, "--top-p", top_p,
                      "--min-p", min_p)["ids"]


@pytest.mark.parametrize("only", [{"temperature": 0}, {"top_k": 1}, {"top_p": 0}, {"min_p": 1}])
def test_flags_that_leave_one_token_are_greedy(assay, only):
    greedy_ids = story(assay, temperature=0)
    assert story(assay) != greedy_ids
    assert story(assay, **only) == greedy_ids


def test_prompt_as_long_as_the_context_is_refused(assay):
    done = assay.run("generate", assay.pocket, "--prompt", "one two three " * 64, "--context-length", 64)
    assert done.returncode == 2
    assert "context" in done.stderr and "63 tokens" in done.stderr


@pytest.mark.parametrize("context, warned", [(8192, False), (8193, True)])
def test_a_context_longer_than_the_models_is_said(assay, context, warned):
    done = assay.run("generate", assay.pocket, "--prompt", "x", "--max-tokens", 1, "--context-length", context,
                     "--log-level", "warning")
    assert done.returncode == 0
    assert ("context-length 8193 is more than the 8192 positions" in done.stderr) == warned, done.stderr


def test_context_end_finishes_by_length(assay):
    out = assay.json("generate", assay.pocket, "--chat", "--prompt", "Tell me a story about a fox.", "--context-length", 64,
                     "--max-tokens", 0, "--greedy")
    assert out["finish_reason"] == "length"
    assert len(out["prompt_ids"]) + len(out["ids"]) in (64, 65)
