// The keys of pools of positions in pages: for each element the mean of the positions' keys, weighted by the softmax of
// their gates. An invocation has one element of a pool's key, which zeros follow where the gate was.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "kv_page.glsl"
#include "index_keys.glsl"

layout(local_size_x = 64) in;

layout(push_constant, scalar) uniform Push {
    // Keys of the index in the first page.
    uint64_t pool;
    // Of each position of each pool: its page times 64 and its position there.
    Uints members;
    Floats bias;
    Floats result;
    uint page_bytes;
    uint n_pools;
    uint positions;
    uint dim;
} push;

// Element `j` of what member `i` left.
float element(uint i, uint j) {
    uint place = push.members.v[i];
    uint64_t page = push.pool + uint64_t(place / KV_PAGE) * push.page_bytes;
    return key_element(page, whole_lanes(2 * push.dim), place % KV_PAGE, j);
}

void main() {
    uint i = item();
    uint pool = i / push.dim, j = i % push.dim;
    if (pool >= push.n_pools) {
        return;
    }
    uint first = pool * push.positions;
    float most = 0.0 - INFINITE;
    for (uint m = 0; m < push.positions; m++) {
        most = max_(element(first + m, push.dim + j) + push.bias.v[m * push.dim + j], most);
    }
    float weights = 0.0, sum = 0.0;
    for (uint m = 0; m < push.positions; m++) {
        float gate = element(first + m, push.dim + j) + push.bias.v[m * push.dim + j];
        float weight = exp_(gate - most);
        weights += weight;
        sum = weight * element(first + m, j) + sum;
    }
    push.result.v[pool * 2 * push.dim + j] = div_exact(sum, weights);
    push.result.v[pool * 2 * push.dim + push.dim + j] = 0.0;
}
