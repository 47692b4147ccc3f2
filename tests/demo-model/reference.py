"""Writes what an engine must agree with on the demo model: python reference.py FILE --data DIR.

DIR/demo.json: texts and chats with their ids, and a prompt with the positions that DIR/demo.logits.npy holds,
f32 [positions, n_vocab]. Computed in JAX in f32 from the dequantised weights of FILE.
"""
import argparse
import json
import os

import jax.numpy as jnp
import numpy as np

from sample import load
from train import CONFIG, forward

TEXTS = ["In the beginning", "And it came to pass in those days,", "the LORD's house; 1 Kings 6:1-38",
         "  two  spaces\nand a line\n\n", "don't we'll I'm", "zqx 0123456789 ~!@#$%^&*()"]
CHATS = [[["user", "Tell me about the sea."]],
         [["system", "Be brief."], ["user", "Hello!"], ["assistant", "Peace be unto thee."], ["user", "Go on."]]]
PROMPT = ("In the beginning God created the heaven and the earth. And the earth was without form, and void; and "
          "darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters. And "
          "God said, Let there be light: and there was light.")
POSITIONS = [0, 1, 2, 7, 15, 16, 31, 32]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--data", required=True, help="the folder to write to")
    args = parser.parse_args()
    params, tok = load(args.model)
    bos = tok.ids["<|begin_of_text|>"]
    prompt = [bos, *tok.encode(PROMPT)]
    logits = np.asarray(forward(params, jnp.asarray([prompt]), CONFIG)[0], np.float32)
    positions = [*POSITIONS, len(prompt) - 1]
    ask = [tok.ids["<|im_start|>"], *tok.encode("assistant\n")]
    facts = {
        "texts": [{"text": text, "ids": tok.encode(text)} for text in TEXTS],
        "chats": [{"messages": [{"role": role, "content": content} for role, content in chat],
                   "ids": [bos, *tok.encode_chat(chat), *ask]} for chat in CHATS],
        "prompt": {"text": PROMPT, "ids": prompt, "positions": positions,
                   "argmax": [int(i) for i in logits.argmax(-1)]},
    }
    os.makedirs(args.data, exist_ok=True)
    with open(os.path.join(args.data, "demo.json"), "w") as file:
        json.dump(facts, file, indent=1)
        file.write("\n")
    np.save(os.path.join(args.data, "demo.logits.npy"), logits[positions])
    print(f"{len(prompt)} tokens, logits of {len(positions)} positions")


if __name__ == "__main__":
    main()
