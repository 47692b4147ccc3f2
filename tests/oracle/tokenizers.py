#!/usr/bin/env python3
"""What llama.cpp's tokenizers make of texts, for tests/models/tests/models/tokenizer_ids.rs.

    python3 tests/oracle/tokenizers.py tests/data/tokenizers NAMES

NAMES is a file with the names of pre-tokenizers, one a line: those that llama.cpp compares `tokenizer_pre` with
(`grep -o 'tokenizer_pre == "[^"]*"' llama-vocab.cpp`). Needs llama-cpp-python.

Vocabularies are made here, from the texts: a merge for every two bytes that stand beside each other in them, over the
borders of words too. So a border that a pre-tokenizer draws shows in the ids. Of the ids of a text only a hash is kept, and names with the same
hashes share them.
"""

import argparse
import collections
import json
import random
import struct
import tempfile
from pathlib import Path

import llama_cpp

NORMAL, UNKNOWN, CONTROL, UNUSED, BYTE = 1, 2, 3, 5, 6
# Pre-tokenizers of vocabularies in plain UTF-8.
RAW = {"gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"}

TEXTS = [
    "Hello world! It's a test, isn't it? They'LL say we'Ve DON'T, I'm, you'D, he's 'Re.",
    "1 12 123 1234 12345 123456 1234567 12345678 3.14159 1,234,567 0x1F 1e-5 v2.0b3",
    "a1b22c333 x1234y 100% $99.99 #42 5th 2nd (3)",
    "def f(x, y):\n    return x**2 + y // 3  # sum\n\n\nclass A:\n\tpass\n\t\t\n",
    "  two   three    four     five\t\ttabs \n newline\r\ncrlf \n\n\n end   ",
    "HelloWorld camelCaseWORD XMLHttpRequest iPhone15Pro ABCdefGHI aB Ab",
    "https://example.com/a_b-c?d=e&f=%20g#h user@mail.example.org C:\\Users\\x ~/y/../z",
    "\u00e9t\u00e9 na\u00efve \u00dcber stra\u00dfe \u00c6sir \u0152uvre \u0130stanbul \u0131\u015f\u0131k \u01c5ungla",
    "e\u0301te\u0301 n\u0303 o\u0308 a\u030a combining \u1e69 q\u0323\u0307",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440! \u0401\u043b\u043a\u0438-\u043f\u0430\u043b\u043a\u0438, 1234 \u0440\u0443\u0431\u043b\u044f.",
    "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u03ba\u03cc\u03c3\u03bc\u03b5 \u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u6211\u67093\u4e2a\u82f9\u679c\u548c12345\u4e2aab\u3002\u300a\u4e66\u300b\u201c\u5f15\u7528\u201d\u2014\u2014\u2026\u2026",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3001\u30ab\u30bf\u30ab\u30ca\u30fb\uff8a\uff9d\uff76\uff78 ABC\uff11\uff12\uff13\uff41\uff42",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4! \u3131\u3134 \ud55c\uad6d\uc5b4 2024\ub144",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0e51\u0e52\u0e53 \u0eaa\u0eb0\u0e9a\u0eb2\u0e8d\u0e94\u0eb5 \u1798\u17b7\u1793 \u1019\u103c\u1014\u103a\u1019\u102c",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0967\u0968\u0969\u0964 \u09ac\u09be\u0982\u09b2\u09be \u0ba4\u0bae\u0bbf\u0bb4\u0bcd",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u0661\u0662\u0663 \u0643\u062a\u0627\u0628\u06d4 \u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\U0001f600\U0001f680 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f \U0001f44d\U0001f3fd ok\U0001f389!!",
    "... --- ??? !!! .,;: (a) [b] {c} <d> \"e\" 'f' `g` ~h~ @i |j| ^k& *l* =m= +n+ _o_",
    "a.b .foo ..bar -x --y /z //w \\n $v ?u !t &s @r 'q \"p",
    "\u00a0nbsp\u00a0\u00a0x \u2003em\u2009thin\u3000ideographic \u2028line\u2029para\u0085nel \u200bzero",
    "x\u00b2 \u00bd \u2167 \u2460 \u00b9\u00b2\u00b3 \u0663\u0664 \u4e00\u4e8c\u4e09 \u2070",
    "\u20ac5 \u00a31 \u00a52 \u20bf3 \u00b14 \u00d75 \u00f76 \u2260 \u2264 \u221e \u2211 \u222b \u2192 \u21d2 \u2022 \u00a7 \u00a9 \u00ae \u2122",
    "don\u2019t \u2018quoted\u2019 \u201cdouble\u201d \u00ab guillemets \u00bb \u2013 dash \u2014 em \u2026",
    "<sentinel:12> IMGIMGABCZ IMGIMGIZ <image> </s> [INST] <|x|>",
    "ACGTACGT CCCCCC 'Twas o'clock rock'n'roll ''double'' I'LLx x'system 'tis 'Dog",
    "\n", "\n\n", "\n\n\n\n \n", " ", "  ", "   \t", "\t", "\r\n\r\n", "a", " a", "a ", "1", " 1", "!", " !", "'s", " 's",
    "a b c  d", "a/b/c\n/d", "word\n\nword\n", "trailing newline\n", " \n \n x", "x\u3000\u3000y", "a\x0bb\x0cc\x00d\x7fe",
    "\u0ca0_\u0ca0 \u30c4 \u0f3c\u0f3d \u13a0\u13a1 \u10d0\u10d1 \u10a0 \u0531\u0561 \U00010400\U00010428 \U0001e900\U0001e922",
    "for(i=0;i<10;++i){a[i]+=b[i]*c;}//ok\nif(!x&&y||z)return-1;",
    "Donau\u00addampf soft-hyphen co\u2011op e-mail 24/7 AT&T R&D's 90's '90s rock&roll",
    "x   y     z       u         v                 w\n\n\n   \n\n x\n \n \n\n  y \r\n\r\n  z\n\n\n",
    "a.\n\nb!\r\n\r\nc/\n/d)//\n\n(e, f);\n}\n\n#\n  # g\n\t// h ... \n",
    "0000000000 00 000 0000 00000 1 000 000 12:34:56 2024-01-31 +49-30-123456",
]


def byte_alphabet():
    """GPT-2's letters for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def train(words):
    """Merges of neighbours: first the most frequent, one after the other, then all others that occur, in no order."""
    merges = []
    others = {pair for word in words for pair in zip(word, word[1:])}
    while True:
        pairs = collections.Counter(pair for word in words for pair in zip(word, word[1:]))
        pairs = {pair: count for pair, count in pairs.items() if " " not in pair[0] + pair[1]}
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if pairs[best] < 3:
            break
        merges.append(best)
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = ["".join(best)]
                i += 1
    joined = {"".join(pair) for pair in merges}
    others = sorted(pair for pair in others if " " not in pair[0] + pair[1] and "".join(pair) not in joined)
    random.Random(3).shuffle(others)
    return merges + others


def bpe_vocabulary():
    alphabet = byte_alphabet()
    words = [[alphabet[b] for b in text.encode()] for text in TEXTS]
    merges = train(words)
    return [alphabet[b] for b in range(256)], merges


def raw_vocabulary():
    """Characters of every second text: others become bytes."""
    escaped = [text.replace(" ", "\u2581") for text in TEXTS]
    # A NUL would end a token's text in llama.cpp.
    merges = train([list(text) for text in escaped if "\0" not in text])
    letters = sorted({c for text in escaped[::2] for c in text if c != "\0"} | {"\u2581", "\n"})
    return letters, [m for m in merges if m[0] + m[1] != "\n\n"]


def plamo_vocabulary():
    """Pieces of the texts with scores, which are multiples of 1/4: paths may cost the same."""
    rng = random.Random(7)
    pieces = {}
    for text in TEXTS[:24]:
        for _ in range(12):
            start = rng.randrange(len(text))
            piece = text[start : start + rng.randrange(1, 7)]
            pieces[piece] = -rng.randrange(4, 60) / 4
    pieces["zz"] = -2500.0
    pieces["9"] = 1.5
    return list(pieces.items())


def gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(value):
    """A value of a metadata key with its type: text, or a list of texts, integers or floats."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    kind = {str: 8, int: 5, float: 6}[type(value[0])]
    head = struct.pack("<IIQ", 9, kind, len(value))
    if kind == 8:
        return head + b"".join(map(gguf_string, value))
    return head + struct.pack(f"<{len(value)}{'i' if kind == 5 else 'f'}", *value)


def write(path, model, pre, tokens, types, scores=None, merges=None):
    """A GGUF file of a vocabulary alone."""
    keys = {"model": model, "pre": pre, "tokens": tokens, "token_type": types, "scores": scores, "merges": merges}
    pairs = {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value}
    pairs = {"general.architecture": "llama", **pairs}
    body = b"".join(gguf_string(key) + gguf_value(value) for key, value in pairs.items())
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(pairs)) + body)


def ids(path, texts):
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise SystemExit(f"llama.cpp does not load {path}")
    vocab = llama_cpp.llama_model_get_vocab(model)
    found = []
    for text in texts:
        data = text.encode()
        buffer = (llama_cpp.llama_token * (len(data) + 8))()
        n = llama_cpp.llama_tokenize(vocab, data, len(data), buffer, len(buffer), False, False)
        if n < 0:
            raise SystemExit(f"{path}: {text!r} has more tokens than bytes")
        found.append(list(buffer[:n]))
    llama_cpp.llama_model_free(model)
    return found


def fnv1a(values):
    """FNV-1a, 32 bits, of ids as little-endian u32, in hexadecimal digits."""
    value = 0x811C9DC5
    for byte in struct.pack(f"<{len(values)}I", *values):
        value = (value ^ byte) * 0x01000193 % 2**32
    return f"{value:08x}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="pre_tokenizers.json and plamo2.json are written there")
    parser.add_argument("names", type=Path, help="names of pre-tokenizers, one a line")
    args = parser.parse_args()
    llama_cpp.llama_backend_init()
    letters, merges = bpe_vocabulary()
    raw_letters, raw_merges = raw_vocabulary()
    lines = [[" ".join(pair) for pair in pairs] for pairs in (merges, raw_merges)]
    hashes, groups = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        for name in sorted(set(args.names.read_text().split())):
            if name in RAW:
                tokens = [f"<0x{b:02X}>" for b in range(256)] + raw_letters
                types = [BYTE] * 256 + [NORMAL] * len(raw_letters)
                of_vocabulary = lines[1]
            else:
                tokens, types, of_vocabulary = list(letters), [NORMAL] * 256, lines[0]
            joined = [line.replace(" ", "") for line in of_vocabulary]
            write(
                path,
                "gemma4" if name == "gemma4" else "gpt2",
                name,
                tokens + joined,
                types + [NORMAL] * len(joined),
                merges=of_vocabulary,
            )
            # llama.cpp aborts at a space there: its own texts of that name have none.
            texts = ["".join(text.split()) for text in TEXTS] if name == "whitespace" else TEXTS
            of_texts = tuple(fnv1a(found) for found in ids(path, texts))
            groups[name] = hashes.setdefault(of_texts, len(hashes))
        entries = plamo_vocabulary()
        special = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"]
        tokens = special + [f"<0x{b:02X}>" for b in range(256)] + [text for text, _ in entries]
        types = [UNKNOWN] + [CONTROL] * 3 + [BYTE] * 256 + [NORMAL] * len(entries)
        write(path, "plamo2", "default", tokens, types, [0.0] * 260 + [score for _, score in entries])
        of_plamo = [fnv1a(found) for found in ids(path, TEXTS)]
    data = {
        "texts": TEXTS,
        "merges": lines[0],
        "raw_letters": raw_letters,
        "raw_merges": lines[1],
        "names": groups,
        "hashes": [list(of_texts) for of_texts in hashes],
    }
    (args.folder / "pre_tokenizers.json").write_text(json.dumps(data, ensure_ascii=False))
    plamo = {"pieces": entries, "hashes": of_plamo}
    (args.folder / "plamo2.json").write_text(json.dumps(plamo, ensure_ascii=False))
    print(f"{len(groups)} names, {len(hashes)} of them differ; {len(TEXTS)} texts")


if __name__ == "__main__":
    main()
