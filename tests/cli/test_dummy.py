"""Configs without weights: the byte table of inspect --config, and dummy weights."""
import json
import pathlib

CONFIGS = "models/configs"


def byte_table(assay, name, *more):
    done = assay.run("inspect", "--config", f"{CONFIGS}/{name}.json", "--json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_byte_tables_of_the_published_sizes(assay):
    for name, parameters, kv, state in [("qwen3.5-35b-a3b", 34.66e9, 20, 60), ("qwen3.5-122b-a10b", 122.1e9, 24, 144),
                                        ("qwen3.5-397b-a17b", 396.3e9, 30, 180)]:
        table = byte_table(assay, name)
        assert abs(table["parameters"] / parameters - 1) < 1e-3
        assert table["kv_bytes_per_token"] == kv * 1024
        # The delta states, and under 3 % for the inputs that the convolutions keep.
        assert 1 <= table["state_bytes_per_sequence"] / (state << 20) < 1.03
        assert sum(c["bytes"] for c in table["classes"].values()) == table["bytes"]


def test_byte_table_follows_the_format(assay):
    bf16, modelopt, nvfp4 = (byte_table(assay, "qwen3.5-35b-a3b", "--dummy-format", name)
                             for name in ("bf16", "modelopt", "nvfp4"))
    assert bf16["bytes"] == 2 * bf16["parameters"]
    assert modelopt["classes"]["attention"] == bf16["classes"]["attention"]
    assert abs(modelopt["classes"]["experts"]["bytes"] / modelopt["classes"]["experts"]["parameters"] - 0.5625) < 1e-4
    assert nvfp4["bytes"] < modelopt["bytes"] < bf16["bytes"]


def test_byte_table_equals_what_loads(assay):
    table = json.loads(assay.run("inspect", "--config", f"{assay.pocket}/config.json", "--json").stdout)
    assert table["parameters"] == 17_920_288 - mtp_parameters(assay)


def mtp_parameters(assay):
    listed = assay.json("inspect", assay.pocket, "--list")["list"]
    count = 0
    for tensor in listed:
        if tensor["name"].startswith("mtp."):
            size = 1
            for n in tensor["shape"]:
                size *= n
            count += size
    return count


def test_inspect_wants_a_model_or_a_config(assay):
    assert assay.run("inspect").returncode == 2
    assert assay.run("inspect", assay.pocket, "--config", f"{CONFIGS}/qwen3.5-4b.json").returncode == 2


def test_dummy_weights_answer(assay):
    command = ["generate", assay.pocket, "--load-format", "dummy", "--dummy-layers", "3", "--prompt", "2+2", "--max-tokens",
               "4", "--temperature", "0"]
    out = assay.json(*command)
    assert out["ids"] and out == assay.json(*command)


def test_bench_runs_a_config_alone(assay, tmp_path):
    config = json.loads((pathlib.Path(assay.pocket) / "config.json").read_text())
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(config))
    out = assay.json("bench", alone, "--load-format", "dummy", "--context", "8", "--decode-tokens", "2",
                     "--repeats", "1")
    assert out["decode_tokens_per_s"] > 0
    refused = assay.run("generate", alone, "--load-format", "dummy", "--prompt", "2+2")
    assert refused.returncode != 0 and "a config alone has no tokenizer" in refused.stderr

