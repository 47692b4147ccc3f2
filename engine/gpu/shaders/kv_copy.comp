// Copies pages onto others.
#version 460
#include "common.glsl"

layout(local_size_x = 64) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Lines { uvec4 v[]; };

layout(push_constant, scalar) uniform Push {
    uint64_t pool;
    // Of each copy: the page that is read, and that which is written.
    Uints pairs;
    uint n_pairs;
    // Of a page, 16 bytes each.
    uint lines;
} push;

void main() {
    uint copy = item() / push.lines, i = item() % push.lines;
    if (copy >= push.n_pairs) {
        return;
    }
    uint64_t bytes = uint64_t(push.lines) * 16;
    uint64_t from = push.pool + push.pairs.v[2 * copy] * bytes;
    uint64_t to = push.pool + push.pairs.v[2 * copy + 1] * bytes;
    Lines(to).v[i] = Lines(from).v[i];
}
