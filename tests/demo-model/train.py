"""Trains the demo model on a CPU: python train.py --out DIR. Resumes from DIR if it holds a checkpoint.

A llama-architecture transformer (RMSNorm, interleaved-pair RoPE, grouped-query attention, SwiGLU,
tied embedding) with AdamW: most steps on short windows, the last on windows of the full context. Seeds are fixed; a run is repeatable up to the summation order of the CPU's libraries.
"""
import argparse
import dataclasses
import json
import math
import os
import pickle
import random
import time

import jax
import jax.numpy as jnp
import numpy as np

import corpus
from bpe import Tokenizer, train_merges

CONFIG = {"n_vocab": 2048, "n_embd": 256, "n_ff": 512, "n_layer": 6, "n_head": 8, "n_head_kv": 2,
          "rope_base": 10000.0, "eps": 1e-5, "n_ctx": 1024}
SEED = 1611
WEIGHT_DECAY, CLIP = 0.1, 1.0
CHAT_SHARE = 0.4


def init(rng, c):
    """Parameters; those of the layers are stacked along a first axis [n_layer, ...]."""
    d, ff, layers = c["n_embd"], c["n_ff"], c["n_layer"]
    kv = d // c["n_head"] * c["n_head_kv"]
    residual = 1 / math.sqrt(2 * layers)

    def matrix(rows, cols, gain=1.0):
        scale = gain / math.sqrt(cols)
        return jnp.asarray(rng.normal(0, scale, (layers, rows, cols)), jnp.float32)

    ones = jnp.ones((layers, d), jnp.float32)
    return {
        "token_embd": jnp.asarray(rng.normal(0, 0.02, (c["n_vocab"], d)), jnp.float32),
        "output_norm": jnp.ones(d, jnp.float32),
        "attn_norm": ones, "attn_q": matrix(d, d), "attn_k": matrix(kv, d), "attn_v": matrix(kv, d),
        "attn_output": matrix(d, d, residual), "ffn_norm": ones, "ffn_gate": matrix(ff, d),
        "ffn_up": matrix(ff, d), "ffn_down": matrix(d, ff, residual),
    }


def rms_norm(x, w, eps):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * w


def rope(x, c):
    """Rotates the pairs (2i, 2i+1) of x [batch, heads, tokens, head_dim] by their position."""
    n_rot = x.shape[-1]
    freq = c["rope_base"] ** (-jnp.arange(0, n_rot, 2, dtype=jnp.float32) / n_rot)
    angle = jnp.arange(x.shape[2], dtype=jnp.float32)[:, None] * freq
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


def attention(x, w, c):
    """Attention of one block on x [batch, tokens, n_embd]."""
    b, t, d = x.shape
    heads, kv_heads = c["n_head"], c["n_head_kv"]
    dim, group = d // heads, heads // kv_heads
    h = rms_norm(x, w["attn_norm"], c["eps"])

    def split(y, n):
        return y.reshape(b, t, n, dim).transpose(0, 2, 1, 3)

    q = rope(split(h @ w["attn_q"].T, heads), c).reshape(b, kv_heads, group, t, dim)
    k = rope(split(h @ w["attn_k"].T, kv_heads), c)
    v = split(h @ w["attn_v"].T, kv_heads)
    score = jnp.einsum("bkgqd,bksd->bkgqs", q, k) / math.sqrt(dim)
    score = jnp.where(jnp.tril(jnp.ones((t, t), bool)), score, -1e30)
    a = jnp.einsum("bkgqs,bksd->bkgqd", jax.nn.softmax(score, -1), v)
    a = a.reshape(b, heads, t, dim).transpose(0, 2, 1, 3).reshape(b, t, d)
    return a @ w["attn_output"].T


def layer(x, w, c):
    """One block on x [batch, tokens, n_embd]."""
    x = x + attention(x, w, c)
    h = rms_norm(x, w["ffn_norm"], c["eps"])
    return x + (jax.nn.silu(h @ w["ffn_gate"].T) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T


def forward(params, tokens, c):
    """Logits [batch, tokens, n_vocab] of tokens [batch, tokens]."""
    stacked = {k: v for k, v in params.items() if k not in ("token_embd", "output_norm")}
    x = params["token_embd"][tokens]
    for i in range(c["n_layer"]):
        x = layer(x, {k: v[i] for k, v in stacked.items()}, c)
    return rms_norm(x, params["output_norm"], c["eps"]) @ params["token_embd"].T


def loss_of(params, batch, c):
    """Mean cross-entropy, in nats, of the next token over batch [windows, window + 1]."""
    logits = forward(params, batch[:, :-1], c)
    picked = jnp.take_along_axis(logits, batch[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def adamw(params, state, grads, lr):
    """One step; norms are not decayed."""
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    scale = jnp.minimum(1.0, CLIP / (norm + 1e-6))
    count = state["count"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g * scale, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * (g * scale) ** 2, state["v"], grads)
    c1, c2 = 1 - 0.9 ** count, 1 - 0.95 ** count

    def update(path, p, m, v):
        decay = 0.0 if "norm" in path[-1].key else WEIGHT_DECAY
        return p - lr * ((m / c1) / (jnp.sqrt(v / c2) + 1e-8) + decay * p)

    params = jax.tree_util.tree_map_with_path(update, params, m, v)
    return params, {"m": m, "v": v, "count": count}, norm


def make_step(loss):
    """A step of training. `loss(params, batch)` gives what is to fall, and what is told of it."""
    @jax.jit
    def step(params, state, batch, lr):
        (_, told), grads = jax.value_and_grad(loss, has_aux=True)(params, batch)
        params, state, norm = adamw(params, state, grads, lr)
        return params, state, told, norm
    return step


@dataclasses.dataclass
class Schedule:
    """Steps of a training."""
    peak: float
    warmup: int
    decay: int
    # (window, windows per step, steps)
    phases: list

    @property
    def steps(self):
        return sum(steps for _, _, steps in self.phases)

    def rate(self, step):
        """Learning rate: a linear start, a plateau, and a linear end."""
        return self.peak * min(1.0, (step + 1) / self.warmup, (self.steps - step) / self.decay)

    def phase(self, step):
        """(window, windows per step) of a step."""
        for window, n, steps in self.phases:
            if step < steps:
                break
            step -= steps
        return window, n


SCHEDULE = Schedule(2.5e-3, 60, 220, [(128, 32, 675), (256, 16, 305), (1024, 4, 40)])


class Windows:
    """Training windows: each is prose from a random verse on, or chats one after another.

    Prose starts are drawn without repetition until all are used, so that an epoch sees every verse.
    """

    def __init__(self, runs, tokenizer):
        self.tok, self.bos = tokenizer, tokenizer.ids["<|begin_of_text|>"]
        self.eos = tokenizer.ids["<|end_of_text|>"]
        self.rng, self.chats = random.Random(SEED), corpus.Chats(runs, SEED)
        self.flat, self.starts = [], []
        for run in runs:
            for i, verse in enumerate(run):
                self.starts.append(len(self.flat))
                self.flat += tokenizer.encode((" " if i else "") + verse[3])
            self.flat.append(self.eos)
        self.queue = []

    def prose(self, window):
        """Verses from the queue's next start; the space before a window's first word is dropped."""
        if not self.queue:
            # Every k-th start, k verses being about one window, from a random offset.
            every = max(1, round(window * len(self.starts) / len(self.flat)))
            self.queue = self.starts[self.rng.randrange(every)::every]
            self.rng.shuffle(self.queue)
        at = self.queue.pop()
        ids = self.flat[at:at + window + 1]
        text = self.tok.tokens[ids[0]]
        bare = self.tok.ids.get(text.removeprefix("\u0120"), ids[0])
        return [self.bos, bare, *ids[1:window]]

    def window(self, window):
        """window + 1 ids."""
        ids = self.prose(window) if self.rng.random() > CHAT_SHARE else []
        while len(ids) < window + 1:
            ids += [self.bos, *self.tok.encode_chat(self.chats.chat()), self.eos]
        return ids[:window + 1]

    def batch(self, window, n):
        return np.asarray([self.window(window) for _ in range(n)], np.int32)


def tokenizer_for(runs, path):
    """Trains the merges, or reads them from path."""
    if not os.path.exists(path):
        chats = corpus.Chats(runs, SEED + 1)
        texts = [" ".join(v[3] for v in run) for run in runs]
        texts += [f"{r}\n{m}" for _ in range(3000) for r, m in chats.chat()]
        merges = train_merges(texts, CONFIG["n_vocab"] - 256 - 4)
        with open(path, "w") as file:
            json.dump(merges, file)
    with open(path) as file:
        return Tokenizer(json.load(file))


def held_out_batch(held, tokenizer, window=256):
    """All held-out verses in windows, and their characters per token."""
    text = " ".join(v[3] for run in held for v in run)
    ids = tokenizer.encode(text)
    n = (len(ids) - 1) // window
    return np.asarray([ids[i * window:(i + 1) * window + 1] for i in range(n)]), len(text) / len(ids)


def save(path, value):
    with open(path + ".new", "wb") as file:
        pickle.dump(value, file)
    os.replace(path + ".new", path)


def load(path):
    """What `save` wrote."""
    with open(path, "rb") as file:
        return pickle.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="folder for checkpoint, merges and log")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    train, held = corpus.split(corpus.verses())
    tokenizer = tokenizer_for(train, os.path.join(args.out, "merges.json"))
    windows = Windows(train, tokenizer)
    held_batch, chars = held_out_batch(held, tokenizer)
    checkpoint = os.path.join(args.out, "checkpoint.pkl")
    params = init(np.random.default_rng(SEED), CONFIG)
    state = {"m": jax.tree.map(jnp.zeros_like, params), "v": jax.tree.map(jnp.zeros_like, params),
             "count": jnp.zeros((), jnp.float32)}
    first = 0
    if os.path.exists(checkpoint):
        first, params, state = load(checkpoint)
    print(f"{sum(p.size for p in jax.tree.leaves(params))} parameters, {len(windows.flat)} tokens of prose, "
          f"{chars:.2f} characters a token", flush=True)
    def loss(params, batch):
        told = loss_of(params, batch, CONFIG)
        return told, told

    step_fn = make_step(loss)
    held_loss = jax.jit(lambda p, b: loss_of(p, b, CONFIG))
    started, mean = time.time(), None
    for step in range(SCHEDULE.steps):
        batch = windows.batch(*SCHEDULE.phase(step))
        if step < first:
            continue  # a resumed run draws the same windows as an unbroken one
        params, state, loss, norm = step_fn(params, state, batch, SCHEDULE.rate(step))
        mean = float(loss) if mean is None else 0.97 * mean + 0.03 * float(loss)
        last = step + 1 == SCHEDULE.steps
        if step % 20 == 0 or last:
            print(f"step {step:5d}  loss {float(loss):.3f}  mean {mean:.3f}  norm {float(norm):.2f}  "
                  f"{time.time() - started:.0f} s", flush=True)
        if step % 50 == 49 or last:
            value = np.mean([float(held_loss(params, held_batch[i:i + 8]))
                             for i in range(0, len(held_batch) - 7, 8)])
            print(f"step {step:5d}  held-out {value:.3f} nats a token, "
                  f"{value / chars / math.log(2):.3f} bits a character", flush=True)
            save(checkpoint, jax.device_get((step + 1, params, state)))


if __name__ == "__main__":
    main()
