"""A small mixture of experts, and which experts it chooses: python experts.py --demo FILE --out DIR --gguf FILE --routing FILE.

The model is a cut of the demo model: four of its six layers. In the place of each feed-forward block stand 64 experts of 64
channels, of which a token uses eight (as OLMoE has them, arXiv 2409.02060). Experts begin as parts of the block that they
replace, with noise. They are trained on the demo model's text with its tokenizer; a small loss keeps them in use (Switch
Transformers, arXiv 2101.03961, section 2.2). Resumes from DIR if it holds a checkpoint.

The routing file has what tests of the choice of copies read: a line of text with the numbers of tokens, layers, experts and
experts used, then a byte for each choice, `[tokens, layers, used]`. Its tokens are of held-out chapters and of chats.
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
from train import attention, rms_norm, save

CONFIG = {**train.CONFIG, "n_layer": 4, "n_expert": 64, "n_used": 8, "n_ff": 64}
# Of the demo model's layers.
LAYERS = [0, 1, 3, 5]
# Rows that an expert takes in a training step, in means over all experts: those beyond are left out.
CAPACITY = 1.5
BALANCE_SHARE = 0.01
SCHEDULE = train.Schedule(1.5e-3, 40, 320, [(128, 24, 500), (256, 12, 150)])
ATTENTION = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"]
EXPERTS = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]
# Tokens of the recorded routing, of prose and of chats.
RECORDED = 1024


def begin(demo):
    """Parameters from the demo model's `demo`: expert e begins as part e mod 8 of the block's channels."""
    c, rng = CONFIG, np.random.default_rng(train.SEED)
    n, ff, d = c["n_expert"], c["n_ff"], c["n_embd"]

    def experts(matrix, axis, gain):
        parts = np.split(np.asarray(matrix), train.CONFIG["n_ff"] // ff, axis)
        stacked = gain * np.stack([parts[e % len(parts)] for e in range(n)])
        return stacked + rng.normal(0, 0.2 * stacked.std(), stacked.shape)

    def layer(il):
        w = {name: np.asarray(demo[name][il]) for name in ATTENTION + ["ffn_norm"]}
        w["ffn_gate_inp"] = rng.normal(0, 1 / math.sqrt(d), (n, d))
        w["ffn_gate_exps"] = experts(demo["ffn_gate"][il], 0, 1.0)
        w["ffn_up_exps"] = experts(demo["ffn_up"][il], 0, 1.0)
        # Weights of the experts add up to one.
        w["ffn_down_exps"] = experts(demo["ffn_down"][il], 1, c["n_used"])
        return w

    layers = [layer(il) for il in LAYERS]
    params = {"token_embd": demo["token_embd"], "output_norm": demo["output_norm"],
              "layers": {name: np.stack([w[name] for w in layers]) for name in layers[0]}}
    return jax.tree.map(lambda p: jnp.array(p, jnp.float32), params)


def mixture(h, w, c):
    """Experts on rows h [rows, n_embd]: their sum, the experts of each row [rows, used], and the loss of balance."""
    rows, d = h.shape
    n, used = c["n_expert"], c["n_used"]
    share = jax.nn.softmax(h @ w["ffn_gate_inp"].T, -1)
    weight, chosen = jax.lax.top_k(share, used)
    weight = weight / weight.sum(-1, keepdims=True)
    flat = chosen.reshape(-1)
    is_of = jax.nn.one_hot(flat, n, dtype=jnp.int32)
    place = (jnp.cumsum(is_of, 0) * is_of).sum(-1) - 1
    room = int(CAPACITY * rows * used / n)
    # Rows beyond an expert's room are written to a place that nobody reads.
    at = jnp.where(place < room, flat * room + place, n * room)
    row = jnp.arange(rows * used) // used
    given = jnp.zeros((n * room + 1, d)).at[at].set(h[row])[:-1].reshape(n, room, d)
    gate = jnp.einsum("erd,efd->erf", given, w["ffn_gate_exps"])
    up = jnp.einsum("erd,efd->erf", given, w["ffn_up_exps"])
    out = jnp.einsum("erf,edf->erd", jax.nn.silu(gate) * up, w["ffn_down_exps"]).reshape(n * room, d)
    out = jnp.concatenate([out, jnp.zeros((1, d))])[at] * weight.reshape(-1, 1)
    balance = n * jnp.sum(share.mean(0) * is_of.mean(0))
    return out.reshape(rows, used, d).sum(1), chosen, balance


def forward(params, tokens, c):
    """Logits [batch, tokens, n_vocab] of tokens [batch, tokens], experts [layers, batch, tokens, used], the mean balance."""
    x, routing, balances = params["token_embd"][tokens], [], []
    for il in range(c["n_layer"]):
        w = {name: values[il] for name, values in params["layers"].items()}
        x = x + attention(x, w, c)
        h = rms_norm(x, w["ffn_norm"], c["eps"]).reshape(-1, x.shape[-1])
        out, chosen, balance = mixture(h, w, c)
        x = x + out.reshape(x.shape)
        routing.append(chosen.reshape(*tokens.shape, -1))
        balances.append(balance)
    logits = rms_norm(x, params["output_norm"], c["eps"]) @ params["token_embd"].T
    return logits, jnp.stack(routing), jnp.mean(jnp.stack(balances))


def loss_of(params, batch, c):
    """Mean cross-entropy, in nats, of the next token over batch [windows, window + 1], and the balance."""
    logits, _, balance = forward(params, batch[:, :-1], c)
    picked = jnp.take_along_axis(logits, batch[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked), balance


def make_step(c):
    def loss(params, batch):
        told, balance = loss_of(params, batch, c)
        return told + BALANCE_SHARE * balance, (told, balance)

    return train.make_step(loss)


def write(path, params, tokenizer):
    """The file, in the form of the architecture `llama` with experts, matrices as Q8_0."""
    c = CONFIG
    writer = gguf.GGUFWriter(path, "llama")
    export.add_metadata(writer, tokenizer, c)
    writer.add_expert_count(c["n_expert"])
    writer.add_expert_used_count(c["n_used"])

    def tensor(name, value):
        value = np.asarray(value, np.float32)
        if value.ndim == 1 or name.endswith("ffn_gate_inp.weight"):
            return writer.add_tensor(name, value)
        flat = export.q8_0(value.reshape(-1, value.shape[-1]))
        stored = flat.reshape(*value.shape[:-1], -1)
        return writer.add_tensor(name, stored, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    tensor("token_embd.weight", params["token_embd"])
    tensor("output_norm.weight", params["output_norm"])
    for il in range(c["n_layer"]):
        for name, values in params["layers"].items():
            tensor(f"blk.{il}.{name}.weight", values[il])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def record(path, params, held, chats, tokenizer):
    """Which experts each token of held-out prose and of chats uses."""
    c, window = CONFIG, 256
    prose = tokenizer.encode(" ".join(verse[3] for run in held for verse in run))[:RECORDED]
    talk = []
    while len(talk) < RECORDED:
        talk += [tokenizer.ids["<|begin_of_text|>"], *tokenizer.encode_chat(chats.chat())]
    ids = np.asarray(prose + talk[:RECORDED]).reshape(-1, window)
    _, routing, _ = forward(params, ids, c)
    # [layers, windows, window, used] to [tokens, layers, used].
    routing = np.asarray(routing).reshape(c["n_layer"], -1, c["n_used"]).transpose(1, 0, 2)
    routing = np.sort(routing, -1)
    with open(path, "wb") as file:
        file.write(f"{len(routing)} {c['n_layer']} {c['n_expert']} {c['n_used']}\n".encode())
        file.write(routing.astype(np.uint8).tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", required=True, help="the demo model")
    parser.add_argument("--out", required=True, help="folder for the checkpoint")
    parser.add_argument("--gguf", required=True, help="the file to write")
    parser.add_argument("--routing", required=True, help="the file of choices to write")
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
    held_loss = jax.jit(lambda p, b: jnp.stack(loss_of(p, b, CONFIG)))
    started = time.time()
    for step in range(SCHEDULE.steps):
        batch = windows.batch(*SCHEDULE.phase(step))
        if step < first:
            continue  # a resumed run draws the same windows as an unbroken one
        params, state, told, norm = step_fn(params, state, batch, SCHEDULE.rate(step))
        last = step + 1 == SCHEDULE.steps
        if step % 20 == 0 or last:
            print(f"step {step:5d}  loss {told[0]:.3f}  balance {told[1]:.2f}  norm {float(norm):.2f}  "
                  f"{time.time() - started:.0f} s", flush=True)
        if step % 50 == 49 or last:
            parts = [held_loss(params, held_batch[i:i + 8]) for i in range(0, len(held_batch) - 7, 8)]
            print("step {:5d}  held-out {:.3f} nats a token, balance {:.2f}".format(step, *np.mean(parts, 0)), flush=True)
            save(checkpoint, jax.device_get((step + 1, params, state)))
    write(args.gguf, params, tokenizer)
    record(args.routing, params, held, corpus.Chats(held, train.SEED + 2), tokenizer)
    print(f"{args.gguf}: {os.path.getsize(args.gguf)} bytes, {args.routing}: {os.path.getsize(args.routing)} bytes")


if __name__ == "__main__":
    main()
