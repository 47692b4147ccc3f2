"""A small model with a block that drafts its next tokens: python drafts.py --demo FILE --out DIR --gguf FILE.

The model is a cut of the demo model: four of its six layers, one key-value head, and an output matrix of its own, in the
form of the architecture `mimo2`. Behind it stands one block as NextN and MTP files have it (DeepSeek-V3, arXiv 2412.19437,
section 2.2): at position p it reads token p beside the model's hidden row of position p - 1, and says token p + 1. For a
further draft it reads its own hidden row. Model and block are trained together, on the demo model's text, with its
tokenizer. Resumes from DIR if it holds a checkpoint.
"""
import argparse
import math
import os
import time

import gguf
import jax
import jax.numpy as jnp
import numpy as np

import corpus
import export
import sample
import train
from train import rms_norm, save

CONFIG = {**train.CONFIG, "n_layer": 4, "n_head_kv": 1}
# Of the demo model's layers.
LAYERS = [0, 1, 3, 5]
# Share of each draft's loss beside the model's own, for the first, the second and the third draft.
DRAFT_SHARES = [0.5, 0.25, 0.15]
SCHEDULE = train.Schedule(1.5e-3, 40, 320, [(128, 24, 560), (256, 12, 220), (1024, 3, 20)])
MATRICES = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
NORMS = ["attn_norm", "ffn_norm"]


def neox(matrix, n_heads):
    """Rows of q or k for heads whose pairs are (i, i + half) in the place of (2i, 2i + 1)."""
    rows, cols = matrix.shape
    heads = matrix.reshape(n_heads, rows // n_heads // 2, 2, cols)
    return heads.transpose(0, 2, 1, 3).reshape(rows, cols)


def begin(demo):
    """Parameters from the demo model's `demo`; the block begins as its last layer does."""
    d, heads, kv_heads = CONFIG["n_embd"], CONFIG["n_head"], train.CONFIG["n_head_kv"]

    def layer(il):
        w = {name: np.asarray(demo[name][il]) for name in MATRICES + NORMS}
        w["attn_q"] = neox(w["attn_q"], heads)
        w["attn_k"] = neox(w["attn_k"].reshape(kv_heads, -1, d).mean(0), 1)
        w["attn_v"] = w["attn_v"].reshape(kv_heads, -1, d).mean(0)
        return w

    layers = [layer(il) for il in LAYERS]
    rng = np.random.default_rng(train.SEED)
    halves = [rng.normal(0, 0.5 / math.sqrt(d), (d, d)), 0.5 * np.eye(d)]
    block = {**layer(LAYERS[-1]), "eh_proj": np.concatenate(halves, 1)}
    block |= {name: np.ones(d) for name in ("enorm_norm", "hnorm_norm")}
    block["head_norm"] = np.asarray(demo["output_norm"])
    params = {"token_embd": demo["token_embd"], "output": demo["token_embd"], "output_norm": demo["output_norm"],
              "layers": {name: np.stack([w[name] for w in layers]) for name in MATRICES + NORMS}, "block": block}
    return jax.tree.map(lambda p: jnp.array(p, jnp.float32), params)


def rope(x, c):
    """Rotates the pairs (i, i + half) of x [batch, heads, tokens, head_dim] by their position."""
    half = x.shape[-1] // 2
    freq = c["rope_base"] ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(x.shape[2], dtype=jnp.float32)[:, None] * freq
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def layer(x, w, c, before=()):
    """One layer on x [batch, tokens, n_embd], and its keys and values. A row of a later draft sees its own keys, those of
    the drafts before it in `before` (latest first) one position back each, and the first of all behind them."""
    b, t, d = x.shape
    heads, dim = c["n_head"], d // c["n_head"]
    h = rms_norm(x, w["attn_norm"], c["eps"])

    def split(y, n):
        return y.reshape(b, t, n, dim).transpose(0, 2, 1, 3)

    q = rope(split(h @ w["attn_q"].T, heads), c)
    k, v = rope(split(h @ w["attn_k"].T, 1), c)[:, 0], (h @ w["attn_v"].T)
    of = [(k, v), *before]
    score = jnp.einsum("bhqd,bsd->bhqs", q, of[-1][0])
    row, col = jnp.arange(t)[:, None], jnp.arange(t)[None]
    for back, (keys, _) in enumerate(of[:-1]):
        score = jnp.where(row - col == back, jnp.einsum("bhqd,bsd->bhqs", q, keys), score)
    a = jax.nn.softmax(jnp.where(row >= col, score / math.sqrt(dim), -1e30), -1)
    out = 0
    for back, (_, values) in enumerate(of):
        mine = row - col == back if back + 1 < len(of) else row - col >= back
        out += jnp.einsum("bhqs,bsd->bhqd", jnp.where(mine, a, 0), values)
    x = x + out.transpose(0, 2, 1, 3).reshape(b, t, d) @ w["attn_output"].T
    h = rms_norm(x, w["ffn_norm"], c["eps"])
    return x + (jax.nn.silu(h @ w["ffn_gate"].T) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T, (k, v)


def forward(params, tokens, c, n_drafts):
    """Logits [batch, tokens, n_vocab]: the model's, then those of each draft. Row k of draft i is of the chain whose last
    token before it is token k: it says token k + 1."""
    embedded = params["token_embd"][tokens]
    x = embedded
    for il in range(c["n_layer"]):
        x, _ = layer(x, {name: w[il] for name, w in params["layers"].items()}, c)
    logits = [rms_norm(x, params["output_norm"], c["eps"]) @ params["output"].T]
    w, before = params["block"], []
    e = rms_norm(embedded, w["enorm_norm"], c["eps"])
    for _ in range(n_drafts):
        h = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        both = jnp.concatenate([e, rms_norm(h, w["hnorm_norm"], c["eps"])], -1)
        x, kv = layer(both @ w["eh_proj"].T, w, c, before)
        before.insert(0, kv)
        logits.append(rms_norm(x, w["head_norm"], c["eps"]) @ params["output"].T)
    return logits


def losses(params, batch, c):
    """Mean cross-entropy, in nats, of the next token by the model and by each draft over batch [windows, window + 1]."""
    told = []
    for depth, logits in enumerate(forward(params, batch[:, :-1], c, len(DRAFT_SHARES))):
        picked = jnp.take_along_axis(logits, batch[:, 1:, None], -1)[..., 0]
        told.append(jnp.mean((jax.nn.logsumexp(logits, -1) - picked)[:, depth:]))
    return jnp.stack(told)


def make_step(c):
    def loss(params, batch):
        each = losses(params, batch, c)
        return each[0] + jnp.dot(jnp.asarray(DRAFT_SHARES), each[1:]), each

    return train.make_step(loss)


def agreement(params, batch, c):
    """Share of positions at which the most probable token of each draft is the model's."""
    logits = forward(params, batch[:, :-1], c, len(DRAFT_SHARES))
    best = [jnp.argmax(rows, -1) for rows in logits]
    return jnp.stack([jnp.mean((best[0] == b)[:, i + 1:]) for i, b in enumerate(best[1:])])


def write(path, params, tokenizer):
    """The file, matrices as Q8_0."""
    c = CONFIG
    writer = gguf.GGUFWriter(path, "mimo2")
    n_blocks = c["n_layer"] + 1
    export.add_metadata(writer, tokenizer, {**c, "n_layer": n_blocks})
    writer.add_nextn_predict_layers(1)
    writer.add_expert_feed_forward_length(c["n_ff"])
    writer.add_sliding_window(c["n_ctx"])
    # llama.cpp takes no `mimo2` without a window. One as long as the context hides nothing.
    writer.add_sliding_window_pattern([False, True] + [False] * (n_blocks - 2))

    def matrix(name, value):
        writer.add_tensor(name, export.q8_0(value), raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    def norm(name, value):
        writer.add_tensor(name, np.asarray(value, np.float32))

    def block(il, w):
        stem = f"blk.{il}."
        matrix(stem + "attn_qkv.weight", np.concatenate([w["attn_q"], w["attn_k"], w["attn_v"]]))
        for name in MATRICES[3:]:
            matrix(f"{stem}{name}.weight", w[name])
        for name in NORMS:
            norm(f"{stem}{name}.weight", w[name])

    matrix("token_embd.weight", params["token_embd"])
    matrix("output.weight", params["output"])
    norm("output_norm.weight", params["output_norm"])
    for il in range(c["n_layer"]):
        block(il, {name: np.asarray(w[il]) for name, w in params["layers"].items()})
    drafts, stem = params["block"], f"blk.{c['n_layer']}.nextn."
    block(c["n_layer"], {name: np.asarray(w) for name, w in drafts.items()})
    matrix(stem + "eh_proj.weight", drafts["eh_proj"])
    for name in ("enorm", "hnorm"):
        norm(f"{stem}{name}.weight", drafts[name + "_norm"])
    norm(stem + "shared_head_norm.weight", drafts["head_norm"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", required=True, help="the demo model")
    parser.add_argument("--out", required=True, help="folder for the checkpoint")
    parser.add_argument("--gguf", required=True, help="the file to write")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    train_runs, held = corpus.split(corpus.verses())
    demo, tokenizer = sample.load(args.demo)
    windows = train.Windows(train_runs, tokenizer)
    held_batch, _ = train.held_out_batch(held, tokenizer)
    checkpoint = os.path.join(args.out, "checkpoint.pkl")
    params, first = begin(demo), 0
    state = {"m": jax.tree.map(jnp.zeros_like, params), "v": jax.tree.map(jnp.zeros_like, params),
             "count": jnp.zeros((), jnp.float32)}
    if os.path.exists(checkpoint):
        first, params, state = train.load(checkpoint)
    print(f"{sum(p.size for p in jax.tree.leaves(params))} parameters", flush=True)
    step_fn = make_step(CONFIG)
    held_losses = jax.jit(lambda p, b: jnp.concatenate([losses(p, b, CONFIG), agreement(p, b, CONFIG)]))
    started = time.time()
    for step in range(SCHEDULE.steps):
        batch = windows.batch(*SCHEDULE.phase(step))
        if step < first:
            continue  # a resumed run draws the same windows as an unbroken one
        params, state, each, norm = step_fn(params, state, batch, SCHEDULE.rate(step))
        last = step + 1 == SCHEDULE.steps
        if step % 20 == 0 or last:
            told = " ".join(f"{value:.3f}" for value in each)
            print(f"step {step:5d}  loss {told}  norm {float(norm):.2f}  {time.time() - started:.0f} s", flush=True)
        if step % 50 == 49 or last:
            parts = [held_losses(params, held_batch[i:i + 8]) for i in range(0, len(held_batch) - 7, 8)]
            told = " ".join(f"{value:.3f}" for value in np.mean(parts, 0))
            print(f"step {step:5d}  held-out {told}", flush=True)
            save(checkpoint, jax.device_get((step + 1, params, state)))
            write(args.gguf, params, tokenizer)
    print(f"{args.gguf}: {os.path.getsize(args.gguf)} bytes")


if __name__ == "__main__":
    main()
