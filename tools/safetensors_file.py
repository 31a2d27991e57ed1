"""Writes safetensors files byte by byte, and encodes and decodes the formats they hold. numpy only."""
import json

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E2M1_EDGES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])  # between neighbouring magnitudes
NVFP4_BLOCK = 16


def e4m3_table():
    """Values of the 127 codes without sign and NaN."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))


E4M3 = e4m3_table()


def bf16_bits(values):
    """Nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def encode(values, dtype):
    """The bytes of the values, and what these decode to, in float64."""
    if dtype == "BF16":
        bits = bf16_bits(values)
        decoded = (bits.astype(np.uint32) << 16).view(np.float32)
        return bits.tobytes(), decoded.astype(np.float64).reshape(np.shape(values))
    stored = np.asarray(values).astype({"F16": np.float16, "F32": np.float32, "F64": np.float64}[dtype])
    return stored.tobytes(), stored.astype(np.float64)


class Nvfp4:
    """codes U8 [N, K/2] (element 2j in the low nibble), scales E4M3 [N, K/16], one global scale."""

    def __init__(self, codes, scales, global_scale):
        self.codes, self.scales, self.global_scale = codes, scales, global_scale

    def decode(self):
        rows, half = self.codes.shape
        nibbles = np.stack([self.codes & 15, self.codes >> 4], axis=-1).reshape(rows, 2 * half)
        return E2M1[nibbles] * E4M3[self.scales].repeat(NVFP4_BLOCK, axis=1) * float(np.float32(self.global_scale))


def nvfp4_quantise(values, stretch=1.0):
    """As ModelOpt does. stretch > 1 leaves room above the largest block scale: another, equally valid global scale."""
    rows, cols = values.shape
    assert cols % NVFP4_BLOCK == 0, f"{cols} inputs"
    global_scale = np.float32(np.abs(values).max() / (6 * 448) * stretch)
    blocks = values.reshape(rows, cols // NVFP4_BLOCK, NVFP4_BLOCK)
    wanted = np.clip(np.abs(blocks).max(-1) / (6 * float(global_scale)), 2.0**-9, 448)
    scales = np.abs(E4M3[None, None, :] - wanted[..., None]).argmin(-1).astype(np.uint8)
    scaled = blocks / (E4M3[scales][..., None] * float(global_scale))
    codes = np.searchsorted(E2M1_EDGES, np.abs(scaled)).astype(np.uint8) | (np.signbit(scaled).astype(np.uint8) << 3)
    codes = codes.reshape(rows, cols)
    return Nvfp4(codes[:, 0::2] | (codes[:, 1::2] << 4), scales, global_scale)


class SafetensorsFile:
    """Tensors in the order they were added, without gaps between them."""

    def __init__(self):
        self.tensors = []  # name, dtype, shape, bytes

    def add(self, name, values, dtype):
        """Stores the values; returns what they decode to."""
        data, decoded = encode(values, dtype)
        self.tensors.append((name, dtype, list(np.shape(values)), data))
        return decoded

    def add_raw(self, name, dtype, array):
        self.tensors.append((name, dtype, list(array.shape), np.ascontiguousarray(array).tobytes()))

    def parts(self, shards):
        """Neighbours may land in different shards."""
        return [self.tensors[i::shards] for i in range(shards)]

    def offsets(self, shards):
        for part in self.parts(shards):
            at = 0
            for name, dtype, _, data in part:
                yield name, dtype, at
                at += len(data)

    @staticmethod
    def file_bytes(tensors):
        header, data = {"__metadata__": {"format": "pt"}}, b""
        for name, dtype, shape, content in tensors:
            header[name] = dict(dtype=dtype, shape=shape, data_offsets=[len(data), len(data) + len(content)])
            data += content
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + data

    def write(self, directory, shards=1):
        if shards == 1:
            (directory / "model.safetensors").write_bytes(self.file_bytes(self.tensors))
            return
        weight_map = {}
        for i, part in enumerate(self.parts(shards)):
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            (directory / file).write_bytes(self.file_bytes(part))
            weight_map.update({name: file for name, *_ in part})
        total = sum(len(data) for *_, data in self.tensors)
        index = dict(metadata=dict(total_size=total), weight_map=dict(sorted(weight_map.items())))
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
