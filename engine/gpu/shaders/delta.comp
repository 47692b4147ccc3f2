// The gated delta rule, `cpu/scan/delta.rs` of the engine. For each row: the update that the row before left (S += k e), the
// decay, and the sums of S along k and q; then e = beta (v - S k), and (S q + (k q) e) scale. Channels of keys in turn go
// to one of two sums: two invocations have a value of one head of a part, one its even channels, one its odd ones.
#version 460
#include "common.glsl"
#include "lanes.glsl"
#include "scan.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint D_K = 128;
layout(constant_id = 1) const uint D_V = 128;
// Whether each channel has a decay of its own, or each head.
layout(constant_id = 2) const uint PER_CHANNEL = 1;
// Which key head value head `h` has: `h % n_key_head`, or `h / (n_head / n_key_head)`.
layout(constant_id = 3) const uint TILED = 0;

// Channels that an invocation has, of all and of those that are fetched for a row.
const uint HALF = (D_K + 1) / 2;
const uint FETCHED = (2 * HALF + 63) / 64;

layout(push_constant, scalar) uniform Push {
    Parts parts;
    Floats states;
    Floats q;
    Floats k;
    Floats v;
    Floats decay;
    Floats beta;
    Floats result;
    uint n_units;
    uint n_head;
    uint n_key_head;
    uint q_stride;
    uint k_stride;
    uint v_stride;
    uint decay_stride;
    uint beta_stride;
    float scale;
} push;

// k, q, the decay and the k of the row before: of this row's channels and the next's. A channel too many is 0.
shared vec4 channels[2][2 * HALF];
// k times q of them.
shared float products[2][2 * HALF];
// Sixteen running sums of those.
shared float kq_lanes[2][LANES];
// Sums along k and q of each invocation.
shared vec2 sums[2][64];

// Channels of the state's column: even ones, or odd ones.
float values[HALF];
uint odd;
// The next row's channels on their way to shared memory; the k of the row before is the k that was there.
vec4 fetched[FETCHED];

// Fetches row `row` of `n_rows` of a head; beyond the last, only its k as that of the row before.
void fetch(Floats q, Floats k, Floats decay, uint row, uint n_rows) {
    [[unroll]] for (uint f = 0; f < FETCHED; f++) {
        uint channel = f * 64 + gl_LocalInvocationID.x;
        fetched[f] = vec4(0.0, 0.0, 0.0, fetched[f].x);
        if (channel < D_K && row < n_rows) {
            fetched[f].x = k.v[row * push.k_stride + channel];
            fetched[f].y = q.v[row * push.q_stride + channel];
            fetched[f].z = decay.v[row * push.decay_stride + (PER_CHANNEL != 0 ? channel : 0)];
        }
    }
}

void put(uint row) {
    [[unroll]] for (uint f = 0; f < FETCHED; f++) {
        uint channel = f * 64 + gl_LocalInvocationID.x;
        if (channel < 2 * HALF) {
            channels[row % 2][channel] = fetched[f];
            products[row % 2][channel] = fetched[f].x * fetched[f].y;
        }
    }
}

// Sixteen invocations sum a row's products of k and q, each those of its lane.
void sum_products(uint row) {
    if (gl_LocalInvocationID.x < LANES) {
        float sum = 0.0;
        for (uint channel = gl_LocalInvocationID.x; channel < D_K; channel += LANES) {
            sum += products[row % 2][channel];
        }
        kq_lanes[row % 2][gl_LocalInvocationID.x] = sum;
    }
}

float folded_products(uint row) {
    float lanes[LANES];
    [[unroll]] for (uint i = 0; i < LANES; i++) {
        lanes[i] = kq_lanes[row % 2][i];
    }
    return fold(lanes);
}

// A row over the column, with what the row before left to do: its sums along k and q.
vec2 walk(uint row, bool left, float error) {
    vec2 sum = vec2(0.0);
    [[unroll]] for (uint i = 0; i < HALF; i++) {
        vec4 channel = channels[row % 2][2 * i + odd];
        float value = values[i];
        if (left) {
            value = channel.w * error + value;
        }
        value *= channel.z;
        values[i] = value;
        sum.x = value * channel.x + sum.x;
        sum.y = value * channel.y + sum.y;
    }
    return sum;
}

// The update that the row before `row` left to do.
void finish(uint row, float error) {
    [[unroll]] for (uint i = 0; i < HALF; i++) {
        values[i] = channels[row % 2][2 * i + odd].w * error + values[i];
    }
}

void main() {
    uint unit = line();
    if (unit >= push.n_units) {
        return;
    }
    const uint tiles = (D_V + COLUMNS - 1) / COLUMNS;
    uint head = unit / tiles % push.n_head;
    Part part = part_of(push.parts, unit / tiles / push.n_head);
    uint lane = gl_LocalInvocationID.x % COLUMNS;
    uint column = unit % tiles * COLUMNS + lane;
    bool used = column < D_V;
    odd = gl_LocalInvocationID.x / COLUMNS;

    uint key_head = TILED != 0 ? head % push.n_key_head : head / (push.n_head / push.n_key_head);
    uint64_t row_0 = part.first_row;
    Floats q = at(push.q, row_0 * push.q_stride + key_head * D_K);
    Floats k = at(push.k, row_0 * push.k_stride + key_head * D_K);
    Floats v = at(push.v, row_0 * push.v_stride + head * D_V + column);
    Floats decay = at(push.decay, row_0 * push.decay_stride + head * (PER_CHANNEL != 0 ? D_K : 1));
    Floats beta = at(push.beta, row_0 * push.beta_stride + head);
    Floats result = at(push.result, (row_0 * push.n_head + head) * D_V + column);
    // States lie in strips of sixteen values; the last may be narrower.
    uint strip = column / LANES * LANES;
    uint strip_width = min(D_V - strip, LANES);
    uint64_t in_slot = uint64_t(head) * D_K * D_V + strip * D_K + column - strip;
    Floats state = at(push.states, slot_start(part.from, push.n_head * D_K * D_V) + in_slot);

    [[unroll]] for (uint i = 0; i < HALF; i++) {
        uint channel = 2 * i + odd;
        values[i] = used && channel < D_K ? state.v[channel * strip_width] : 0.0;
    }
    [[unroll]] for (uint f = 0; f < FETCHED; f++) {
        fetched[f] = vec4(0.0);
    }
    fetch(q, k, decay, 0, part.n_rows);
    put(0);
    barrier();

    // The update that the row before left to do.
    bool left = false;
    float error = 0.0;
    for (uint row = 0; row < part.n_rows; row++) {
        // The next row is fetched while this one is computed.
        fetch(q, k, decay, row + 1, part.n_rows);
        float v_now = used ? v.v[row * push.v_stride] : 0.0;
        float rate = beta.v[row * push.beta_stride];
        sum_products(row);
        sums[row % 2][gl_LocalInvocationID.x] = walk(row, left, error);
        put(row + 1);
        barrier();
        vec2 sum = sums[row % 2][lane] + sums[row % 2][lane + COLUMNS];
        error = rate * (v_now - sum.x);
        left = true;
        if (used && odd == 0) {
            result.v[row * push.n_head * D_V] = (folded_products(row) * error + sum.y) * push.scale;
        }
        if (flushes(part, row)) {
            finish(row + 1, error);
            left = false;
            [[unroll]] for (uint i = 0; i < HALF; i++) {
                values[i] = without_subnormals(values[i]);
            }
        }
    }
    if (left) {
        finish(part.n_rows, error);
    }

    state = at(push.states, slot_start(part.slot, push.n_head * D_K * D_V) + in_slot);
    [[unroll]] for (uint i = 0; i < HALF; i++) {
        uint channel = 2 * i + odd;
        if (used && channel < D_K) {
            state.v[channel * strip_width] = values[i];
        }
    }
}
