"""A byte-pair tokenizer in GPT-2's form: what `tokenizer.ggml.model = gpt2`, `pre = gpt-2` describes.

Text is cut into pieces by GPT-2's expression, the bytes of each piece are mapped to printable
characters, and merges are applied by lowest rank, leftmost first. The training text is ASCII, so the
expression's letter and number classes are written as ASCII ranges here.
"""
import collections
import re

PIECE = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
CONTROL = ["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"]


def byte_alphabet():
    """byte -> the printable character that stands for it in the vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}


ALPHABET = byte_alphabet()


def spell(piece):
    """A piece of text as a list of alphabet characters, one per byte."""
    return [ALPHABET[b] for b in piece.encode()]


def train_merges(texts, n_merges):
    """The n_merges most frequent pairs, one after another; ties go to the smaller pair."""
    counts = collections.Counter(piece for text in texts for piece in PIECE.findall(text))
    words = [(spell(piece), n) for piece, n in sorted(counts.items())]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, (symbols, n) in enumerate(words):
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] += n
            where[pair].add(i)
    merges = []
    while len(merges) < n_merges:
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        for i in sorted(where.pop(best)):
            symbols, n = words[i]
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] -= n
                if pairs[pair] == 0:
                    del pairs[pair]
            symbols[:] = merge(symbols, best)
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += n
                where[pair].add(i)
    return merges


def merge(symbols, pair):
    """symbols with every occurrence of pair joined, from the left."""
    out, i = [], 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            out.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out


class Tokenizer:
    """Text to ids and back. Ids: 256 bytes, then one per merge, then the control tokens."""

    def __init__(self, merges):
        self.merges = [tuple(m) for m in merges]
        self.rank = {pair: i for i, pair in enumerate(self.merges)}
        joined = [a + b for a, b in self.merges]
        self.tokens = sorted(ALPHABET.values()) + joined + CONTROL
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise ValueError("two merges make the same token")
        self.bytes = {char: b for b, char in ALPHABET.items()}
        self.cache = {}

    def piece(self, piece):
        """Ids of one piece."""
        if piece not in self.cache:
            symbols = spell(piece)
            while len(symbols) > 1:
                pair = min(zip(symbols, symbols[1:]), key=lambda p: self.rank.get(p, len(self.rank)))
                if pair not in self.rank:
                    break
                symbols = merge(symbols, pair)
            self.cache[piece] = [self.ids[s] for s in symbols]
        return self.cache[piece]

    def encode(self, text):
        """Ids of plain text: control tokens in it are not recognised."""
        return [i for piece in PIECE.findall(text) for i in self.piece(piece)]

    def encode_chat(self, messages):
        """Ids of [(role, content), ...] in the form of the chat template."""
        start, end = self.ids["<|im_start|>"], self.ids["<|im_end|>"]
        out = []
        for role, content in messages:
            out += [start, *self.encode(f"{role}\n{content}"), end, *self.encode("\n")]
        return out

    def decode(self, ids):
        """Text of ids; control tokens are written out."""
        data = bytearray()
        for i in ids:
            token = self.tokens[i]
            data += token.encode() if token in CONTROL else bytes(self.bytes[c] for c in token)
        return data.decode(errors="replace")
