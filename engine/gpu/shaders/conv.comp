// Causal depthwise convolution: y[t][c] = act(bias[c] + Σ_j weight[j][c] x[t - TAPS + 1 + j][c]). An invocation has one
// channel of a piece: some rows of a part.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "scan.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TAPS = 4;
layout(constant_id = 1) const uint SILU = 1;
const uint BEFORE = TAPS - 1;

// A part's first piece has the rows before it from the state; those of others are rows before. A piece that is a whole part
// also leaves the state behind it.
const uint FIRST = 1;
const uint WHOLE = 2;

layout(push_constant, scalar) uniform Push {
    // Slot, kind and where the state before it is, first row, rows.
    Parts pieces;
    Floats states;
    Floats x;
    Floats weight;
    Floats bias;
    Floats result;
    uint n_units;
    uint channels;
    uint stride;
    uint per_slot;
} push;

void main() {
    uint unit = line();
    uint per_piece = (push.channels + 63) / 64;
    uint c = unit % per_piece * 64 + gl_LocalInvocationID.x;
    if (unit >= push.n_units || c >= push.channels) {
        return;
    }
    Part piece = part_of(push.pieces, unit / per_piece);
    uint kind = piece.first_pos;
    uint tile = c / LANES * LANES;
    uint width = min(push.channels - tile, LANES);
    Floats state = at(push.states, slot_start(piece.from, push.per_slot) + tile * BEFORE);
    Floats x = at(push.x, uint64_t(piece.first_row) * push.stride);
    float weight[TAPS];
    float before[BEFORE];
    [[unroll]] for (uint j = 0; j < TAPS; j++) {
        weight[j] = push.weight.v[j * push.channels + c];
    }
    if ((kind & FIRST) != 0) {
        [[unroll]] for (uint j = 0; j < BEFORE; j++) {
            before[j] = state.v[j * width + c - tile];
        }
    } else {
        Floats rows = Floats(uint64_t(x) - uint64_t(BEFORE) * push.stride * 4);
        [[unroll]] for (uint j = 0; j < BEFORE; j++) {
            before[j] = rows.v[j * push.stride + c];
        }
    }
    float bias = push.bias.v[c];
    for (uint row = 0; row < piece.n_rows; row++) {
        float now = x.v[row * push.stride + c];
        float y = 0.0;
        [[unroll]] for (uint j = 0; j < BEFORE; j++) {
            y = weight[j] * before[j] + y;
        }
        y = (weight[BEFORE] * now + y) + bias;
        [[unroll]] for (uint j = 1; j < BEFORE; j++) {
            before[j - 1] = before[j];
        }
        before[BEFORE - 1] = now;
        push.result.v[(piece.first_row + row) * push.channels + c] = SILU != 0 ? silu_(y) : y;
    }
    if ((kind & WHOLE) != 0) {
        state = at(push.states, slot_start(piece.slot, push.per_slot) + tile * BEFORE);
        [[unroll]] for (uint j = 0; j < BEFORE; j++) {
            state.v[j * width + c - tile] = before[j];
        }
    }
}
