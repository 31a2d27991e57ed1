#!/usr/bin/env python3
"""Makes tests/goldens/configs: tiny random Qwen3.5 checkpoints and what transformers says about a text, in float64.

Needs torch, numpy and transformers >= 5.17 (the goldens were made with torch 2.15.0 and transformers 5.24.0), on a CPU:

    OMP_NUM_THREADS=1 python tools/make_config_goldens.py [NAME ...]

Each checkpoint stores its weights the way some release does: plain or ModelOpt NVFP4, per-expert or fused, sharded,
wrapped. The golden is computed from the bytes that were written: matrices are decoded from the file's tensors and run
through transformers' own modules with every fp32 step widened to float64, so that the golden has no noise of its own.
A seed is taken when the router's choices and the greedy tokens are decidable (gap >= 2e-4 and margin >= 0.02).

golden.json of a checkpoint: ids (the text), logprobs (entry i is that of ids[i + 1] given ids[0..i]), mean_nll,
greedy_ids (16 tokens after the text), greedy_margins (nats between the first and the second token), router_gap.
"""
import json
import math
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.qwen3_5 import modeling_qwen3_5 as dense_code
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as moe_code
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

from config_golden_cases import CASES
from safetensors_file import SafetensorsFile, nvfp4_quantise

OUT = pathlib.Path(__file__).resolve().parents[1] / "tests/goldens/configs"
GREEDY_TOKENS = 16
MIN_ROUTER_GAP = 2e-4
MIN_MARGIN = 0.02
MAX_SEEDS = 60


class Widened:
    """Stands for the module `torch` inside transformers' modules: float32 means float64."""

    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


class NoFloat32(TorchDispatchMode):
    """Fails if a step computes in float32 after all."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(value, torch.Tensor):
                assert value.dtype not in (torch.float32, torch.bfloat16, torch.float16), f"{func} gave {value.dtype}"
        return out


def widen_transformers():
    for code in (dense_code, moe_code):
        code.torch = Widened()
    torch.Tensor.float = torch.Tensor.double
    softmax = torch.nn.functional.softmax
    torch.nn.functional.softmax = lambda x, dim=None, dtype=None, **rest: softmax(x, dim=dim)


def text_config(case):
    """The fields of the text model as config.json has them."""
    fields = dict(attention_bias=False, attn_output_gate=True, dtype="bfloat16", eos_token_id=0, hidden_act="silu",
                  head_dim=case.head_dim, hidden_size=case.hidden, layer_types=case.layer_types,
                  linear_conv_kernel_dim=case.conv_width, linear_key_head_dim=case.key_dim,
                  linear_num_key_heads=case.key_heads, linear_num_value_heads=case.value_heads,
                  linear_value_head_dim=case.value_dim, max_position_embeddings=512,
                  num_attention_heads=case.heads, num_hidden_layers=len(case.layer_types),
                  num_key_value_heads=case.kv_heads, rms_norm_eps=1e-6, vocab_size=case.vocab,
                  rope_parameters=dict(rope_type="default", rope_theta=case.rope_theta,
                                       partial_rotary_factor=case.rotary_factor, mrope_section=[11, 11, 10],
                                       mrope_interleaved=True))
    if case.experts:
        fields.update(num_experts=case.experts, num_experts_per_tok=case.top_k,
                      moe_intermediate_size=case.intermediate, shared_expert_intermediate_size=case.shared)
    else:
        fields.update(intermediate_size=case.intermediate)
    return fields


def written_config(case):
    """config.json: the text model alone, or wrapped as the multimodal releases are."""
    text = text_config(case)
    kind = "qwen3_5_moe" if case.experts else "qwen3_5"
    name = "Qwen3_5Moe" if case.experts else "Qwen3_5"
    if case.tied != "outer":
        text["tie_word_embeddings"] = case.tied == "text"
    if not case.wrapped:
        return dict(architectures=[name + "ForCausalLM"], model_type=kind + "_text", **text)
    text["model_type"] = kind + "_text"
    outer = dict(architectures=[name + "ForConditionalGeneration"], model_type=kind, text_config=text,
                 vision_config=dict(depth=1, hidden_size=16))
    if case.tied == "outer":
        outer["tie_word_embeddings"] = True
    return outer


class Weights:
    """Random matrices by name, stored in the case's formats. The model sees what the stored bytes decode to."""

    def __init__(self, case, seed):
        self.case = case
        self.random = np.random.default_rng([seed, *case.name.encode()])
        self.prefix = "model.language_model." if case.wrapped else "model."
        self.file = SafetensorsFile()
        self.decoded = {}

    def normal(self, *shape, scale=1.0, mean=0.0):
        return self.random.normal(mean, scale, shape)

    def put(self, name, values, dtype):
        """A plain tensor; `name` without the prefix of the text model, except lm_head."""
        self.decoded[self.full(name, "model.")] = self.file.add(self.full(name, self.prefix), values, dtype)

    @staticmethod
    def full(name, prefix):
        return name if name.startswith("lm_head") else prefix + name

    def matrix(self, base, values, kind):
        """A linear layer's matrix in the format that the case gives to `kind`."""
        fmt = self.case.format_of(kind)
        if fmt != "NVFP4":
            self.put(base + ".weight", values, fmt)
            return
        full = self.full(base, self.prefix)
        self.decoded[self.full(base, "model.") + ".weight"] = self.add_nvfp4(full, self.quantise(base, values))

    def quantise(self, base, values):
        matrix = nvfp4_quantise(values, stretch=self.case.scale_of(base))
        if self.case.odd_scales:
            flat = matrix.scales.reshape(-1)
            picks = self.random.choice(flat.size, size=max(4, flat.size // 16), replace=False)
            flat[picks[::2]] = 0x00  # over codes that are not zero: the block is 0
            flat[picks[1::2]] = self.random.integers(1, 8, size=len(picks[1::2]))  # subnormal
        return matrix

    def add_nvfp4(self, full, matrix):
        self.file.add_raw(full + ".weight", "U8", matrix.codes)
        self.file.add_raw(full + ".weight_scale", "F8_E4M3", matrix.scales)
        self.file.add(full + ".weight_scale_2", np.array(matrix.global_scale), "F32")
        if self.case.input_scales:
            self.file.add(full + ".input_scale", np.array(0.01), "F32")
        return matrix.decode()

    def linear(self, rows, cols, gain=1.0):
        return self.normal(rows, cols, scale=gain / math.sqrt(cols))

    def fill(self):
        case = self.case
        # A tied embedding is also the head: logits of about 3, as untied ones.
        scale = 1.0 if case.tied == "no" else 3 / math.sqrt(case.hidden)
        self.put("embed_tokens.weight", self.normal(case.vocab, case.hidden, scale=scale), case.format_of("embed"))
        if case.tied == "no":
            self.matrix("lm_head", self.linear(case.vocab, case.hidden, gain=3.0), "head")
        else:
            self.decoded["lm_head.weight"] = self.decoded["model.embed_tokens.weight"]
        self.put("norm.weight", self.normal(case.hidden, scale=0.1), "BF16")
        for i, kind in enumerate(case.layer_types):
            base = f"layers.{i}."
            self.put(base + "input_layernorm.weight", self.normal(case.hidden, scale=0.2), "BF16")
            if kind == "full_attention":
                self.attention(base + "self_attn.")
            else:
                self.delta_net(base + "linear_attn.")
            self.put(base + "post_attention_layernorm.weight", self.normal(case.hidden, scale=0.2), "BF16")
            self.feed_forward(base + "mlp.")
        self.extras()

    def attention(self, base):
        case = self.case
        width = case.heads * case.head_dim
        self.matrix(base + "q_proj", self.linear(2 * width, case.hidden, gain=1.5), "attention")
        self.matrix(base + "k_proj", self.linear(case.kv_heads * case.head_dim, case.hidden), "attention")
        self.matrix(base + "v_proj", self.linear(case.kv_heads * case.head_dim, case.hidden), "attention")
        self.matrix(base + "o_proj", self.linear(case.hidden, width, gain=1.5), "attention_out")
        self.put(base + "q_norm.weight", self.normal(case.head_dim, scale=0.2, mean=0.5), "BF16")
        self.put(base + "k_norm.weight", self.normal(case.head_dim, scale=0.2), "BF16")

    def delta_net(self, base):
        case = self.case
        keys, values = case.key_heads * case.key_dim, case.value_heads * case.value_dim
        q = self.linear(keys, case.hidden)
        # Keys that lean towards the queries: reads nearly orthogonal to the state drown in rounding otherwise.
        k = 0.7 * q + 0.7 * self.linear(keys, case.hidden)
        if case.tiny_keys:
            k[:case.key_dim] *= 2e-3  # squares that sum to about the 1e-6 of the l2 norm
        v = self.linear(values, case.hidden)
        self.matrix(base + "in_proj_qkv", np.concatenate([q, k, v]), "delta")
        z = self.linear(values, case.hidden)
        if case.hard_silu:
            z[0] *= 60
        self.matrix(base + "in_proj_z", z, "delta")
        self.matrix(base + "in_proj_b", self.linear(case.value_heads, case.hidden), "gates")
        self.matrix(base + "in_proj_a", self.linear(case.value_heads, case.hidden), "gates")
        conv = self.normal(2 * keys + values, 1, case.conv_width, scale=0.4)
        conv[:, :, -1] += 0.7
        if case.hard_silu:
            conv[-1] *= 80
        self.put(base + "conv1d.weight", conv, case.format_of("vectors"))
        dt_bias = self.normal(case.value_heads, scale=0.5, mean=-2.0)
        if case.large_dt:
            dt_bias[0] = 100.0
        self.put(base + "dt_bias", dt_bias, "BF16" if case.format_of("vectors") == "F16" else case.format_of("vectors"))
        # F32 as some releases have it; after an odd number of 16-bit values it lies at 2 mod 4.
        self.put(base + "A_log", np.log(self.random.uniform(0.2, 3.0, case.value_heads)), case.format_of("a_log"))
        self.put(base + "norm.weight", self.normal(case.value_dim, scale=0.2, mean=1.0), case.format_of("a_log"))
        self.matrix(base + "out_proj", self.linear(case.hidden, values, gain=1.5), "delta")

    def mlp(self, base, width, kind):
        case = self.case
        gate = self.linear(width, case.hidden)
        if case.hard_silu:
            gate[0] *= 100
        self.matrix(base + "gate_proj", gate, kind)
        self.matrix(base + "up_proj", self.linear(width, case.hidden), kind)
        self.matrix(base + "down_proj", self.linear(case.hidden, width, gain=1.5), kind)

    def feed_forward(self, base):
        case = self.case
        if not case.experts:
            self.mlp(base, case.intermediate, "mlp")
            return
        self.matrix(base + "gate", self.linear(case.experts, case.hidden, gain=1.5), "router")
        self.matrix(base + "shared_expert_gate", self.linear(1, case.hidden), "router")
        self.mlp(base + "shared_expert.", case.shared, "mlp")
        if case.fused_experts:
            fmt = case.format_of("experts")
            self.put(base + "experts.gate_up_proj",
                     self.normal(case.experts, 2 * case.intermediate, case.hidden, scale=case.hidden**-0.5), fmt)
            self.put(base + "experts.down_proj", self.normal(case.experts, case.hidden, case.intermediate,
                                                             scale=2.0 * case.intermediate**-0.5), fmt)
            return
        for e in range(case.experts):
            self.mlp(f"{base}experts.{e}.", case.intermediate, "experts")
        self.fuse_decoded("model." + base + "experts.")

    def fuse_decoded(self, base):
        """transformers holds the experts of a layer in two tensors."""
        take = lambda e, part: self.decoded.pop(f"{base}{e}.{part}.weight")
        parts = [(np.concatenate([take(e, "gate_proj"), take(e, "up_proj")]), take(e, "down_proj"))
                 for e in range(self.case.experts)]
        self.decoded[base + "gate_up_proj"] = np.stack([p[0] for p in parts])
        self.decoded[base + "down_proj"] = np.stack([p[1] for p in parts])

    def extras(self):
        """Tensors that the text model does not compute with."""
        case = self.case
        if case.wrapped:
            self.file.add("model.visual.patch_embed.proj.weight", self.normal(16, 3), "BF16")
            self.file.add("model.visual.patch_embed.proj.bias", self.normal(16), "BF16")
        if case.mtp:
            self.file.add("mtp.fc.weight", self.normal(case.hidden, 2 * case.hidden), "BF16")
            self.file.add("mtp.norm.weight", self.normal(case.hidden), "BF16")
        if case.cache_scales:
            for i, kind in enumerate(case.layer_types):
                if kind != "full_attention":
                    continue
                for scale in ("k_proj.k_scale", "v_proj.v_scale"):
                    self.file.add(f"{self.prefix}layers.{i}.self_attn.{scale}", np.array(1.5), "F32")


def build_model(case, decoded):
    fields = text_config(case)
    fields.pop("dtype")
    if case.experts:
        config, make = Qwen3_5MoeTextConfig(**fields), moe_code.Qwen3_5MoeForCausalLM
    else:
        config, make = Qwen3_5TextConfig(**fields), dense_code.Qwen3_5ForCausalLM
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    config.use_cache = False
    model = make(config).double().eval()
    tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in decoded.items()}
    loaded = model.load_state_dict(tensors, strict=False)
    assert not loaded.unexpected_keys and not loaded.missing_keys, loaded
    return model


class RouterGap:
    """The smallest gap between the k-th and the next logit that any token saw."""

    def __init__(self, model, case):
        self.least = math.inf
        if case.experts and case.top_k < case.experts:
            for layer in model.model.layers:
                layer.mlp.gate.register_forward_hook(lambda gate, args, out: self.see(gate, args[0], case.top_k))

    def see(self, gate, x, top_k):
        logits = torch.nn.functional.linear(x.reshape(-1, x.shape[-1]), gate.weight)
        best = logits.topk(top_k + 1, -1).values
        self.least = min(self.least, (best[:, -2] - best[:, -1]).min().item())


def logits_of(model, ids):
    with torch.no_grad(), NoFloat32():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def golden(case, decoded, ids):
    model = build_model(case, decoded)
    gap = RouterGap(model, case)
    logprobs = torch.log_softmax(logits_of(model, ids), -1)
    picked = [logprobs[i, token].item() for i, token in enumerate(ids[1:])]
    text, greedy, margins = list(ids), [], []
    for _ in range(GREEDY_TOKENS):
        last = logits_of(model, text)[-1]
        best = last.topk(2)
        greedy.append(best.indices[0].item())
        margins.append((best.values[0] - best.values[1]).item())
        text.append(greedy[-1])
    return dict(ids=ids, logprobs=[round(p, 7) for p in picked], mean_nll=round(-sum(picked) / len(picked), 8),
                greedy_ids=greedy, greedy_margins=[round(m, 6) for m in margins],
                router_gap=None if math.isinf(gap.least) else round(gap.least, 7),
                made_with=f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, float64")


def decidable(result):
    gap = result["router_gap"]
    return min(result["greedy_margins"]) >= MIN_MARGIN and (gap is None or gap >= MIN_ROUTER_GAP)


def make(case):
    for seed in range(MAX_SEEDS):
        weights = Weights(case, seed)
        weights.fill()
        ids = [int(i) for i in weights.random.integers(0, case.vocab, case.text_tokens)]
        result = golden(case, weights.decoded, ids)
        if decidable(result):
            break
    else:
        raise SystemExit(f"{case.name}: no seed of {MAX_SEEDS} is decidable")
    directory = OUT / case.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(written_config(case), indent=1) + "\n")
    weights.file.write(directory, case.shards)
    (directory / "golden.json").write_text(json.dumps(dict(case=case.about, **result)) + "\n")
    size = sum(f.stat().st_size for f in directory.iterdir())
    misaligned = sum(begin % 4 == 2 for _, dtype, begin in weights.file.offsets(case.shards) if dtype == "F32")
    print(f"{case.name}: seed {seed}, mean nll {result['mean_nll']:.4f}, least margin {min(result['greedy_margins']):.3f},"
          f" router gap {result['router_gap']}, {size} bytes, {misaligned} F32 tensors at 2 mod 4", flush=True)
    return size


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    widen_transformers()
    names = sys.argv[1:]
    total = sum(make(case) for case in CASES if not names or case.name in names)
    print(f"{total} bytes")


if __name__ == "__main__":
    main()
