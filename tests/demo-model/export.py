"""Writes a checkpoint of train.py as GGUF: python export.py --out DIR --gguf FILE.

Matrices are stored as Q8_0 (blocks of 32 values, one f16 scale), norms as F32. RoPE was trained on
interleaved pairs, which is what the architecture `llama` stores, so no rows are permuted.
"""
import argparse
import json
import os
import pickle

import gguf
import numpy as np

from bpe import CONTROL, Tokenizer
from corpus import CHAT_TEMPLATE
from train import CONFIG

TENSORS = {name: f"blk.{{}}.{name}.weight" for name in (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")}


def q8_0(matrix):
    """[rows, cols] f32 as Q8_0 bytes [rows, cols / 32 * 34]: per block f16 d = max|x| / 127, then 32 int8."""
    rows, cols = matrix.shape
    blocks = np.asarray(matrix, np.float32).reshape(rows, cols // 32, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    quants = np.rint(blocks * inverse).astype(np.int8)
    stored = scale.astype(np.float16).view(np.uint8)
    return np.concatenate([stored, quants.view(np.uint8)], -1).reshape(rows, cols // 32 * 34)


def add_metadata(writer, tokenizer, c=CONFIG):
    writer.add_name("brigade demo (King James Bible)")
    writer.add_description("A small demonstration model, trained from scratch on the King James Bible.")
    writer.add_license("MIT OR Apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(c["n_ctx"])
    writer.add_embedding_length(c["n_embd"])
    writer.add_feed_forward_length(c["n_ff"])
    writer.add_block_count(c["n_layer"])
    writer.add_head_count(c["n_head"])
    writer.add_head_count_kv(c["n_head_kv"])
    writer.add_layer_norm_rms_eps(c["eps"])
    writer.add_rope_dimension_count(c["n_embd"] // c["n_head"])
    writer.add_rope_freq_base(c["rope_base"])
    writer.add_vocab_size(c["n_vocab"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokenizer.tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if t in CONTROL else normal for t in tokenizer.tokens])
    writer.add_token_merges([f"{a} {b}" for a, b in tokenizer.merges])
    writer.add_bos_token_id(tokenizer.ids["<|begin_of_text|>"])
    writer.add_eos_token_id(tokenizer.ids["<|end_of_text|>"])
    writer.add_eot_token_id(tokenizer.ids["<|im_end|>"])
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def add_tensors(writer, params):
    def matrix(name, value):
        writer.add_tensor(name, q8_0(value), raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    matrix("token_embd.weight", params["token_embd"])
    writer.add_tensor("output_norm.weight", np.asarray(params["output_norm"], np.float32))
    for il in range(CONFIG["n_layer"]):
        for name, pattern in TENSORS.items():
            value = np.asarray(params[name][il], np.float32)
            if value.ndim == 1:
                writer.add_tensor(pattern.format(il), value)
            else:
                matrix(pattern.format(il), value)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="the folder that train.py wrote")
    parser.add_argument("--gguf", required=True, help="the file to write")
    args = parser.parse_args()
    with open(os.path.join(args.out, "merges.json")) as file:
        tokenizer = Tokenizer(json.load(file))
    with open(os.path.join(args.out, "checkpoint.pkl"), "rb") as file:
        step, params, _ = pickle.load(file)
    writer = gguf.GGUFWriter(args.gguf, "llama")
    add_metadata(writer, tokenizer)
    add_tensors(writer, params)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{args.gguf}: {os.path.getsize(args.gguf)} bytes, after {step} steps")


if __name__ == "__main__":
    main()
