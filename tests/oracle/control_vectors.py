#!/usr/bin/env python3
"""Logits and greedy tokens of small models with control vectors, computed by llama.cpp: tests/data/control_vectors.

    python3 tests/oracle/control_vectors.py tests/data/control_vectors NAME --brigade target/release/brigade \\
        --arch ARCH --size SIZE --layers FIRST-LAST --vector SEED:SCALE [--vector ...]

The model is made by `brigade synth`, the directions by a formula (`direction`), which the tests have too; neither is
kept. The tokens are those of the golden models. What golden.py says of llama.cpp's settings holds here too.
"""

import argparse
import ctypes
import json
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

from golden import Model, changed, synthesise


def direction(seed, layer, n_embd):
    """What a vector has for a layer: multiples of 1/256, so that f32 holds them."""
    index = np.arange(n_embd)
    return ((layer * 131 + index * 29 + seed * 17) % 101 - 50).astype(np.float32) / 256


class Steered(Model):
    """A model with control vectors."""

    def __init__(self, path, threads, vectors, layers):
        super().__init__(path, threads)
        self.n_embd = llama_cpp.llama_model_n_embd(self.model)
        n_layer = llama_cpp.llama_model_n_layer(self.model)
        self.layers = layers
        self.data = np.zeros((n_layer - 1, self.n_embd), np.float32)
        for seed, scale in vectors:
            for layer in range(1, n_layer):
                self.data[layer - 1] += direction(seed, layer, self.n_embd) * np.float32(scale)

    def context(self, n_ctx):
        context = super().context(n_ctx)
        function = llama_cpp.llama_cpp._lib.llama_set_adapter_cvec
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int32]]
        function.restype = ctypes.c_int32
        if function(context, self.data.ctypes.data, self.data.size, self.n_embd, *self.layers) != 0:
            raise SystemExit("llama.cpp does not take the vectors")
        return context


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
    parser.add_argument("--layers", required=True, help="FIRST-LAST, the last one included")
    parser.add_argument("--vector", action="append", required=True, help="SEED:SCALE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--positions", default="0,64,99", help="rows kept")
    args = parser.parse_args()

    golden = json.loads((args.golden / "manifest.json").read_text())
    layers = [int(layer) for layer in args.layers.split("-")]
    vectors = [(int(seed), float(scale)) for seed, scale in (text.split(":") for text in args.vector)]
    with tempfile.TemporaryDirectory() as folder:
        file, recipe = synthesise(args, folder)
        model, plain = Steered(file, args.threads, vectors, layers), Model(file, args.threads)
    changed(args, model, plain, golden, {
        "synth": recipe,
        "vectors": [{"seed": seed, "scale": scale} for seed, scale in vectors],
        "layers": layers,
    })


if __name__ == "__main__":
    main()
