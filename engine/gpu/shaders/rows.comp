// Norms and softmax of rows. A row's sums are those of the CPU: sixteen of them, each over every sixteenth value in order, folded at the
// end.
//
// THREADS invocations work on a row: 16 on a short one, each of which makes one sum; 256 on a long one, which bring pieces of it to
// shared memory, where the first sixteen add them up. An invocation changes the same values in every pass.
//
// A norm may do what comes before it and behind it: add others to the values first, which are kept, and make 8-bit blocks of what
// it gives.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "product_rows.glsl"
#include "quantize.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const uint THREADS = 16;
layout(constant_id = 2) const bool ADDS = false;
layout(constant_id = 3) const bool MAKES_BLOCKS = false;

const uint RMS = 0;
const uint L2 = 1;
const uint LAYER = 2;
const uint SOFTMAX = 3;

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats weights;
    Floats biases;
    Floats result;
    // What is added to x, times `factor`.
    Floats added;
    ActBlocks blocks;
    uint n;
    uint d;
    uint groups;
    float eps;
    float factor;
} push;

const uint PIECE = 4096;
shared float piece[PIECE];
shared float shares[256];

// This invocation's row, whether there is one, and its number among those on the row.
uint row = line() * (256 / THREADS) + gl_LocalInvocationID.x / THREADS;
bool live = row < push.n;
uint lane = gl_LocalInvocationID.x % THREADS;
uint base = gl_LocalInvocationID.x - lane;

Floats x = at(push.x, uint64_t(row) * push.d);
Floats result = at(push.result, uint64_t(row) * push.d);
Floats added = at(push.added, uint64_t(row) * push.d);

// Value `i`. It is read so until the norm is known: only then something is written.
float value(uint i) {
    return ADDS ? added.v[i] * push.factor + x.v[i] : x.v[i];
}

// What a pass adds up.
const uint VALUES = 0;
const uint SQUARES = 1;
const uint POWERS = 2;

// What value `i` adds, `from` being subtracted from it. Powers are kept in the result.
float term(uint what, uint i, float from) {
    float v = value(i) - from;
    if (what == SQUARES) {
        // As it is where nothing is subtracted.
        v = KIND == LAYER ? v : value(i);
        return v * v;
    }
    if (what == POWERS) {
        v = exp_(v);
        result.v[i] = v;
        return v;
    }
    return value(i);
}

// The sum of lane `lane` over the first `end` values, from `sum` on.
float lane_sum(uint what, float from, uint end, float sum) {
    if (THREADS == 16) {
        for (uint i = lane; i < end; i += LANES) {
            sum += term(what, i, from);
        }
        return sum;
    }
    for (uint start = 0; start < end; start += PIECE) {
        uint len = min(PIECE, end - start);
        barrier();
        for (uint i = lane; i < len; i += THREADS) {
            piece[i] = term(what, start + i, from);
        }
        barrier();
        if (lane < LANES) {
            for (uint i = lane; i < len; i += LANES) {
                sum += piece[i];
            }
        }
    }
    return sum;
}

// The sums of sixteen lanes, folded by the one tree.
float folded(float sum) {
    barrier();
    if (lane < LANES) {
        shares[base + lane] = sum;
    }
    barrier();
    float lanes[LANES];
    for (uint i = 0; i < LANES; i++) {
        lanes[i] = shares[base + i];
    }
    for (uint step = LANES / 2; step > 0; step /= 2) {
        for (uint i = 0; i < step; i++) {
            lanes[i] += lanes[i + step];
        }
    }
    return lanes[0];
}

// The greatest value of the row, which does not depend on the order.
float greatest(uint d) {
    float most = 0.0 - INFINITE;
    for (uint i = lane; i < d; i += THREADS) {
        most = max_(x.v[i], most);
    }
    shares[base + lane] = most;
    for (uint step = THREADS / 2; step > 0; step /= 2) {
        barrier();
        if (lane < step) {
            shares[base + lane] = max_(shares[base + lane], shares[base + lane + step]);
        }
    }
    barrier();
    return shares[base];
}

void softmax(uint d) {
    float most = greatest(d);
    float total = folded(lane_sum(POWERS, most, d, 0.0));
    for (uint i = lane; i < d; i += THREADS) {
        result.v[i] = div_exact(result.v[i], total);
    }
}

// The mean, whose sums start with the values behind the last whole vector.
float mean(uint d) {
    uint whole = d / LANES * LANES;
    float first = lane < d - whole ? value(whole + lane) : 0.0;
    return div_exact(folded(lane_sum(VALUES, 0.0, whole, first)), float(push.d));
}

// Writes what becomes of value `i`, and returns it.
float give(uint i, float from, float factor) {
    uint64_t at_weight = uint64_t(row % max(push.groups, 1u)) * push.d;
    float v = value(i), y = (v - from) * factor;
    if (KIND != LAYER) {
        y = v * factor;
    }
    if (KIND != L2) {
        y *= at(push.weights, at_weight).v[i];
    }
    if (KIND == LAYER) {
        y += at(push.biases, at_weight).v[i];
    }
    if (ADDS) {
        x.v[i] = v;
    }
    result.v[i] = y;
    return y;
}

// Writes all values, four beside each other to an invocation, and their blocks.
void blocks_of(uint d, float from, float factor) {
    uint n_blocks = push.d / 32;
    for (uint start = 0; start < n_blocks; start += THREADS / SHARE) {
        uint block = start + lane / SHARE, i = block * 32 + 4 * (lane % SHARE);
        bool mine = i < d;
        vec4 values = vec4(0.0);
        [[unroll]] for (uint k = 0; k < 4; k++) {
            if (mine) {
                values[k] = give(i + k, from, factor);
            }
        }
        make_block(push.blocks, row * n_blocks + block, mine, values);
        // Nobody begins the next while somebody reads this one.
        barrier();
    }
}

void norm(uint d) {
    float from = KIND == LAYER ? mean(d) : 0.0;
    float sum = folded(lane_sum(SQUARES, from, d, 0.0));
    if (KIND != L2) {
        sum = div_exact(sum, float(push.d));
    }
    float factor = div_exact(1.0, sqrt_exact(sum + push.eps));
    if (MAKES_BLOCKS) {
        blocks_of(d, from, factor);
        return;
    }
    for (uint i = lane; i < d; i += THREADS) {
        give(i, from, factor);
    }
}

void main() {
    // Invocations without a row go along, since all meet at barriers.
    uint d = live ? push.d : 0;
    if (KIND == SOFTMAX) {
        softmax(d);
    } else {
        norm(d);
    }
}
