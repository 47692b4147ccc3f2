"""Reads the GGUF back and lets it write: python sample.py FILE [--seed N] [--n TOKENS].

Everything comes from the file: tokens, merges, weights (dequantised by the gguf package). Prints the
greedy ids of a fixed prompt, which an engine can be held against, and sampled text and chat answers.
"""
import argparse

import gguf
import jax
import jax.numpy as jnp
import numpy as np

from bpe import Tokenizer
from export import TENSORS
from train import CONFIG, forward

PROMPTS = ["In the beginning", "And it came to pass", "The LORD is my"]
QUESTIONS = ["Hello, who are you?", "Tell me about the sea.", "What is the capital of France?",
             "Continue: And the king said unto"]
TEMPERATURE, TOP_K = 0.8, 40


def load(path):
    """(parameters, tokenizer) of a file that export.py wrote."""
    reader = gguf.GGUFReader(path)
    weights = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    params = {"token_embd": weights["token_embd.weight"], "output_norm": weights["output_norm.weight"]}
    for name, pattern in TENSORS.items():
        params[name] = np.stack([weights[pattern.format(il)] for il in range(CONFIG["n_layer"])])
    merges = [m.split(" ") for m in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(merges)
    if tokenizer.tokens != reader.fields["tokenizer.ggml.tokens"].contents():
        raise ValueError("the token list is not the one that the merges give")
    return jax.tree.map(jnp.asarray, params), tokenizer


class Writer:
    """Generates one token at a time over a window of fixed size (no cache: simple, slow)."""

    def __init__(self, params, window=256):
        self.params, self.window = params, window
        self.logits = jax.jit(lambda p, ids: forward(p, ids, CONFIG)[0])

    def next_logits(self, ids):
        padded = np.zeros((1, self.window), np.int32)
        padded[0, :len(ids)] = ids
        return np.asarray(self.logits(self.params, padded))[len(ids) - 1]

    def write(self, ids, n, stop, rng=None):
        """Up to n ids after ids, greedy without rng; ends at an id of stop."""
        ids, start = list(ids), len(ids)
        while len(ids) < min(start + n, self.window):
            logits = self.next_logits(ids)
            if rng is None:
                ids.append(int(np.argmax(logits)))
            else:
                best = np.argsort(-logits)[:TOP_K]
                p = np.exp((logits[best] - logits[best[0]]) / TEMPERATURE)
                ids.append(int(rng.choice(best, p=p / p.sum())))
            if ids[-1] in stop:
                break
        return ids[start:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--n", type=int, default=80)
    args = parser.parse_args()
    params, tok = load(args.model)
    writer, rng = Writer(params), np.random.default_rng(args.seed)
    bos, stop = tok.ids["<|begin_of_text|>"], {tok.ids["<|end_of_text|>"], tok.ids["<|im_end|>"]}
    prompt = [bos, *tok.encode(PROMPTS[0])]
    print("prompt ids", prompt)
    print("greedy ids", writer.write(prompt, 24, stop))
    for text in PROMPTS:
        ids = writer.write([bos, *tok.encode(text)], args.n, stop, rng)
        print(f"\n[{text}]{tok.decode(ids)}")
    for text in QUESTIONS:
        chat = tok.encode_chat([("user", text)]) + [tok.ids["<|im_start|>"], *tok.encode("assistant\n")]
        ids = writer.write([bos, *chat], args.n, stop, rng)
        print(f"\n[{text}]\n{tok.decode(ids)}")


if __name__ == "__main__":
    main()
