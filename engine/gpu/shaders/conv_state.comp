// The state that a convolution leaves behind a part of at least so many rows: its last ones. An invocation has one channel
// of a part.
#version 460
#include "common.glsl"
#include "scan.glsl"

layout(local_size_x = 64) in;
// Rows of a state.
layout(constant_id = 0) const uint BEFORE = 3;

layout(push_constant, scalar) uniform Push {
    Parts parts;
    Floats states;
    Floats x;
    uint n_units;
    uint channels;
    uint stride;
    uint per_slot;
} push;

void main() {
    uint unit = line();
    uint per_part = (push.channels + 63) / 64;
    uint c = unit % per_part * 64 + gl_LocalInvocationID.x;
    if (unit >= push.n_units || c >= push.channels) {
        return;
    }
    Part part = part_of(push.parts, unit / per_part);
    uint tile = c / LANES * LANES;
    uint width = min(push.channels - tile, LANES);
    Floats state = at(push.states, slot_start(part.slot, push.per_slot) + tile * BEFORE);
    Floats x = at(push.x, uint64_t(part.first_row + part.n_rows - BEFORE) * push.stride);
    [[unroll]] for (uint j = 0; j < BEFORE; j++) {
        state.v[j * width + c - tile] = x.v[j * push.stride + c];
    }
}
