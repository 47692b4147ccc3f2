// Rows of activations to blocks of 8-bit values: `cpu/act.rs` of the engine. Eight invocations share a block, four values
// each. A block with an infinity or a NaN is zeros with the scale NaN.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "product_rows.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
    Floats x;
    ActBlocks blocks;
    uint n_blocks;
} push;

const uint SHARE = 8;
// Below this a block counts as zero.
const float SMALLEST_AMAX = 1e-30;

// Bits of the greatest magnitude, the signs in the lowest place, and the sum of each invocation's values.
shared uint greatest[256];
shared uint negative[256];
shared int sums[256];

// What the whole block has, of what its invocations left.
uint block_greatest(uint first) {
    uint most = 0;
    [[unroll]] for (uint i = 0; i < SHARE; i++) {
        most = max(most, greatest[first + i]);
    }
    return most;
}

bool all_negative(uint first) {
    uint all = 1;
    [[unroll]] for (uint i = 0; i < SHARE; i++) {
        all &= negative[first + i];
    }
    return all != 0;
}

int sum_of(uint first, uint n) {
    int sum = 0;
    [[unroll]] for (uint i = 0; i < n; i++) {
        sum += sums[first + i];
    }
    return sum;
}

// The block's numbers beside its values, of the sums of its halves.
void finish(uint block, uint first, float d) {
    int low = sum_of(first, SHARE / 2), high = sum_of(first + SHARE / 2, SHARE / 2);
    int sum = low + high;
    push.blocks.v[block].d = d;
    push.blocks.v[block].d_sum = d * float(sum);
    push.blocks.v[block].d_sum_half = vec2(d * float(low), d * float(high));
    push.blocks.v[block].neg_sum = -sum;
    push.blocks.v[block].neg_sum_half = ivec2(-low, -high);
    push.blocks.v[block].pad = 0;
}

void main() {
    uint me = gl_LocalInvocationID.x;
    uint block = item() / SHARE, share = me % SHARE, first = me - share;
    bool mine = block < push.n_blocks;
    Floats from = at(push.x, uint64_t(mine ? block : 0) * 32 + 4 * share);
    uvec4 bits;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        bits[i] = mine ? floatBitsToUint(from.v[i]) : 0;
    }
    uvec4 a = bits & 0x7fffffffu, signs = bits >> 31;
    greatest[me] = max(max(a.x, a.y), max(a.z, a.w));
    negative[me] = signs.x & signs.y & signs.z & signs.w;
    barrier();
    uint most = block_greatest(first);
    float amax = uintBitsToFloat(most);
    bool poisoned = most >= 0x7f800000u, zero = amax < SMALLEST_AMAX;
    uint word = 0;
    int sum = 0;
    if (!poisoned && !zero) {
        float inverse = div_exact(127.0, amax);
        [[unroll]] for (uint i = 0; i < 4; i++) {
            int q = round_i32(uintBitsToFloat(bits[i]) * inverse);
            word |= uint(q & 0xff) << (8 * i);
            sum += q;
        }
    }
    sums[me] = sum;
    barrier();
    if (!mine) {
        return;
    }
    push.blocks.v[block].q[share / 4][share % 4] = word;
    if (share == 0) {
        // The sign of zero is that of the values, where they agree.
        float none = all_negative(first) ? uintBitsToFloat(0x80000000u) : 0.0;
        float d = zero ? none : div_exact(amax, 127.0);
        finish(block, first, poisoned ? NOT_A_NUMBER : d);
    }
}
