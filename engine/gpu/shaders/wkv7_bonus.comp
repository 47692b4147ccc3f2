// out += v Σ r k r_k, head by head, `cpu/scan/wkv7.rs` of the engine. Sixteen invocations have one head of a row.
#version 460
#include "common.glsl"
#include "lanes.glsl"

layout(local_size_x = 64) in;
// Columns of a head, a multiple of 16.
layout(constant_id = 0) const uint D = 64;

layout(push_constant, scalar) uniform Push {
    Floats r;
    Floats k;
    Floats v;
    Floats r_k;
    Floats result;
    // Heads of all rows, and of one.
    uint n;
    uint n_heads;
} push;

shared float products[64];

void main() {
    uint head = line() * (64 / LANES) + gl_LocalInvocationID.x / LANES;
    uint lane = gl_LocalInvocationID.x % LANES;
    uint in_row = head % push.n_heads * D;
    bool used = head < push.n;
    float sum = 0.0;
    if (used) {
        for (uint c = lane; c < D; c += LANES) {
            uint i = head * D + c;
            sum = push.r.v[i] * push.k.v[i] * push.r_k.v[in_row + c] + sum;
        }
    }
    products[gl_LocalInvocationID.x] = sum;
    barrier();
    if (!used) {
        return;
    }
    float lanes[LANES];
    [[unroll]] for (uint i = 0; i < LANES; i++) {
        lanes[i] = products[gl_LocalInvocationID.x - lane + i];
    }
    sum = fold(lanes);
    for (uint c = lane; c < D; c += LANES) {
        uint i = head * D + c;
        push.result.v[i] = push.v.v[i] * sum + push.result.v[i];
    }
}
