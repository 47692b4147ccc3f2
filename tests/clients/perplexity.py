"""The perplexity of a text as lm-eval's `local-completions` measures it, beside that of `brigade perplexity`:
`perplexity.py URL BRIGADE [TEXT]`. The server must have the same model, with at least 513 positions.

The same requests are sent here by hand, and by lm-eval itself where it is installed (`pip install 'lm-eval[api]'`).
"""

import json
import math
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

URL, BRIGADE = sys.argv[1:3]
DATA = Path(__file__).parent.parent / "data"
TEXT = Path(sys.argv[3]) if len(sys.argv) > 3 else DATA / "demo" / "held-out.txt"
CTX, CHUNKS = 512, 4

# Both read the same logits; they add the logarithms in another order, and JSON has them as f32.
TOLERANCE = 1e-4


def post(path, body):
    """An answer as an object."""
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def chunks():
    """Chunks of tokens as `brigade perplexity` cuts them; its second half is scored."""
    tokens, bare = (post("/tokenize", {"prompt": TEXT.read_text(), "add_special_tokens": special})["tokens"]
                    for special in (True, False))
    cut = [tokens[at:at + CTX] for at in range(0, len(tokens) - CTX + 1, CTX)][:CHUNKS]
    if len(tokens) > len(bare):
        cut = [tokens[:1] + chunk[1:] for chunk in cut]
    return [(chunk[:CTX // 2 + 1], chunk[CTX // 2 + 1:]) for chunk in cut]


def perplexity(logprobs, parts):
    return math.exp(-sum(logprobs) / sum(len(scored) for _, scored in parts))


def by_hand(parts):
    """What lm-eval asks for: the prompt repeated with its log-probabilities, and a token that is thrown away."""
    sums = []
    for context, scored in parts:
        answer = post("/v1/completions", {"prompt": context + scored, "temperature": 0, "max_tokens": 1,
                                          "logprobs": 1, "seed": 1234, "echo": True})
        sums.append(sum(answer["choices"][0]["logprobs"]["token_logprobs"][len(context):-1]))
    return perplexity(sums, parts)


def by_lm_eval(parts):
    """The same by lm-eval's own client; None where it is not installed."""
    try:
        from lm_eval.models.openai_completions import LocalCompletionsAPI
    except ImportError:
        return None
    client = LocalCompletionsAPI(base_url=URL + "/v1/completions", model="", max_length=CTX + 1)
    model = post("/tokenize", {"prompt": "", "add_special_tokens": False})
    assert model["tokens"] == [] and client.tokenizer_backend == "remote", "the server's own tokenizer is used"
    with urllib.request.urlopen(URL + "/v1/models") as answer:
        client.model = json.load(answer)["data"][0]["id"]
    results = client._loglikelihood_tokens([(("", ""), context, scored) for context, scored in parts])
    return perplexity([result[0] for result in results], parts)


def by_brigade():
    command = [BRIGADE, "perplexity", "-f", str(TEXT), "--ctx", str(CTX), "--chunks", str(CHUNKS), "--json"]
    with tempfile.TemporaryFile() as log:
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=log).stdout)["perplexity"]


def main():
    parts = chunks()
    ours = by_brigade()
    print(f"brigade perplexity           {ours:.6f}")
    wrong = False
    for name, value in [("echo and logprobs over HTTP", by_hand(parts)), ("lm-eval local-completions", by_lm_eval(parts))]:
        if value is None:
            print(f"{name:<28} skipped: lm-eval is not installed")
            continue
        print(f"{name:<28} {value:.6f}")
        wrong |= abs(value / ours - 1) > TOLERANCE
    sys.exit(wrong)


main()
