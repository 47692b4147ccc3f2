// Weighted sums of rows, each of a source: out[r][c] = start + Σ_k x_k[r][c] w[r][k], in the order of k.
#version 460
#include "common.glsl"

layout(local_size_x = 256) in;
// Whether a sum starts with what is there; else with zero.
layout(constant_id = 0) const bool ONTO = false;
// Whether each column has weights of its own, side by side.
layout(constant_id = 1) const bool BY_COLUMN = false;

layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Addresses { uint64_t v[]; };

layout(push_constant, scalar) uniform Push {
    // Where row 0 of each source is.
    Addresses sources;
    // That of row 0 and source 0.
    Floats weights;
    Floats result;
    uint n;
    uint d;
    uint n_sources;
    uint source_stride;
    uint weight_stride;
    uint weight_step;
} push;

void main() {
    uint i = item();
    if (i >= push.n) {
        return;
    }
    uint row = i / push.d, c = i % push.d;
    Floats weights = at(push.weights, uint64_t(row) * push.weight_stride);
    uint64_t start = uint64_t(row) * push.source_stride;
    uint at_weight = BY_COLUMN ? c : 0;
    float sum = ONTO ? push.result.v[i] : 0.0;
    for (uint k = 0; k < push.n_sources; k++) {
        float x = at(Floats(push.sources.v[k]), start).v[c];
        sum = x * weights.v[k * push.weight_step + at_weight] + sum;
    }
    push.result.v[i] = sum;
}
