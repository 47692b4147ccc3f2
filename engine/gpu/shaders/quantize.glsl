// Values to 8-bit blocks: `cpu/act.rs` of the engine. Eight invocations beside each other share a block, four values each. A block with
// an infinity or a NaN is zeros with the scale NaN. For workgroups of 256; all of a workgroup meet here.

const uint SHARE = 8;
// Below this a block counts as zero.
const float SMALLEST_AMAX = 1e-30;

// Bits of the greatest magnitude, the signs in the lowest place, and the sum of each invocation's values.
shared uint share_greatest[256];
shared uint share_negative[256];
shared int share_sums[256];

// What the whole block has, of what its invocations left.
uint block_greatest(uint first) {
    uint most = 0;
    [[unroll]] for (uint i = 0; i < SHARE; i++) {
        most = max(most, share_greatest[first + i]);
    }
    return most;
}

bool all_negative(uint first) {
    uint all = 1;
    [[unroll]] for (uint i = 0; i < SHARE; i++) {
        all &= share_negative[first + i];
    }
    return all != 0;
}

int sum_of(uint first, uint n) {
    int sum = 0;
    [[unroll]] for (uint i = 0; i < n; i++) {
        sum += share_sums[first + i];
    }
    return sum;
}

// The block's numbers beside its values, of the sums of its halves.
void finish(ActBlocks blocks, uint block, uint first, float d) {
    int low = sum_of(first, SHARE / 2), high = sum_of(first + SHARE / 2, SHARE / 2);
    int sum = low + high;
    blocks.v[block].d = d;
    blocks.v[block].d_sum = d * float(sum);
    blocks.v[block].d_sum_half = vec2(d * float(low), d * float(high));
    blocks.v[block].neg_sum = -sum;
    blocks.v[block].neg_sum_half = ivec2(-low, -high);
    blocks.v[block].pad = 0;
}

// Makes block `block` of the values of eight invocations; of nothing where it is not `mine`.
void make_block(ActBlocks blocks, uint block, bool mine, vec4 values) {
    uint me = gl_LocalInvocationID.x, share = me % SHARE, first = me - share;
    uvec4 bits = mine ? floatBitsToUint(values) : uvec4(0);
    uvec4 a = bits & 0x7fffffffu, signs = bits >> 31;
    share_greatest[me] = max(max(a.x, a.y), max(a.z, a.w));
    share_negative[me] = signs.x & signs.y & signs.z & signs.w;
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
    share_sums[me] = sum;
    barrier();
    if (!mine) {
        return;
    }
    blocks.v[block].q[share / 4][share % 4] = word;
    if (share == 0) {
        // The sign of zero is that of the values, where they agree.
        float none = all_negative(first) ? uintBitsToFloat(0x80000000u) : 0.0;
        float d = zero ? none : div_exact(amax, 127.0);
        finish(blocks, block, first, poisoned ? NOT_A_NUMBER : d);
    }
}
