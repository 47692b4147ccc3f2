// Means of the keys of an index over blocks of positions, summed in the order of positions. An invocation has one element
// of a block's.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "kv_page.glsl"
#include "index_keys.glsl"

layout(local_size_x = 64) in;

layout(push_constant, scalar) uniform Push {
    // The sequence's pages.
    Uints pages;
    // Keys of the index in the first page.
    uint64_t pool;
    // `[blocks, dim]`.
    Floats result;
    uint page_bytes;
    uint n;
    uint dim;
    // Elements of a key in its page.
    uint width;
    uint positions;
    // One over them.
    float inverse;
} push;

void main() {
    uint i = item();
    if (i >= push.n) {
        return;
    }
    uint block = i / push.dim, j = i % push.dim;
    float sum = 0.0;
    for (uint pos = block * push.positions; pos < (block + 1) * push.positions; pos++) {
        uint64_t page = push.pages.v[pos / KV_PAGE];
        sum += key_element(push.pool + page * push.page_bytes, push.width, pos % KV_PAGE, j);
    }
    push.result.v[i] = sum * push.inverse;
}
