// Logits of a model's own block of drafts (NextN, MTP), as llama.cpp computes them.
//
//   drafts MODEL.gguf OUT.npy DEPTH TOKEN...
//
// OUT.npy is f32 [n + DEPTH, n_vocab] for n tokens. Row k < n: the block at position k reads token k and the model's
// hidden row of position k - 1 (a row of zeros at position 0). The rows behind are a chain: the block reads the model's
// most probable token behind the last one and the last hidden row, then its own most probable token and its own
// hidden row, and so on. Where a model has several heads, the first computes the rows k < n, and step i of the chain is head i's.
//
// Everything as exactly as llama.cpp can: flash attention off, keys and values in f32, one ubatch, no repacked weights.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "common.h"
#include "llama.h"
#include "src/llama-ext.h"

static llama_context * context(llama_model * model, int n, llama_context_type type, llama_context * other) {
    llama_context_params p = llama_context_default_params();
    p.n_ctx = p.n_batch = p.n_ubatch = n;
    p.n_threads = p.n_threads_batch = 2;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.type_k = p.type_v = GGML_TYPE_F32;
    p.ctx_type = type;
    p.ctx_other = other;
    p.swa_full = true;
    llama_context * ctx = llama_init_from_model(model, p);
    if (!ctx) { fprintf(stderr, "no context\n"); exit(1); }
    return ctx;
}

static int argmax(const float * row, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) if (row[i] > row[best]) best = i;
    return best;
}

int main(int argc, char ** argv) {
    if (argc < 5) { fprintf(stderr, "drafts MODEL.gguf OUT.npy DEPTH TOKEN...\n"); return 2; }
    const int depth = atoi(argv[3]);
    std::vector<llama_token> tokens;
    for (int i = 4; i < argc; i++) tokens.push_back(atoi(argv[i]));
    const int n = tokens.size();
    llama_backend_init();
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    mp.use_extra_bufts = false;
    mp.load_mtp = true;
    llama_model * model = llama_model_load_from_file(argv[1], mp);
    if (!model) return 1;
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const int n_heads = llama_model_n_layer_nextn(model);
    if (n_heads == 0) { fprintf(stderr, "the model has no such block\n"); return 1; }
    llama_context * target = context(model, 2 * n + 64, LLAMA_CONTEXT_TYPE_DEFAULT, nullptr);
    llama_context * block = context(model, 2 * n + 64, LLAMA_CONTEXT_TYPE_MTP, target);
    const int width = llama_model_n_embd_out(model);
    // Of the rows whose logits are wanted, which are all. What comes unmasked of deepseek4 are other values than these.
    llama_set_embeddings_nextn(target, true, true);
    llama_set_embeddings_nextn(block, true, true);

    common_batch batch(target);
    for (int k = 0; k < n; k++) batch.add(tokens[k], k, 0, true);
    if (llama_process(target, LLAMA_PROCESS_TYPE_DECODE, batch.get())) return 1;
    std::vector<float> hidden((size_t)(n + 1) * width, 0.0f);
    memcpy(hidden.data() + width, llama_get_embeddings_nextn(target), sizeof(float) * (size_t) n * width);
    llama_token next = argmax(llama_get_logits_ith(target, n - 1), n_vocab);

    std::vector<float> out;
    auto rows = [&](common_batch & b, int head, std::vector<int> take) {
        llama_memory_seq_rm(llama_get_memory(block), 0, b.tokens[0].pos[0], -1);
        llama_set_nextn_layer_offset(block, head);
        if (llama_process(block, LLAMA_PROCESS_TYPE_DECODE, b.get())) { fprintf(stderr, "process\n"); exit(1); }
        for (int i : take) {
            const float * row = llama_get_logits_ith(block, i);
            out.insert(out.end(), row, row + n_vocab);
        }
    };
    std::vector<int> all;
    for (int k = 0; k < n; k++) all.push_back(k);
    for (int head = n_heads - 1; head >= 0; head--) {
        common_batch b(block);
        for (int k = 0; k < n; k++) {
            int i = b.add(tokens[k], k, 0, true);
            b.set_embd(i, { hidden.data() + (size_t) k * width, 1, (size_t) width });
        }
        rows(b, head, head == 0 ? all : std::vector<int>{});
    }
    // Rows of all heads are there. The chain.
    std::vector<llama_token> chain{ next };
    std::vector<float> chain_h(hidden.end() - width, hidden.end());
    printf("greedy %d chain", next);
    for (int d = 0; d < depth; d++) {
        common_batch b(block);
        const int from = n_heads > 1 ? 0 : d;
        for (int t = from; t <= d; t++) {
            int i = b.add(chain[t], n + t, 0, true);
            b.set_embd(i, { chain_h.data() + (size_t) t * width, 1, (size_t) width });
        }
        rows(b, n_heads > 1 ? d : 0, { d - from });
        const float * h = llama_get_embeddings_nextn_ith(block, d - from);
        chain_h.insert(chain_h.end(), h, h + width);
        chain.push_back(argmax(out.data() + out.size() - n_vocab, n_vocab));
        printf(" %d", chain.back());
        if (n_heads > 1 && d + 1 == n_heads) break;
    }
    printf("\n");
    FILE * file = fopen(argv[2], "wb");
    std::string head = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(out.size() / n_vocab) + ", " + std::to_string(n_vocab) + "), }";
    while ((10 + head.size() + 1) % 64) head += ' ';
    head += '\n';
    unsigned short len = head.size();
    fwrite("\x93NUMPY\x01\x00", 1, 8, file);
    fwrite(&len, 2, 1, file);
    fwrite(head.data(), 1, head.size(), file);
    fwrite(out.data(), 4, out.size(), file);
    fclose(file);
    llama_free(block);
    llama_free(target);
    llama_model_free(model);
}
