// Σ_i a_i values_i for each column, with a the softmax of the rows' gates, rows in their order. An invocation has one
// column of a pool.
#version 460
#include "common.glsl"
#include "numbers.glsl"

layout(local_size_x = 64) in;

layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Rows { uint64_t v[]; };

layout(push_constant, scalar) uniform Push {
    // Of each row the addresses of its values and its gates.
    Rows rows;
    // Of each pool its first row; behind the last the number of all rows.
    Uints starts;
    Floats result;
    uint n_pools;
    uint width;
} push;

void main() {
    uint unit = line();
    uint per_pool = (push.width + 63) / 64;
    uint pool = unit / per_pool, column = unit % per_pool * 64 + gl_LocalInvocationID.x;
    if (pool >= push.n_pools || column >= push.width) {
        return;
    }
    uint start = push.starts.v[pool], end = push.starts.v[pool + 1];
    float most = 0.0 - INFINITE;
    for (uint row = start; row < end; row++) {
        most = max_(Floats(push.rows.v[2 * row + 1]).v[column], most);
    }
    float weights = 0.0, sum = 0.0;
    for (uint row = start; row < end; row++) {
        float weight = exp_(Floats(push.rows.v[2 * row + 1]).v[column] - most);
        weights += weight;
        sum = weight * Floats(push.rows.v[2 * row]).v[column] + sum;
    }
    at(push.result, uint64_t(pool) * push.width).v[column] = div_exact(sum, weights);
}
