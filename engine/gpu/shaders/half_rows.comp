// Rows of activations in the form that products of f16 read: each divided by the power of two of its greatest magnitude, so
// that no finite value is too great for f16. A workgroup has a row.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "product_half_rows.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
    Floats x;
    uint64_t y;
    uint cols;
    uint n_rows;
} push;

// Bits of the greatest magnitude that each invocation found.
shared uint greatest[256];

// Bits of the row's greatest magnitude: infinities and NaN are above all others.
uint row_greatest(Floats x, uint me) {
    uint most = 0;
    for (uint i = me; i < push.cols; i += 256) {
        most = max(most, floatBitsToUint(x.v[i]) & 0x7fffffffu);
    }
    greatest[me] = most;
    barrier();
    for (uint apart = 128; apart > 0; apart /= 2) {
        if (me < apart) {
            greatest[me] = max(greatest[me], greatest[me + apart]);
        }
        barrier();
    }
    return greatest[0];
}

// Value `i` of the row times `2^e`, as f16.
uint half_of(Floats x, uint i, int e) {
    return i < push.cols ? f32_to_f16(times_power(x.v[i], e)) : 0;
}

void main() {
    uint row = line(), me = gl_LocalInvocationID.x;
    if (row >= push.n_rows) {
        return;
    }
    Floats x = at(push.x, uint64_t(row) * push.cols);
    uint blocks = (push.cols + 31) / 32;
    uint64_t y = push.y + uint64_t(row) * half_row_bytes(blocks);
    uint most = row_greatest(x, me);
    bool poisoned = most >= 0x7f800000u;
    int e = max(exponent(most), -126);
    Uints values = Uints(y + ROW_HEAD_BYTES);
    for (uint i = me; i < blocks * 16; i += 256) {
        // Zeros where something is no number: the head says it.
        uint low = half_of(x, 2 * i, LIFT - e), high = half_of(x, 2 * i + 1, LIFT - e);
        values.v[i] = poisoned ? 0 : low | high << 16;
    }
    if (me == 0) {
        Floats(y).v[0] = poisoned ? NOT_A_NUMBER : power(e);
    }
}
