#!/usr/bin/env python3
"""Makes the goldens of src/text with Hugging Face's own libraries.

    python3 -m venv .venv && .venv/bin/pip install tokenizers jinja2 transformers
    .venv/bin/python tools/make_text_goldens.py            (from the repository root)

Writes tests/goldens/text/tokenizer.json, splits.json (this file's work), templates.json and jinja.json (the cases of
text_golden_cases.py). Run again after changing cases; the output depends on nothing but the libraries' versions.
"""

import copy
import json
import pathlib
import random
import unicodedata

import jinja2
from transformers.utils import chat_template_utils
from tokenizers import Regex, Tokenizer, pre_tokenizers

import text_golden_cases as cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/pocket"
OUT = ROOT / "tests/goldens/text"

STRINGS = [
    "", " ", "  ", "   ", "\n", "\r\n", "\t", "\n\n", " \n", "\n ", "  \n  \n", "\r", "\r\r\n\n", "\t\t x", "a", "Hello, world!",
    "Hello  world", " Hello", "Hello ", "Hello   ", "a\tb", "a\t\tb", "a \t b", "line one\nline two\r\nline three\rfour",
    "I'm you're he's we'll they've I'd don't", "I'M YOU'RE HE'S WE'LL THEY'VE I'D DON'T", "it\u2019s", "'s't're've'm'll'd",
    "''s 'S 'sx 'tt 'REx", "'\u017f", "x'\u017f y", "123", "1 2 3", "1234567890", "3.14159", "1,000,000", "a1b2c3", "0x1F", "12:30:45",
    "\u0661\u0662\u0663", "\u00bd\u00b2\u2167", "\u4e00\u4e8c\u4e09", "!@#$%^&*()", "...", "!!!\n\n", "???\r\n", " ...\n", "--- x ---",
    "def f(x):\n    return x + 1\n", "if (a && b) { c(); }\n\n\n", "\t\tif x:\n\t\t\tpass", "{\"a\": [1, 2, {\"b\": null}]}",
    "<tag attr='v'>text</tag>", "http://example.com/path?x=1&y=2#z", "snake_case camelCase kConst", "C++ C# F#",
    "caf\u00e9", "cafe\u0301", "e\u0301e\u0300e\u0302", "a\u0323\u0307", "a\u0307\u0323", "\u1e9b\u0323", "\u212b", "\u2126", "\u00c5", "A\u030a",
    "\u0958\u0959", "\u0344", "\u0f73\u0f75", "q\u0307\u0323", "\u0301", "\u0301\u0301", " \u0301", "a\u0301\u0301\u0301\u0301", "1\u0301", "\n\u0301", "!\u0301",
    "\uac00", "\u1100\u1161", "\u1100\u1161\u11a8", "\uac00\u11a8", "\ud55c\uad6d\uc5b4 \ubb38\uc7a5", "\u1112\u1161\u11ab\u1100\u116e\u11a8",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e04\u0e23\u0e31\u0e1a", "\u0e33\u0e19\u0e49\u0e33", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f", "\u0bb5\u0ba3\u0b95\u0bcd\u0b95\u0bae\u0bcd",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "\u200f\u05e2\u05d1\u05e8\u05d9\u05ea\u200e abc", "\u202eabc\u202c",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u3053\u3093\u306b\u3061\u306f", "\u304b\u3099", "\u304c", "\u30cf\u309a", "\uff76\uff9e", "\u65e5\u672c\u8a9e\u3000\u6587", "\uf900\ufa0e", "\U0002f800",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0438\u0306", "\u0439", "\u0393\u03b5\u03b9\u03b1 \u03c3\u03bf\u03c5", "\u03b1\u0301", "\u1f71",
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "ok \U0001f44b\U0001f3ff!",
    "\u180e", "a\u180eb", " \u180e ", "\u180e\n", "\u180e\u180e x", "!\u180e!", "\u00a0", "a\u00a0b", "\u2003x", "\u3000\u3000", "\u2028\u2029", "\u0085", "a\u0085\nb", "\u200b\u200c\u200d\ufeff", "\u1680 \u205f",
    "\u0000", "a\u0000b", "\u0001\u0002\u001f", "\u007f", "\u0080\u009f", "\u001c\u001d\u001e", "\u000b\u000c", "\ufffd", "\ufffe\uffff", "\ue000\uf8ff", "\U000f0000\U0010ffff", "\U0001d400\U0001d7d8", "\U00010000\U0001f9ff", "\U00013000 \U00012000", "\U0001d15e", "\U00011131\U00011127", "\U0001e900", "\U00030000",
    "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|><|im_end|><|endoftext|>", "a<|im_end|>b", " <|im_end|> ", "\n<think>\n\n</think>\n\n", "<tool_call>\n<function=f>\n</function>\n</tool_call>", "<tool_response>x</tool_response>",
    "<|im_start", "<|im_start|", "|im_start|>", "<|im_start|>>", "<<|im_start|>", "<|im_<|im_end|>start|>", "<think", "</think", "<think>>", "<THINK>", "< think>", "<|IM_END|>", "</think></think><think>", "e<think>\u0301", "a\u0300<|im_end|>\u0300b", "<tool_call", "<tool_call><tool_call>", "<|endoftext|><|endoftext|>", "<|end", "<<<<<<", "<|", "|>",
    "a" * 100, "ab" * 60, " " * 100, "\n" * 50, "\t" * 40, "=" * 80, "-" * 33 + "\n", "0" * 70, "\u00e9" * 40, "\U0001f600" * 20, "\u0301" * 40, "x " * 40, " x" * 40, "the the the the " * 6, "\r\n" * 30, "abc" * 200, "\u4f60" * 60,
    "What is the capital of France?", "Write a Python function that checks if a number is prime", "Is 391 prime?", "How many r's are in strawberry?",
]

PIECES = [
    " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u180e", "a", "The", "house", "'s", "'LL", "'", "1", "42", "\u0663", ".", "!?", "--", "_", "\u00e9", "e\u0301", "\u0323\u0307", "\u0301", "\uac01", "\u1100\u1161\u11a8",
    "\u0e33", "\u0915\u094d\u0937", "\u05e9\u05c1", "\u0645\u0651", "\u4e16\u754c", "\u304b\u3099", "\U0001f600", "\U0001f468\u200d\U0001f469", "\u200d", "\ufe0f", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|im", "<", ">", "{", "}", "\u0000", "\u007f", "\u0085", "\ufffd", "\U00010400", "\U000e0001",
    "def ", "return", "()", ":\n", "    ", "=", "+", "//", "\\n", "\"", "user\n", "assistant\n", "ing", "tion", "\u212a", "\u017f", "\ufb06", "\u2126",
]


def fnv1a(data, state):
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return state


def probe(char):
    """A text whose split shows the classes of a character: next to letters, digits, spaces, line ends, itself."""
    return f"a{char}b1{char}{char}\n {char}\n{char} {char}!{char}"


def dump(name, value):
    OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    (OUT / name).write_text(text.replace('},{"', '},\n{"') + "\n")


SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
NEARLY = ["<|im_start", "im_end|>", "<|", "|>", "<", ">", "<|im_end|", "<think", "/think>", "<|IM_END|>", "< think>", "<tool_", "<|endof"]
WORDS = ["the", "house", "I'll", "naive", "3.5", "x=1;", "(a", "b)", "don't", "--", "e.g.", "\u4f60\u597d", "caf\u00e9", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u05e9\u05dc\u05d5\u05dd", "\U0001f600"]
# Surrogates spelt as bytes (alone and as pairs), overlong forms, cut characters, stray bytes.
ILL_FORMED = [b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\xbd\xed\xb8\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f\x98", b"\xe4\xbd", b"\xc3", b"\x80", b"\xff", b"\xfe\xff", b"\xf8\x88\x80\x80\x80"]


def some(words, least, most, joint=""):
    return joint.join(random.choice(words) for _ in range(random.randint(least, most)))


def of_plane(plane):
    """Characters of one plane between ordinary ones. Planes 4 to 13 have none assigned: then any will do."""
    chars = []
    while len(chars) < 6:
        code = plane << 16 | random.randrange(0x10000)
        assigned = unicodedata.category(chr(code)) != "Cn" if plane not in range(4, 14) else True
        if not 0xD800 <= code < 0xE000 and (assigned or random.random() < 0.002):
            chars.append(chr(code) + random.choice(["", "", " ", "a", "\n", "1"]))
    return "".join(chars)


def strings():
    yield from STRINGS
    yield from (some(PIECES, 2, 12) for _ in range(600))
    yield from (of_plane(plane) for plane in range(17) for _ in range(16))
    yield from (some(WORDS, 1, 4, " ") + some(["\r\n", "\n", "\r", "\r\n\r\n", " \r\n", "\r\n "], 1, 1) + some(WORDS, 0, 3, "\r\n") + some(["", "\r\n", "\r"], 1, 1) for _ in range(240))
    yield from (some(SPECIALS + NEARLY + WORDS + [" ", "\n", "\r\n"], 2, 7) for _ in range(340))
    yield from (some(WORDS, 2, 8, some([" ", "  ", "\n", "\t", ", ", "_"], 1, 1)) for _ in range(240))


def ill_formed():
    for _ in range(120):
        yield b"".join(random.choice([random.choice(ILL_FORMED), random.choice(WORDS).encode(), b" "]) for _ in range(random.randint(1, 5)))


def decoding(tokenizer, ids, text=None):
    """What the ids read; left out where it is the text itself, or nothing is hidden from users."""
    decoded, shown = (tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True))
    return {**({} if decoded == text else {"decoded": decoded}), **({} if shown == decoded else {"shown": shown})}


def tokenizer_goldens(tokenizer):
    random.seed(20)
    encoded = []
    for text in strings():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        encoded.append({"text": text, "ids": ids, **decoding(tokenizer, ids, text)})
    for data in ill_formed():
        ids = tokenizer.encode(data.decode("utf-8", "replace"), add_special_tokens=False).ids
        encoded.append({"bytes": data.hex(), "ids": ids, **decoding(tokenizer, ids)})
    decoded = []
    size = tokenizer.get_vocab_size()
    for i in range(120):
        low = 256 if i % 2 else size  # half the cases are mostly single bytes: much of it ill-formed
        ids = [random.randrange(min(low, size)) for _ in range(random.randint(1, 16))]
        decoded.append({"ids": ids, **decoding(tokenizer, ids)})
    dump("tokenizer.json", {"encode": encoded, "decode": decoded})
    return len(encoded), len(decoded)


def split_goldens(tokenizer):
    """For each 1024 code points a hash of the normalised, split probes; checks classes and NFC over all of Unicode."""
    spec = json.loads((MODEL / "tokenizer.json").read_text())
    pattern = spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    hashes = []
    for block in range(0, 0x110000, 1024):
        state = 0xCBF29CE484222325
        for code in range(block, block + 1024):
            if 0xD800 <= code < 0xE000:
                continue
            text = tokenizer.normalizer.normalize_str(probe(chr(code)))
            for piece, _ in split.pre_tokenize_str(text):
                state = fnv1a(piece.encode() + b"\xff", state)
        hashes.append(f"{state:016x}")
    dump("splits.json", {"pattern": pattern, "block": 1024, "hashes": hashes})
    return len(hashes)


def outcome(render):
    """What a template gives: its text, the message it raised itself, or that it fails in another way."""
    try:
        return {"output": render()}
    except jinja2.exceptions.TemplateError as error:
        return {"raised": str(error)} if type(error) is jinja2.exceptions.TemplateError else {"fails": True}
    except (SyntaxError, TypeError, ValueError, ZeroDivisionError, OverflowError, AttributeError, KeyError):
        return {"fails": True}


def render_chat(source, context):
    context = copy.deepcopy(context)
    messages = chat_template_utils._normalize_chat_messages(context.pop("messages"))
    return chat_template_utils.render_jinja_template([messages], chat_template=source, **context)[0][0]


def template_goldens():
    sources = {"pocket": (MODEL / "chat_template.jinja").read_text(), "large": (OUT / "qwen35_style.jinja").read_text()}
    goldens = []
    for context in cases.conversations():
        for name, source in sources.items():
            goldens.append({"template": name, "context": context, **outcome(lambda: render_chat(source, context))})
    dump("templates.json", goldens)
    return len(goldens)


def jinja_goldens():
    context = {"messages": [], **cases.C}
    goldens = []
    for source in cases.fragments():
        goldens.append({"template": source, **outcome(lambda: render_chat(source, context))})
    dump("jinja.json", {"context": context, "cases": goldens})
    return len(goldens), sum("output" in golden for golden in goldens)


def main():
    print("conversations:", template_goldens())
    print("jinja fragments, of them with output:", *jinja_goldens())
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    print("tokenizer cases:", *tokenizer_goldens(tokenizer))
    print("split blocks:", split_goldens(tokenizer))


if __name__ == "__main__":
    main()
