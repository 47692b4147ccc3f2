// Rotates pairs of each head: y0 = x0 cos - x1 sin, y1 = x1 cos + x0 sin, each of two products. One invocation turns one pair.
#version 460
#include "common.glsl"

layout(local_size_x = 256) in;
// Whether the values of a pair lie side by side, or half the rotated part apart.
layout(constant_id = 0) const bool APART = false;

layout(push_constant, scalar) uniform Push {
    Floats x;
    // For each row the cosines of all pairs, then the sines.
    Floats table;
    uint n;
    uint pairs;
    uint heads;
    uint head_dim;
} push;

void main() {
    uint i = item();
    if (i >= push.n) {
        return;
    }
    uint pair = i % push.pairs, head = i / push.pairs;
    Floats x = at(push.x, uint64_t(head) * push.head_dim);
    Floats table = at(push.table, uint64_t(head / push.heads) * (2 * push.pairs));
    uint first = APART ? pair : 2 * pair;
    uint second = APART ? pair + push.pairs : 2 * pair + 1;
    float c = table.v[pair], s = table.v[push.pairs + pair];
    // The sign of a sine of 0 is that of the CPU's.
    float minus = APART ? 0.0 - s : -s;
    float x0 = x.v[first], x1 = x.v[second];
    x.v[first] = x0 * c + x1 * minus;
    x.v[second] = x1 * c + x0 * s;
}
