#!/usr/bin/env python3
"""Golden vectors of encoders from llama.cpp: what it makes of two texts with each kind of pooling, and what the head of
a reranker says of them. They are added to tests/data/encoders.json, which tests/models/tests/models/encoders.rs reads.

    python3 tests/oracle/encoders.py tests/data/encoders.json NAME --brigade target/release/brigade --arch ARCH --size SIZE

Needs what golden.py needs, and runs llama.cpp as it does: flash attention off, no repacked weights, and a build without
the table of GELU in f16.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
from golden import FLASH_ATTENTION_OFF, synthesise

# llama.cpp's numbers of the ways to make one vector of a text's rows.
POOLINGS = {"mean": 1, "cls": 2, "last": 3}
RANK = 4


def vector(model, pooling, tokens, threads, width):
    """What llama.cpp makes of a text, `[width]`."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = FLASH_ATTENTION_OFF
    params.embeddings = True
    params.pooling_type = pooling
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp makes no context for this model")
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i] = token
        batch.pos[i] = i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = True
    status = llama_cpp.llama_encode(context, batch)
    llama_cpp.llama_batch_free(batch)
    if status != 0:
        raise SystemExit(f"llama_encode returned {status}")
    row = np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_seq(context, 0), (width,)).copy()
    llama_cpp.llama_free(context)
    if not np.isfinite(row).all():
        raise SystemExit("some values are not finite")
    return [float(f"{value:.7g}") for value in row]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path, help="encoders.json")
    parser.add_argument("name", help="of the model")
    parser.add_argument("--brigade", type=Path, required=True, help="the program; makes the model, which is not kept")
    parser.add_argument("--arch", required=True, help="of `brigade synth`")
    parser.add_argument("--size", required=True, help="of `brigade synth`")
    parser.add_argument("--seed", type=int, default=1, help="of `brigade synth`")
    parser.add_argument("--quant", default="F32", help="of `brigade synth`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rank", action="store_true", help="it is a reranker: add what its head says")
    args = parser.parse_args()

    golden = json.loads(args.file.read_text())
    llama_cpp.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        path, recipe = synthesise(args, folder)
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = False
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise SystemExit(f"llama.cpp does not load {path}")
    width = llama_cpp.llama_model_n_embd(model)

    def of_texts(pooling, width):
        return [vector(model, pooling, text, args.threads, width) for text in golden["texts"]]

    entry = {"synth": recipe, "pooled": {name: of_texts(n, width) for name, n in POOLINGS.items()}}
    if args.rank:
        entry["rank"] = [values[0] for values in of_texts(RANK, 1)]
    golden["models"][args.name] = entry
    text = json.dumps(golden, indent=1)
    args.file.write_text(compact(golden))
    longest = max(math.dist(v, [0.0] * width) for v in entry["pooled"]["mean"])
    print(f"llama-cpp-python {llama_cpp.__version__}: {args.name}, {width} values, at most {longest:.2f} long, {len(text)} bytes")


def compact(golden):
    """JSON with a line for each vector."""
    lines = ["{", f' "texts": {json.dumps(golden["texts"])},', ' "models": {']
    models = []
    for name, entry in golden["models"].items():
        pooled = ",\n".join(f'   "{p}": {json.dumps(v)}' for p, v in entry["pooled"].items())
        rank = f',\n  "rank": {json.dumps(entry["rank"])}' if "rank" in entry else ""
        models.append(f'  "{name}": {{\n  "synth": {json.dumps(entry["synth"])},\n  "pooled": {{\n{pooled}\n  }}{rank}\n  }}')
    return "\n".join([*lines, ",\n".join(models), " }", "}"]) + "\n"


if __name__ == "__main__":
    main()
