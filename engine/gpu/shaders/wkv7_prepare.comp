// Makes ready what RWKV-7's time mixing reads, `cpu/scan/wkv7.rs` of the engine. Sixteen invocations have one head of a row.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "lanes.glsl"

layout(local_size_x = 64) in;
// Columns of a head, a multiple of 16.
layout(constant_id = 0) const uint D = 64;

layout(push_constant, scalar) uniform Push {
    Floats w;
    Floats k;
    Floats a;
    Floats kappa;
    Floats w0;
    Floats a0;
    Floats k_k;
    Floats k_a;
    // Heads of all rows, and of one.
    uint n;
    uint n_heads;
} push;

// e^-½, to the digits that models are trained with.
const float DECAY_SCALE = 0.606531;
// Smallest length that a removal key is divided by.
const float LEAST_LENGTH = 1e-12;

shared float squares[64];

void main() {
    uint head = line() * (64 / LANES) + gl_LocalInvocationID.x / LANES;
    uint lane = gl_LocalInvocationID.x % LANES;
    uint in_row = head % push.n_heads * D;
    bool used = head < push.n;
    float sum = 0.0;
    if (used) {
        for (uint c = lane; c < D; c += LANES) {
            float key = push.k.v[head * D + c] * push.k_k.v[in_row + c];
            sum = key * key + sum;
        }
    }
    squares[gl_LocalInvocationID.x] = sum;
    barrier();
    if (!used) {
        return;
    }
    float lanes[LANES];
    [[unroll]] for (uint i = 0; i < LANES; i++) {
        lanes[i] = squares[gl_LocalInvocationID.x - lane + i];
    }
    float factor = div_exact(1.0, max_(sqrt_exact(fold(lanes)), LEAST_LENGTH));
    for (uint c = lane; c < D; c += LANES) {
        uint i = head * D + c;
        float key = push.k.v[i];
        float normed = key * push.k_k.v[in_row + c] * factor;
        push.kappa.v[i] = normed;
        float rate = sigmoid_(push.a.v[i] + push.a0.v[in_row + c]);
        push.a.v[i] = normed * rate;
        float share = key * push.k_a.v[in_row + c];
        push.k.v[i] = key + (rate * share - share);
        float decay = sigmoid_(push.w.v[i] + push.w0.v[in_row + c]);
        push.w.v[i] = exp_(decay * (0.0 - DECAY_SCALE));
    }
}
