"""Exit codes and messages of wrong usage, wrong models and the environment."""
import pathlib

import pytest

COMMANDS = ["serve", "chat", "generate", "perplexity", "eval", "inspect", "bench", "prove", "repro"]
OF_MODELS = [command for command in COMMANDS if command != "repro"]  # repro takes a file
LOADING = [command for command in OF_MODELS if command != "inspect"]
COMMON = ["--threads", "--compute", "--force", "--context-length", "--max-running-requests", "--kv-cache-bytes",
          "--memory-utilization", "--explain"]
ARGUMENTS = {"generate": ["--prompt", "x"], "perplexity": ["--file", "README.md"], "eval": ["--file", "README.md"]}


def test_help_names_every_command(assay):
    done = assay.run("--help")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines() if line[2:3].isalpha() and line[:2] == "  "] == COMMANDS


@pytest.mark.parametrize("command", OF_MODELS)
def test_help_explains_every_flag(assay, command):
    done = assay.run(command, "--help")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    flags = [index for index, line in enumerate(lines) if line.startswith("  --")]
    assert flags
    for index in flags:
        flag = lines[index].split()[0]
        assert f"(Env:ASSAY_{flag[2:].upper().replace('-', '_')})" in lines[index]
        text = lines[index].split(")", 1)[1] + (lines[index + 1] if index + 1 < len(lines) else "")
        assert len(text.strip()) > 10, f"{command} {flag} is not explained"
    if command in LOADING:
        assert all(any(lines[index].startswith(f"  {flag} ") for index in flags) for flag in COMMON)


@pytest.mark.parametrize("arguments", [
    [], ["sing"], ["generate"], ["generate", "POCKET"], ["generate", "POCKET", "--prompt", "x", "--sing"],
    ["generate", "POCKET", "--prompt", "x", "--prompt-file", "y"], ["generate", "POCKET", "--prompt", "x", "--compute", "f16"],
    ["generate", "POCKET", "--prompt", "x", "--force", "linear"], ["generate", "POCKET", "--prompt", "x", "--top-p", "1.5"],
    ["generate", "POCKET", "--prompt", "x", "--threads", "many"], ["perplexity", "POCKET"], ["eval", "POCKET"],
    ["generate", "POCKET", "--prompt", "x", "--kv-cache-bytes", "-5"], ["serve", "POCKET", "--port", "65536"]])
def test_wrong_usage_is_2(assay, arguments):
    done = assay.run(*[assay.pocket if argument == "POCKET" else argument for argument in arguments])
    assert done.returncode == 2
    assert done.stderr and not done.stdout


@pytest.mark.parametrize("command", OF_MODELS)
def test_missing_model_is_3(assay, command, tmp_path):
    for directory, words in [(tmp_path / "none", "no such model directory"), (tmp_path, "config.json")]:
        done = assay.run(command, directory, *ARGUMENTS.get(command, []))
        assert done.returncode == 3
        assert str(directory) in done.stderr and words in done.stderr
        assert not done.stdout


def test_damaged_checkpoint_is_3(assay, tmp_path):
    for file in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                 "chat_template.jinja", "hf_quant_config.json"]:
        (tmp_path / file).symlink_to(f"{assay.pocket}/{file}")
    weights = open(f"{assay.pocket}/model.safetensors", "rb").read()
    (tmp_path / "model.safetensors").write_bytes(weights[:-100])
    for command in ["generate", "inspect"]:
        done = assay.run(command, tmp_path, *ARGUMENTS.get(command, []))
        assert done.returncode == 3
        assert "model.safetensors" in done.stderr


@pytest.mark.parametrize("file", ["tokenizer.json", "chat_template.jinja", "model.safetensors"])
def test_a_missing_file_is_3(assay, tmp_path, file):
    for healthy in pathlib.Path(assay.pocket).iterdir():
        if healthy.name != file:
            (tmp_path / healthy.name).symlink_to(healthy)
    done = assay.run("serve", tmp_path, "--port", "0", "--no-receipt")
    assert done.returncode == 3
    assert str(tmp_path) in done.stderr and file.partition(".")[2] in done.stderr, done.stderr


def test_a_directory_in_place_of_a_file_is_named(assay, tmp_path):
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"]:
        model = tmp_path / f"{file} of a model"
        (model / file).mkdir(parents=True)
        for healthy in pathlib.Path(assay.pocket).iterdir():
            if healthy.name != file:
                (model / healthy.name).symlink_to(healthy)
        done = assay.run("serve", model, "--port", "0", "--no-receipt")
        assert done.returncode in (1, 3) and str(model / file) in done.stderr, (file, done.stderr)


def test_missing_prompt_file_is_1(assay, tmp_path):
    done = assay.run("perplexity", assay.pocket, "--file", tmp_path / "none")
    assert done.returncode == 1
    assert "none" in done.stderr


def test_force_of_an_unknown_row_is_2(assay):
    done = assay.run("generate", assay.pocket, "--prompt", "x", "--force", "linear=abacus")
    assert done.returncode == 2
    assert "abacus" in done.stderr and "reference" in done.stderr
    done = assay.run("generate", assay.pocket, "--prompt", "x", "--force", "sorting=reference")
    assert done.returncode == 2
    assert "sorting" in done.stderr


def test_explain_shows_the_forced_row(assay):
    done = assay.run("generate", assay.pocket, "--prompt", "Hi", "--max-tokens", 1, "--explain", "--force",
                     "rms_norm=reference", "--force", "sample=reference")
    assert done.returncode == 0
    assert "forced" in done.stderr and "rms_norm" in done.stderr
    assert "rms_norm" not in done.stdout


def test_environment_sets_flags_and_the_command_line_wins(assay, goldens):
    golden = goldens["capital-001"]
    env = {"ASSAY_GREEDY": "1", "ASSAY_MAX_TOKENS": "3", "ASSAY_PROMPT": golden["prompt"], "ASSAY_MODEL": assay.pocket}
    assert assay.json("generate", env=env)["ids"] == golden["greedy_ids"][:3]
    assert assay.json("generate", "--max-tokens", 5, env=env)["ids"] == golden["greedy_ids"][:5]
    done = assay.run("generate", env={**env, "ASSAY_FORCE": "linear=abacus,sample=reference"})
    assert done.returncode == 2 and "abacus" in done.stderr
