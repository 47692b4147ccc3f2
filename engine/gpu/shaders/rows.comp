// Norms and softmax of rows. A row's sums are those of the CPU: sixteen of them, each over every sixteenth value in order, folded at the
// end.
//
// THREADS invocations work on a row: 16 on a short one, each of which makes one sum; 256 on a long one, which bring pieces of it to
// shared memory, where the first sixteen add them up. An invocation changes the same values in every pass.
//
// Memory takes some hundred cycles to answer, so values are read many at a time, before the first of them is used. Rows of whole lanes
// that are not too long are read once, four values beside each other, and held (FOURS).
//
// A norm may do what comes before it and behind it: add others to the values first, which are kept, and make 8-bit blocks of what
// it gives.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "four_floats.glsl"
#include "product_rows.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const uint THREADS = 16;
layout(constant_id = 2) const bool ADDS = false;
layout(constant_id = 3) const bool MAKES_BLOCKS = false;
// Fours of values that an invocation holds of its row; 0: it reads its values again.
layout(constant_id = 4) const uint FOURS = 0;

const uint HELD = FOURS > 0 ? FOURS : 1;
const uint ROUNDS = HELD;
#include "quantize.glsl"

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

// Values that an invocation reads at once, where it does not hold them.
const uint BATCH = 8;
// Fours that each of 256 invocations brings to a piece, and values of the piece.
const uint PIECE_FOURS = HELD > 4 ? 2 : 4;
const uint PIECE = PIECE_FOURS * 4 * 256;
shared vec4 piece[THREADS == LANES ? 1 : PIECE / 4];
// The sums of each row's lanes.
shared vec4 shares[256 / 4];
shared float greatest_shares[256];

// What a sum is not changed by.
const float NOTHING = uintBitsToFloat(0x80000000u);

// This invocation's row, whether there is one, and its number among those on the row.
uint row = line() * (256 / THREADS) + gl_LocalInvocationID.x / THREADS;
bool live = row < push.n;
uint lane = gl_LocalInvocationID.x % THREADS;
uint base = gl_LocalInvocationID.x - lane;

Floats x = at(push.x, uint64_t(min(row, push.n - 1)) * push.d);
Floats result = at(push.result, uint64_t(min(row, push.n - 1)) * push.d);
Floats added = at(push.added, uint64_t(min(row, push.n - 1)) * push.d);
Floats weights = at(push.weights, uint64_t(row % max(push.groups, 1u)) * push.d);
Floats biases = at(push.biases, uint64_t(row % max(push.groups, 1u)) * push.d);

// A value's place, or the last one's for those behind the end.
uint place(uint i) {
    return min(i, push.d - 1);
}

// The values `i`, `i + step`, ... They are read so until the norm is known: only then something is written.
void read(uint i, uint step, out float values[BATCH]) {
    float others[BATCH];
    [[unroll]] for (uint j = 0; j < BATCH; j++) {
        values[j] = x.v[place(i + j * step)];
        others[j] = ADDS ? added.v[place(i + j * step)] : 0.0;
    }
    [[unroll]] for (uint j = 0; j < BATCH; j++) {
        values[j] = ADDS ? others[j] * push.factor + values[j] : values[j];
    }
}

// What a pass adds up.
const uint VALUES = 0;
const uint SQUARES = 1;
const uint POWERS = 2;

// What value `i`, which is `v`, adds, `from` being subtracted from it. Powers are kept in the result.
float term(uint what, uint i, float v, float from) {
    if (what == SQUARES) {
        // As it is where nothing is subtracted.
        v = KIND == LAYER ? v - from : v;
        return v * v;
    }
    if (what == POWERS) {
        v = exp_(v - from);
        result.v[i] = v;
    }
    return v;
}

// Value number `i` of this invocation's lane in the piece.
float in_piece(uint i) {
    return piece[i * (LANES / 4) + lane / 4][lane % 4];
}

// `sum` and this invocation's lane of the first `n` values of the piece, which is filled up with nothing. The next ones are read while
// these are added.
float add_piece(uint n, float sum) {
    const uint some = 16;
    float next[some];
    [[unroll]] for (uint j = 0; j < some; j++) {
        next[j] = in_piece(j);
    }
    for (uint i = 0; i < n / LANES; i += some) {
        float terms[some] = next;
        uint ahead = min(i + some, PIECE / LANES - some);
        [[unroll]] for (uint j = 0; j < some; j++) {
            next[j] = in_piece(ahead + j);
        }
        [[unroll]] for (uint j = 0; j < some; j++) {
            sum += terms[j];
        }
    }
    return sum;
}

// Values that `add_piece` adds at least, where a piece has so many.
uint filled_up(uint n) {
    return (n + 255) / 256 * 256;
}

// The sum of lane `lane` over the first `end` values, from `sum` on.
float lane_sum(uint what, float from, uint end, float sum) {
    float values[BATCH];
    if (THREADS == LANES) {
        for (uint i = lane; i < end; i += BATCH * LANES) {
            read(i, LANES, values);
            [[unroll]] for (uint j = 0; j < BATCH; j++) {
                if (i + j * LANES < end) {
                    sum += term(what, i + j * LANES, values[j], from);
                }
            }
        }
        return sum;
    }
    for (uint start = 0; start < end; start += PIECE) {
        uint len = min(PIECE, end - start), filled = filled_up(len);
        barrier();
        for (uint i = lane; i < filled; i += BATCH * THREADS) {
            read(start + i, THREADS, values);
            [[unroll]] for (uint j = 0; j < BATCH; j++) {
                uint k = i + j * THREADS;
                float added = NOTHING;
                if (k < len) {
                    added = term(what, start + k, values[j], from);
                }
                if (k < filled) {
                    piece[k / 4][k % 4] = added;
                }
            }
        }
        barrier();
        if (lane < LANES) {
            sum = add_piece(filled, sum);
        }
    }
    return sum;
}

// The sums of sixteen lanes, folded by the one tree: halves added onto each other.
float folded(float sum) {
    barrier();
    if (lane < LANES) {
        shares[(base + lane) / 4][lane % 4] = sum;
    }
    barrier();
    vec4 a = shares[base / 4], b = shares[base / 4 + 1], c = shares[base / 4 + 2], d = shares[base / 4 + 3];
    vec4 four = (a + c) + (b + d);
    vec2 two = four.xy + four.zw;
    return two.x + two.y;
}

// The greatest value of the row, which does not depend on the order.
float greatest(uint d) {
    float most = 0.0 - INFINITE;
    for (uint i = lane; i < d; i += BATCH * THREADS) {
        float values[BATCH];
        read(i, THREADS, values);
        [[unroll]] for (uint j = 0; j < BATCH; j++) {
            most = max_(values[j], most);
        }
    }
    greatest_shares[base + lane] = most;
    for (uint step = THREADS / 2; step > 0; step /= 2) {
        barrier();
        if (lane < step) {
            uint other = base + lane + step;
            greatest_shares[base + lane] = max_(greatest_shares[base + lane], greatest_shares[other]);
        }
    }
    barrier();
    return greatest_shares[base];
}

void softmax(uint d) {
    float most = greatest(d);
    float total = folded(lane_sum(POWERS, most, d, 0.0));
    for (uint i = lane; i < d; i += BATCH * THREADS) {
        float powers[BATCH];
        [[unroll]] for (uint j = 0; j < BATCH; j++) {
            powers[j] = result.v[place(i + j * THREADS)];
        }
        [[unroll]] for (uint j = 0; j < BATCH; j++) {
            if (i + j * THREADS < d) {
                result.v[i + j * THREADS] = div_exact(powers[j], total);
            }
        }
    }
}

// The mean, whose sums start with the values behind the last whole vector.
float mean(uint d) {
    uint whole = d / LANES * LANES;
    float values[BATCH];
    read(whole + lane, 0, values);
    float first = lane < d - whole ? values[0] : 0.0;
    return div_exact(folded(lane_sum(VALUES, 0.0, whole, first)), float(push.d));
}

// What becomes of a value.
float normed(float v, float weight, float bias, float from, float factor) {
    float y = KIND == LAYER ? (v - from) * factor : v * factor;
    y = KIND == L2 ? y : y * weight;
    return KIND == LAYER ? y + bias : y;
}

// What values are divided by, turned over, of the sum of their squares.
float factor_of(float sum) {
    if (KIND != L2) {
        sum = div_exact(sum, float(push.d));
    }
    return div_exact(1.0, sqrt_exact(sum + push.eps));
}

// Makes the first `n` values of `i`, `i + step`, ... and leaves the first four in `y`.
void give(uint i, uint step, uint n, float from, float factor, out vec4 y) {
    float values[BATCH], of_weight[BATCH], of_bias[BATCH];
    read(i, step, values);
    [[unroll]] for (uint j = 0; j < BATCH; j++) {
        of_weight[j] = KIND == L2 ? 1.0 : weights.v[place(i + j * step)];
        of_bias[j] = KIND == LAYER ? biases.v[place(i + j * step)] : 0.0;
    }
    y = vec4(0.0);
    [[unroll]] for (uint j = 0; j < BATCH; j++) {
        if (j < n && i + j * step < push.d) {
            float made = normed(values[j], of_weight[j], of_bias[j], from, factor);
            if (ADDS) {
                x.v[i + j * step] = values[j];
            }
            result.v[i + j * step] = made;
            if (j < 4) {
                y[j] = made;
            }
        }
    }
}

// Writes all values, four beside each other to an invocation, and their blocks.
void blocks_of(uint d, float from, float factor) {
    uint n_blocks = push.d / 32;
    for (uint start = 0; start < n_blocks; start += THREADS / SHARE) {
        uint block = start + lane / SHARE, i = block * 32 + 4 * (lane % SHARE);
        vec4 values[ROUNDS];
        [[unroll]] for (uint k = 0; k < ROUNDS; k++) {
            values[k] = vec4(0.0);
        }
        if (i < d) {
            give(i, 1, 4, from, factor, values[0]);
        }
        make_blocks(push.blocks, row * n_blocks + block, 0, i < d ? 0xffffffffu : 0, values);
        // Nobody begins the next while somebody reads this one.
        barrier();
    }
}

void norm(uint d) {
    float from = KIND == LAYER ? mean(d) : 0.0;
    float factor = factor_of(folded(lane_sum(SQUARES, from, d, 0.0)));
    if (MAKES_BLOCKS) {
        blocks_of(d, from, factor);
        return;
    }
    for (uint i = lane; i < d; i += BATCH * THREADS) {
        vec4 first_ones;
        give(i, THREADS, BATCH, from, factor, first_ones);
    }
}

// The lane's sum over the row's values, or over their squares with `from` subtracted.
float held_sum(vec4 values[HELD], bool squares, float from) {
    float sum = 0.0;
    [[unroll]] for (uint first = 0; first < HELD; first += PIECE_FOURS) {
        if (first > 0) {
            barrier();
        }
        [[unroll]] for (uint j = 0; j < min(PIECE_FOURS, HELD - first); j++) {
            vec4 v = values[first + j];
            v = squares && KIND == LAYER ? v - from : v;
            v = squares ? v * v : v;
            piece[j * 256 + lane] = (first + j) * 256 + lane < push.d / 4 ? v : vec4(NOTHING);
        }
        barrier();
        if (lane < LANES) {
            sum = add_piece(filled_up(min(push.d - first * (4 * 256), PIECE)), sum);
        }
    }
    return sum;
}

// The norm of a row of which each invocation holds its values; all that is read is read at the start.
void norm_held() {
    uint n = push.d / 4;
    vec4 values[HELD], others[HELD], of_weight[HELD], of_bias[HELD];
    [[unroll]] for (uint k = 0; k < HELD; k++) {
        uint i = min(k * 256 + lane, n - 1);
        values[k] = FourFloats(uint64_t(x)).v[i];
        others[k] = ADDS ? FourFloats(uint64_t(added)).v[i] : vec4(0.0);
        of_weight[k] = KIND == L2 ? vec4(1.0) : FourFloats(uint64_t(weights)).v[i];
        of_bias[k] = KIND == LAYER ? FourFloats(uint64_t(biases)).v[i] : vec4(0.0);
    }
    [[unroll]] for (uint k = 0; k < HELD; k++) {
        values[k] = ADDS ? others[k] * push.factor + values[k] : values[k];
    }
    float from = KIND == LAYER ? div_exact(folded(held_sum(values, false, 0.0)), float(push.d)) : 0.0;
    float factor = factor_of(folded(held_sum(values, true, from)));
    vec4 made[ROUNDS];
    [[unroll]] for (uint k = 0; k < HELD; k++) {
        uint i = k * 256 + lane;
        [[unroll]] for (uint j = 0; j < 4; j++) {
            made[k][j] = normed(values[k][j], of_weight[k][j], of_bias[k][j], from, factor);
        }
        if (i < n) {
            if (ADDS) {
                FourFloats(uint64_t(x)).v[i] = values[k];
            }
            FourFloats(uint64_t(result)).v[i] = made[k];
        }
    }
    if (MAKES_BLOCKS) {
        // Behind the row's end stands nothing that a block of the row has.
        uint n_blocks = push.d / 32;
        make_blocks(push.blocks, row * n_blocks + lane / SHARE, 256 / SHARE, (row + 1) * n_blocks, made);
    }
}

void main() {
    if (FOURS > 0) {
        if (live) {
            norm_held();
        }
        return;
    }
    // Invocations without a row go along, since all meet at barriers.
    uint d = live ? push.d : 0;
    if (KIND == SOFTMAX) {
        softmax(d);
    } else {
        norm(d);
    }
}
