// Attention over depth: each row is a mixture of that row of all sources. A workgroup has a row. Sixteen invocations score a
// source, each with one of the CPU's sums.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "lanes.glsl"

layout(local_size_x = 256) in;

const uint MAX_SOURCES = 2048;
const uint AT_ONCE = 256 / LANES;

layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Addresses { uint64_t v[]; };

layout(push_constant, scalar) uniform Push {
    // Where each source is.
    Addresses sources;
    Floats score;
    Floats result;
    uint n_rows;
    uint d;
    uint n_sources;
    float eps;
} push;

// Scores of the sources, then their weights.
shared float weights[MAX_SOURCES];
shared float squares[256];
shared float products[256];
shared float folded;

Floats row_of(uint k, uint row) {
    return at(Floats(push.sources.v[k]), uint64_t(row) * push.d);
}

// The sum of sixteen neighbours in `squares`, or in `products`.
float sum_of(bool of_squares, uint first) {
    float lanes[LANES];
    [[unroll]] for (uint i = 0; i < LANES; i++) {
        lanes[i] = of_squares ? squares[first + i] : products[first + i];
    }
    return fold(lanes);
}

void score_sources(uint row) {
    uint me = gl_LocalInvocationID.x, lane = me % LANES;
    for (uint first = 0; first < push.n_sources; first += AT_ONCE) {
        uint k = first + me / LANES;
        float square = 0.0, product = 0.0;
        if (k < push.n_sources) {
            Floats x = row_of(k, row);
            for (uint i = lane; i < push.d; i += LANES) {
                float v = x.v[i];
                square = v * v + square;
                product = v * push.score.v[i] + product;
            }
        }
        squares[me] = square;
        products[me] = product;
        barrier();
        if (lane == 0 && k < push.n_sources) {
            float mean = div_exact(sum_of(true, me), float(push.d));
            weights[k] = div_exact(sum_of(false, me), sqrt_exact(mean + push.eps));
        }
        barrier();
    }
}

// Softmax of the scores, with the sums of the CPU's.
void softmax() {
    uint me = gl_LocalInvocationID.x, n = push.n_sources;
    if (me == 0) {
        float most = 0.0 - INFINITE;
        for (uint k = 0; k < n; k++) {
            most = max_(weights[k], most);
        }
        folded = most;
    }
    barrier();
    float most = folded;
    if (me < LANES) {
        float sum = 0.0;
        for (uint k = me; k < n; k += LANES) {
            float e = exp_(weights[k] - most);
            weights[k] = e;
            sum += e;
        }
        squares[me] = sum;
    }
    barrier();
    if (me == 0) {
        folded = sum_of(true, 0);
    }
    barrier();
    for (uint k = me; k < n; k += 256) {
        weights[k] = div_exact(weights[k], folded);
    }
    barrier();
}

void main() {
    uint row = line();
    if (row >= push.n_rows) {
        return;
    }
    score_sources(row);
    softmax();
    Floats result = at(push.result, uint64_t(row) * push.d);
    for (uint c = gl_LocalInvocationID.x; c < push.d; c += 256) {
        float sum = 0.0;
        for (uint k = 0; k < push.n_sources; k++) {
            sum = row_of(k, row).v[c] * weights[k] + sum;
        }
        result.v[c] = sum;
    }
}
