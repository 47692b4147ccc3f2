#!/usr/bin/env python3
"""Logits and greedy tokens of small models with low-rank adapters, computed by llama.cpp: tests/data/lora.

    python3 tests/oracle/lora.py tests/data/lora NAME --brigade target/release/brigade --arch ARCH --size SIZE \\
        --adapter RANK:ALPHA:SEED:SCALE [--adapter ...]

Model and adapters are made by `brigade synth`, and are not kept. The tokens are those of the golden models. What
golden.py says of llama.cpp's settings holds here too.
"""

import argparse
import ctypes
import json
import subprocess
import tempfile
from pathlib import Path

import llama_cpp

from golden import Model, changed, fnv1a, synthesise


class Adapted(Model):
    """A model with adapters."""

    def __init__(self, path, threads, adapters):
        super().__init__(path, threads)
        load = llama_cpp.llama_adapter_lora_init
        self.adapters = [(load(self.model, str(file).encode()), scale) for file, scale in adapters]
        if not all(adapter for adapter, _ in self.adapters):
            raise SystemExit("llama.cpp does not load an adapter")

    def context(self, n_ctx):
        context = super().context(n_ctx)
        n = len(self.adapters)
        handles = (ctypes.c_void_p * n)(*(ctypes.cast(adapter, ctypes.c_void_p) for adapter, _ in self.adapters))
        scales = (ctypes.c_float * n)(*(scale for _, scale in self.adapters))
        if set_adapters()(context, handles, n, scales) != 0:
            raise SystemExit("llama.cpp does not take the adapters")
        return context


def set_adapters():
    """The C function that gives a context all its adapters at once."""
    function = llama_cpp.llama_cpp._lib.llama_set_adapters_lora
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    function.restype = ctypes.c_int32
    return function


def make_adapter(args, model, folder, number, text):
    """One adapter as `brigade synth` makes it: its file, its scale, and the recipe."""
    rank, alpha, seed, scale = text.split(":")
    path = Path(folder) / f"adapter-{number}.gguf"
    options = ["--rank", rank, "--alpha", alpha, "--seed", seed]
    subprocess.run([args.brigade, "synth", "--adapter-of", model, *options, "--out", path], check=True,
                   stdout=subprocess.DEVNULL)
    recipe = {"rank": int(rank), "alpha": float(alpha), "seed": int(seed), "scale": float(scale)}
    return path, float(scale), {**recipe, "fnv1a": fnv1a(path.read_bytes())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds manifest.json; NAME.logits.npy is written")
    parser.add_argument("name")
    parser.add_argument("--brigade", type=Path, required=True, help="the program")
    parser.add_argument("--golden", type=Path, default=Path(__file__).parent.parent / "data/golden")
    parser.add_argument("--arch", required=True, help="of `brigade synth`")
    parser.add_argument("--size", required=True, help="of `brigade synth`")
    parser.add_argument("--seed", type=int, default=1, help="of `brigade synth`")
    parser.add_argument("--quant", default="F32", help="of `brigade synth`")
    parser.add_argument("--adapter", action="append", required=True, help="RANK:ALPHA:SEED:SCALE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--positions", default="0,31,64,99", help="rows kept")
    args = parser.parse_args()

    golden = json.loads((args.golden / "manifest.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        file, recipe = synthesise(args, folder)
        made = [make_adapter(args, file, folder, i, text) for i, text in enumerate(args.adapter)]
        adapters = [(file, scale) for file, scale, _ in made]
        model, plain = Adapted(file, args.threads, adapters), Model(file, args.threads)
    changed(args, model, plain, golden, {"synth": recipe, "adapters": [recipe for _, _, recipe in made]})


if __name__ == "__main__":
    main()
