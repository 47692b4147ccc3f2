// Causal depthwise convolution whose taps are some rows apart: out[t][c] = Σ_j weight[j][c] x[t - before + j apart][c], the
// oldest tap first, with as many rows before a part in its slot. An invocation has one channel of a row.
#version 460
#include "common.glsl"
#include "scan.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
    // One for each row: the slot that has the rows before its part, its place in its part, the part's first row, the row.
    Parts rows;
    // `[n_slots, before, channels]`.
    Floats states;
    // `[n_rows, channels]`.
    Floats x;
    // `[taps, channels]`.
    Floats weight;
    Floats result;
    uint n;
    uint channels;
    uint taps;
    uint apart;
} push;

void main() {
    uint i = item();
    if (i >= push.n) {
        return;
    }
    uint c = i % push.channels;
    uvec4 row = push.rows.v[i / push.channels];
    uint before = (push.taps - 1) * push.apart;
    Floats state = at(push.states, uint64_t(row.x) * before * push.channels);
    Floats x = at(push.x, uint64_t(row.z) * push.channels);
    float sum = 0.0;
    for (uint tap = 0; tap < push.taps; tap++) {
        // Places from the oldest remembered row on.
        uint place = row.y + tap * push.apart;
        float value = place < before ? state.v[place * push.channels + c] : x.v[(place - before) * push.channels + c];
        sum = value * push.weight.v[tap * push.channels + c] + sum;
    }
    at(push.result, uint64_t(row.w) * push.channels).v[c] = sum;
}
