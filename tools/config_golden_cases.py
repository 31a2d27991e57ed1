"""The checkpoints that make_config_goldens.py makes: sizes, storage formats and traps."""
from dataclasses import dataclass, field

FULL, LINEAR = "full_attention", "linear_attention"


@dataclass
class Case:
    name: str
    about: str
    layer_types: list
    formats: dict = field(default_factory=dict)  # of kinds of tensors; others: BF16
    hidden: int = 32
    vocab: int = 120
    text_tokens: int = 96
    # Attention
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    rotary_factor: float = 0.25
    rope_theta: float = 10000.0
    # Gated delta net
    key_heads: int = 2
    value_heads: int = 2
    key_dim: int = 16
    value_dim: int = 16
    conv_width: int = 4
    # Feed-forward; experts 0: dense
    experts: int = 0
    top_k: int = 0
    intermediate: int = 32
    shared: int = 32
    fused_experts: bool = False
    # Storage
    tied: str = "no"  # no; text: tie_word_embeddings in the text model's config; outer: only beside text_config
    wrapped: bool = False
    shards: int = 1
    mtp: bool = False
    input_scales: bool = True
    cache_scales: bool = False
    # Traps
    unequal_scales: bool = False  # of matrices that an engine may fuse
    odd_scales: bool = False  # block scales 0x00 over codes, and subnormal ones
    large_dt: bool = False
    hard_silu: bool = False  # inputs of silu around -100
    tiny_keys: bool = False

    def format_of(self, kind):
        """kinds: embed head attention attention_out delta gates mlp experts router vectors a_log"""
        return self.formats.get(kind, "F32" if kind == "a_log" else "BF16")

    def scale_of(self, base):
        """How far the global scale of a matrix is above the least possible one."""
        if not self.unequal_scales:
            return 1.0
        part = base.rsplit(".", 1)[-1]
        return dict(up_proj=11.0, k_proj=10.0, v_proj=37.0, in_proj_z=9.0, in_proj_a=5.0).get(part, 1.0)


MODELOPT = dict(experts="NVFP4")
ALL_NVFP4 = dict(attention="NVFP4", attention_out="NVFP4", delta="NVFP4", mlp="NVFP4", experts="NVFP4")

CASES = [
    Case("dense_bf16", "dense, one key head a value head, untied", [LINEAR, LINEAR, FULL]),
    Case("dense_ratio2_tied", "two value heads a key head, tied in the text model", [LINEAR, FULL, LINEAR, FULL],
         value_heads=4, tied="text", text_tokens=130, heads=3, kv_heads=3, rotary_factor=0.5),
    Case("dense_ratio3", "three value heads a key head, one kv head, F32 at 2 mod 4", [LINEAR, LINEAR, LINEAR, FULL],
         key_heads=1, value_heads=3, heads=6, kv_heads=1, hidden=48, text_tokens=70),
    Case("dense_ratio4_f16", "four value heads a key head, all matrices F16", [LINEAR, FULL],
         formats=dict(embed="F16", head="F16", attention="F16", attention_out="F16", delta="F16", gates="F16",
                      mlp="F16", vectors="F16", a_log="F16"),
         value_heads=8, key_dim=8, value_dim=16, hidden=48),
    Case("dense_f32", "all F32, value dim below key dim, three taps", [FULL, LINEAR, LINEAR],
         formats=dict(embed="F32", head="F32", attention="F32", attention_out="F32", delta="F32", gates="F32",
                      mlp="F32", vectors="F32"),
         key_dim=32, value_dim=16, conv_width=3, vocab=72, intermediate=24),
    Case("dense_nvfp4_all", "attention, delta net and MLP NVFP4, unequal global scales of q/k/v, qkv/z and gate/up",
         [LINEAR, FULL, LINEAR, FULL], formats=ALL_NVFP4 | dict(head="NVFP4"), hidden=64, value_heads=4,
         intermediate=80, unequal_scales=True, cache_scales=True, input_scales=False),
    Case("dense_gates_nvfp4", "also the delta net's gates NVFP4; subnormal and zero block scales", [LINEAR, LINEAR, FULL],
         formats=ALL_NVFP4 | dict(gates="NVFP4"), odd_scales=True, unequal_scales=True, intermediate=48),
    Case("dense_delta_only", "no attention layer but the last of five; irregular", [LINEAR, LINEAR, LINEAR, LINEAR, FULL],
         key_heads=3, value_heads=9, key_dim=8, value_dim=8, text_tokens=150),
    Case("dense_attention_only", "attention in every layer, whole heads rotate, large theta", [FULL, FULL, FULL],
         rotary_factor=1.0, rope_theta=1e7, heads=4, kv_heads=4, head_dim=20),
    Case("dense_traps", "dt_bias 100, silu of large negatives, keys near zero", [LINEAR, FULL, LINEAR],
         value_heads=4, large_dt=True, hard_silu=True, tiny_keys=True, formats=dict(vectors="F32")),
    Case("dense_wrapped_outer_tie", "wrapped, tied flag only at top level, vision tensors", [LINEAR, FULL],
         wrapped=True, tied="outer", hidden=48, value_heads=4),
    Case("moe_modelopt", "experts NVFP4, the rest BF16, A_log too", [LINEAR, FULL, LINEAR],
         formats=MODELOPT | dict(a_log="BF16"), experts=8, top_k=2,
         value_heads=4),
    Case("moe_wrapped_sharded", "wrapped, three shards, vision and draft tensors, seven experts",
         [LINEAR, LINEAR, FULL], formats=MODELOPT, wrapped=True, shards=3, mtp=True, experts=7, top_k=3,
         key_heads=1, value_heads=2, unequal_scales=True),
    Case("moe_fused_bf16", "experts fused in two tensors, five of them, two chosen", [FULL, LINEAR], fused_experts=True,
         experts=5, top_k=2, intermediate=24, shared=40, value_heads=6, text_tokens=110),
    Case("moe_per_expert_f16", "experts of their own names in F16, all chosen", [LINEAR, FULL],
         formats=dict(experts="F16", mlp="F16"), experts=3, top_k=3, intermediate=20, shared=12, hidden=40),
    Case("moe_top1_odd", "eleven experts, one chosen; block scales zero and subnormal", [LINEAR, FULL, FULL],
         formats=MODELOPT, experts=11, top_k=1, odd_scales=True, unequal_scales=True, kv_heads=1, intermediate=16),
    Case("moe_all_nvfp4", "everything but router and embeddings NVFP4; fused rows of different global scales",
         [LINEAR, LINEAR, FULL], formats=ALL_NVFP4 | dict(head="NVFP4"), experts=6, top_k=2, unequal_scales=True,
         wrapped=True, shards=2, head_dim=32, rotary_factor=0.5, heads=2, kv_heads=1),
    Case("moe_traps", "thirteen experts with dt_bias 100, silu of large negatives, keys near zero", [LINEAR, FULL, LINEAR],
         formats=MODELOPT, experts=13, top_k=4, key_heads=1, value_heads=3, large_dt=True,
         hard_silu=True, tiny_keys=True, intermediate=16, shared=16),
    Case("moe_f32_router", "router and gates F32, shared expert NVFP4, fused experts F32", [FULL, LINEAR, LINEAR],
         formats=dict(router="F32", gates="F32", mlp="NVFP4", experts="F32", vectors="F32"), fused_experts=True,
         experts=4, top_k=2, intermediate=16, conv_width=2),
]
