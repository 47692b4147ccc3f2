// Keeps of each part the last rows of its slot and of itself. An invocation has one channel of a part; it moves what it keeps
// of the slot forward in order, so that nothing is read behind its change.
#version 460
#include "common.glsl"
#include "scan.glsl"

layout(local_size_x = 64) in;

layout(push_constant, scalar) uniform Push {
    Parts parts;
    // `[n_slots, kept, channels]`.
    Floats states;
    // `[n_rows, channels]`.
    Floats x;
    uint n;
    uint channels;
    uint kept;
} push;

void main() {
    uint i = item();
    if (i >= push.n) {
        return;
    }
    uint c = i % push.channels;
    Part part = part_of(push.parts, i / push.channels);
    uint fresh = min(part.n_rows, push.kept);
    Floats before = at(push.states, uint64_t(part.from) * push.kept * push.channels);
    Floats state = at(push.states, uint64_t(part.slot) * push.kept * push.channels);
    Floats x = at(push.x, uint64_t(part.first_row + part.n_rows - fresh) * push.channels);
    for (uint row = 0; row + fresh < push.kept; row++) {
        state.v[row * push.channels + c] = before.v[(row + fresh) * push.channels + c];
    }
    for (uint row = 0; row < fresh; row++) {
        state.v[(push.kept - fresh + row) * push.channels + c] = x.v[row * push.channels + c];
    }
}
