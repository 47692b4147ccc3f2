#!/usr/bin/env python3
"""Golden vectors from llama.cpp: the logits and greedy tokens of a small model, added to a folder of
golden models (tests/data/golden) in the form that tests/models/src/golden.rs reads.

    brigade synth --arch ARCH --size golden --quant F32 --out tests/data/golden/NAME.gguf
    python3 tests/oracle/golden.py tests/data/golden NAME

or, so that the tests make the model when they need it and only the results are kept:

    python3 tests/oracle/golden.py tests/data/golden NAME --brigade target/release/brigade --arch ARCH --size SIZE

Needs numpy and llama-cpp-python (its C library serves as it is, or point LLAMA_CPP_LIB_PATH at the folder
of another build). llama.cpp runs as exactly as it can: flash attention off (but see --flash), keys
and values in f32, the prompt in one ubatch, no repacked weights. What it computes belongs to its version, which is printed.

`--flash` turns flash attention on, for minimax-m3: without it llama.cpp warns, and lets all layers attend to all
positions. Those layers whose heads choose blocks have f32 keys, values and sums then too. But the others'
keys and values llama.cpp casts to f16 before flash attention, which alone moves logits by 2e-4. The results are
those of a build without these two casts (build_attn_mha in llama-graph.cpp).

qwen4exp: a row attends to whole blocks and to the positions behind the last of them. llama.cpp asks ggml_top_k for as many
positions as these can be at most. Where they are fewer, it gives the places that are left to positions of one more block, of
equal scores, and does not say which. The results are those of a build whose ggml_top_k takes no positions of a block that
has not all of its positions among the best, but those behind the last whole one.

llama.cpp's CPU backend reads GELU from a table of f16, which alone moves logits by 3e-4. The results of models
with GELU (gemma2, gemma3, grok) are those of a build without it: GGML_GELU_FP16 not defined in
ggml-cpu/vec.h.

Of chameleon llama.cpp masks the logits of a batch's first row alone. So its rows are computed one by one. In the larger
one (`swin_norm`) llama.cpp's FFN reads what attention gave, normed, and not the sum of that and the stream, as the model's
own code has it. The results of chameleon-34 are those of a build in which it reads the sum (chameleon.cpp).

An entry's tokens are the folder's own (`tokens` and `greedy_prompt` of manifest.json), so a model must have
all of them in its vocabulary.
"""

import argparse
import json
import subprocess
import tempfile
import zlib
from pathlib import Path

import llama_cpp
import numpy as np

GGML_TYPE_F32 = 0
FLASH_ATTENTION_OFF = 0
FLASH_ATTENTION_ON = 1
# Architectures that llama.cpp computes as they are with flash attention alone.
NEED_FLASH = ["minimax-m3"]
# Architectures whose rows must be computed one by one.
ONE_BY_ONE = ["chameleon"]
# Logits up to this one are masked.
MASKED = -1e30
# Rows kept in the repository: both ends, and both sides of 32 and of a KV page of 64.
POSITIONS = [0, 1, 2, 31, 32, 62, 63, 64, 65, 98, 99]


class Model:
    """A model in llama.cpp."""

    def __init__(self, path, threads, flash=False, one_by_one=False):
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = False
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {path}")
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.threads = threads
        self.one_by_one = one_by_one
        self.flash = FLASH_ATTENTION_ON if flash else FLASH_ATTENTION_OFF

    def context(self, n_ctx):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = self.flash
        params.type_k = params.type_v = GGML_TYPE_F32
        context = llama_cpp.llama_init_from_model(self.model, params)
        if not context:
            raise SystemExit("llama.cpp makes no context for this model")
        return context

    def decode(self, context, first, tokens):
        """The logits after each of `tokens`, which stand at positions `first...`: [n, n_vocab]."""
        if self.one_by_one and len(tokens) > 1:
            rows = [self.decode(context, first + i, [token]) for i, token in enumerate(tokens)]
            return np.concatenate(rows)
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = first + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = True
        status = llama_cpp.llama_decode(context, batch)
        llama_cpp.llama_batch_free(batch)
        if status != 0:
            raise SystemExit(f"llama_decode returned {status}")
        rows = [llama_cpp.llama_get_logits_ith(context, i) for i in range(len(tokens))]
        return np.stack([np.ctypeslib.as_array(row, (self.n_vocab,)).copy() for row in rows])

    def logits(self, tokens):
        context = self.context(n_ctx=512)
        rows = self.decode(context, 0, tokens)
        llama_cpp.llama_free(context)
        return rows

    def greedy(self, prompt, n):
        context = self.context(n_ctx=512)
        row = self.decode(context, 0, prompt)[-1]
        generated = [int(row.argmax())]
        while len(generated) < n:
            at = len(prompt) + len(generated) - 1
            row = self.decode(context, at, generated[-1:])[-1]
            generated.append(int(row.argmax()))
        llama_cpp.llama_free(context)
        return generated


def margin(rows):
    """The least distance between the two highest logits of a row: how firmly argmax stands."""
    top = np.sort(rows, axis=1)[:, -2:]
    return float((top[:, 1] - top[:, 0]).min())


def fnv1a(data):
    """FNV-1a, 64 bits, in hexadecimal digits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def synthesise(args, folder):
    """Makes a model with `brigade synth`; returns its path and the recipe for the manifest."""
    path = Path(folder) / f"{args.name}.gguf"
    recipe = {"arch": args.arch, "size": args.size, "seed": args.seed, "quant": args.quant}
    options = [word for key, value in recipe.items() for word in (f"--{key}", str(value))]
    subprocess.run([args.brigade, "synth", *options, "--out", path], check=True, stdout=subprocess.DEVNULL)
    return path, {**recipe, "fnv1a": fnv1a(path.read_bytes())}


def changed(args, model, plain, golden, more):
    """Keeps what `model` computes, which is `plain` with something beside it, as the entry args.name of
    args.folder/manifest.json; `more` says how it was made. Prints how much it differs from `plain`."""
    path = args.folder / "manifest.json"
    manifest = json.loads(path.read_text()) if path.exists() else {"models": {}}
    positions = [int(p) for p in args.positions.split(",")]
    rows, without = model.logits(golden["tokens"]), plain.logits(golden["tokens"])
    np.save(args.folder / f"{args.name}.logits.npy", rows[positions].astype(np.float32))
    manifest["models"][args.name] = {
        **more,
        "logits": f"{args.name}.logits.npy",
        "positions": positions,
        "argmax": [int(t) for t in rows.argmax(axis=1)],
        "greedy": model.greedy(golden["greedy_prompt"], golden["greedy_n"]),
    }
    path.write_text(json.dumps(manifest) + "\n")
    change = np.linalg.norm(rows - without) / np.linalg.norm(without)
    print(f"llama-cpp-python {llama_cpp.__version__}: {args.name}, changed by {change:.2f}, "
          f"closest call {margin(rows):.2e}")


def as_text(manifest):
    """The manifest with a line for each key and for each model."""
    models = manifest["models"].items()
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in models)
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in manifest.items() if key != "models")
    return f'{{\n{head} "models": {{\n{lines}\n }}\n}}\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds manifest.json and NAME.gguf")
    parser.add_argument("name", help="of the model; NAME.logits.npy is written")
    parser.add_argument("--brigade", type=Path, help="the program; makes the model, which is not kept")
    parser.add_argument("--arch", help="of `brigade synth`")
    parser.add_argument("--size", help="of `brigade synth`")
    parser.add_argument("--seed", type=int, default=1, help="of `brigade synth`")
    parser.add_argument("--quant", default="F32", help="of `brigade synth`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--positions", default=",".join(map(str, POSITIONS)), help="rows kept")
    parser.add_argument("--made", action="store_true", help="tests make the model: keep its checksum")
    parser.add_argument("--flash", action="store_true", help="with flash attention: see above")
    parser.add_argument("--all", type=Path, help="write the logits of all positions to this file too")
    args = parser.parse_args()

    if args.arch in NEED_FLASH and not args.flash:
        raise SystemExit(f"{args.arch} needs --flash: see --help")
    manifest_path = args.folder / "manifest.json"
    manifest = json.loads(manifest_path.read_text())
    positions = [int(p) for p in args.positions.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        path, recipe = args.folder / f"{args.name}.gguf", None
        if args.brigade:
            path, recipe = synthesise(args, folder)
        model = Model(path, args.threads, args.flash, args.arch in ONE_BY_ONE)
    tokens, prompt = manifest["tokens"], manifest["greedy_prompt"]
    if max(tokens + prompt) >= model.n_vocab:
        raise SystemExit(f"the model has {model.n_vocab} tokens, the manifest goes up to {max(tokens)}")
    rows = model.logits(tokens)
    if not np.isfinite(rows).all():
        raise SystemExit("some logits are not finite")
    entry = {
        "file": f"{args.name}.gguf",
        "logits": f"{args.name}.logits.npy",
        "positions": positions,
        "argmax": [int(t) for t in rows.argmax(axis=1)],
        "greedy": model.greedy(prompt, manifest["greedy_n"]),
    }
    if recipe:
        entry["synth"] = recipe
    if args.made:
        entry["adler32"] = zlib.adler32(path.read_bytes())
    kept, masked = rows[positions], np.flatnonzero((rows <= MASKED).any(axis=0))
    if len(masked) > 0:
        # Nothing is kept of tokens that are masked in every row.
        first, end = int(masked[0]), int(masked[-1]) + 1
        if not (rows[:, first:end] <= MASKED).all():
            raise SystemExit("some logits are masked in some rows only")
        entry["masked"] = [first, end]
        kept = np.delete(kept, slice(first, end), axis=1)
    np.save(args.folder / entry["logits"], kept.astype(np.float32))
    if args.all:
        np.save(args.all, rows.astype(np.float32))
    manifest["models"][args.name] = entry
    manifest_path.write_text(as_text(manifest))
    print(f"llama-cpp-python {llama_cpp.__version__}: {args.name}, {rows.shape} logits, deviation "
          f"{rows[rows > MASKED].std():.3f}, {len(set(entry['argmax']))} different argmax, "
          f"closest call {margin(rows):.2e}")


if __name__ == "__main__":
    main()
