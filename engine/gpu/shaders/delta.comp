// The gated delta rule, `cpu/delta.rs` of the engine. For each row: the update that the row before left (S += k e), the decay, and
// the sums of S along k and q; then e = beta (v - S k), and (S q + (k q) e) scale. Channels of keys in turn go to one of two sums: two
// invocations have a value of one head of a part, one its even channels, one its odd ones.
#version 460
#include "common.glsl"
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

void main() {
    uint unit = line();
    if (unit >= push.n_units) {
        return;
    }
    const uint tiles = (D_V + COLUMNS - 1) / COLUMNS;
    uint me = gl_LocalInvocationID.x;
    uint head = unit / tiles % push.n_head;
    Part part = part_of(push.parts, unit / tiles / push.n_head);
    uint lane = me % COLUMNS;
    uint odd = me / COLUMNS;
    uint column = unit % tiles * COLUMNS + lane;
    bool used = column < D_V;

    uint key_head = TILED != 0 ? head % push.n_key_head : head / (push.n_head / push.n_key_head);
    Floats q = at(push.q, uint64_t(part.first_row) * push.q_stride + key_head * D_K);
    Floats k = at(push.k, uint64_t(part.first_row) * push.k_stride + key_head * D_K);
    Floats v = at(push.v, uint64_t(part.first_row) * push.v_stride + head * D_V + column);
    Floats decay = at(push.decay, uint64_t(part.first_row) * push.decay_stride + head * (PER_CHANNEL != 0 ? D_K : 1));
    Floats beta = at(push.beta, uint64_t(part.first_row) * push.beta_stride + head);
    Floats result = at(push.result, (uint64_t(part.first_row) * push.n_head + head) * D_V + column);
    // States lie in strips of sixteen values; the last may be narrower.
    uint strip = column / LANES * LANES;
    uint strip_width = min(D_V - strip, LANES);
    uint64_t head_at = (uint64_t(part.slot) * push.n_head + head) * D_K * D_V;
    Floats state = at(push.states, head_at + strip * D_K + column - strip);

    float values[HALF];
    [[unroll]] for (uint i = 0; i < HALF; i++) {
        uint channel = 2 * i + odd;
        values[i] = used && channel < D_K ? state.v[channel * strip_width] : 0.0;
    }
    vec4 fetched[FETCHED];
    [[unroll]] for (uint f = 0; f < FETCHED; f++) {
        fetched[f] = vec4(0.0);
    }
    // The update that the row before left to do.
    bool left = false;
    float error = 0.0;

    // Row -1 is that before the first: it only fetches.
    for (int row = -1; row < int(part.n_rows); row++) {
        uint ahead = uint(row + 1);
        [[unroll]] for (uint f = 0; f < FETCHED; f++) {
            uint channel = f * 64 + me;
            float before = fetched[f].x;
            fetched[f] = vec4(0.0);
            if (channel < D_K && ahead < part.n_rows) {
                fetched[f].x = k.v[ahead * push.k_stride + channel];
                fetched[f].y = q.v[ahead * push.q_stride + channel];
                fetched[f].z = decay.v[ahead * push.decay_stride + (PER_CHANNEL != 0 ? channel : 0)];
            }
            fetched[f].w = before;
        }
        uint place = uint(row) % 2;
        float v_now = 0.0, beta_now = 0.0;
        if (row >= 0) {
            v_now = used ? v.v[row * push.v_stride] : 0.0;
            beta_now = beta.v[row * push.beta_stride];
            if (me < LANES) {
                float sum = 0.0;
                for (uint channel = me; channel < D_K; channel += LANES) {
                    sum += products[place][channel];
                }
                kq_lanes[place][me] = sum;
            }
            vec2 sum = vec2(0.0);
            [[unroll]] for (uint i = 0; i < HALF; i++) {
                vec4 channel = channels[place][2 * i + odd];
                float value = values[i];
                if (left) {
                    value = channel.w * error + value;
                }
                value *= channel.z;
                values[i] = value;
                sum.x = value * channel.x + sum.x;
                sum.y = value * channel.y + sum.y;
            }
            sums[place][me] = sum;
        }
        [[unroll]] for (uint f = 0; f < FETCHED; f++) {
            uint channel = f * 64 + me;
            if (channel < 2 * HALF) {
                channels[ahead % 2][channel] = fetched[f];
                products[ahead % 2][channel] = fetched[f].x * fetched[f].y;
            }
        }
        barrier();
        if (row >= 0) {
            vec2 sum = sums[place][lane] + sums[place][lane + COLUMNS];
            float lanes[LANES];
            [[unroll]] for (uint i = 0; i < LANES; i++) {
                lanes[i] = kq_lanes[place][i];
            }
            error = beta_now * (v_now - sum.x);
            left = true;
            if (used && odd == 0) {
                result.v[row * push.n_head * D_V] = (fold(lanes) * error + sum.y) * push.scale;
            }
            if (flushes(part, uint(row))) {
                [[unroll]] for (uint i = 0; i < HALF; i++) {
                    float value = channels[ahead % 2][2 * i + odd].w * error + values[i];
                    values[i] = without_subnormals(value);
                }
                left = false;
            }
        }
    }

    [[unroll]] for (uint i = 0; i < HALF; i++) {
        uint channel = 2 * i + odd;
        if (left) {
            values[i] = channels[part.n_rows % 2][channel].w * error + values[i];
        }
        if (used && channel < D_K) {
            state.v[channel * strip_width] = values[i];
        }
    }
}
