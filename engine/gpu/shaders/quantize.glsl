// Values to 8-bit blocks: `cpu/products/activations.rs` of the engine. Eight invocations beside each other share a block, four values each. A block with
// an infinity or a NaN is zeros with the scale NaN. For workgroups of 256; all of a workgroup meet here.

const uint SHARE = 8;
// Below this a block counts as zero.
const float SMALLEST_AMAX = 1e-30;

// Of the values of each invocation: bits of the greatest magnitude, and in the lowest place whether all are negative; and their sum.
// For each of the ROUNDS blocks that are made at once; who includes this declares how many.
shared uint share_greatest[ROUNDS * 256];
shared int share_sums[ROUNDS * 256];

// Such bits of the whole block, of what its invocations left from `first` on.
uint block_greatest(uint first) {
    uint most = 0, negative = 1;
    [[unroll]] for (uint i = 0; i < SHARE; i++) {
        uint share = share_greatest[first + i];
        most = max(most, share);
        negative &= share;
    }
    return most & ~1u | negative;
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

// Leaves for the others what four values are, of block number `round` of this invocation.
void share_values(uint round, vec4 values) {
    uvec4 bits = floatBitsToUint(values), a = bits & 0x7fffffffu, signs = bits >> 31;
    uint negative = signs.x & signs.y & signs.z & signs.w;
    share_greatest[round * 256 + gl_LocalInvocationID.x] = max(max(a.x, a.y), max(a.z, a.w)) << 1 | negative;
}

// The four codes of the values, and the block's scale; leaves the sum of the codes for the others.
uint share_codes(uint round, vec4 values, out float d) {
    uint me = gl_LocalInvocationID.x, shares = block_greatest(round * 256 + me - me % SHARE);
    uint most = shares >> 1;
    float amax = uintBitsToFloat(most);
    bool poisoned = most >= 0x7f800000u, zero = amax < SMALLEST_AMAX;
    uint word = 0;
    int sum = 0;
    if (!poisoned && !zero) {
        float inverse = div_exact(127.0, amax);
        [[unroll]] for (uint i = 0; i < 4; i++) {
            int q = round_i32(values[i] * inverse);
            word |= uint(q & 0xff) << (8 * i);
            sum += q;
        }
    }
    share_sums[round * 256 + me] = sum;
    // The sign of zero is that of the values, where they agree.
    float none = (shares & 1) != 0 ? uintBitsToFloat(0x80000000u) : 0.0;
    d = poisoned ? NOT_A_NUMBER : none;
    if (!poisoned && !zero && me % SHARE == 0) {
        d = div_exact(amax, 127.0);
    }
    return word;
}

// Writes the part of this invocation of block `block`.
void write_codes(ActBlocks blocks, uint block, uint round, uint word, float d) {
    uint me = gl_LocalInvocationID.x, share = me % SHARE;
    blocks.v[block].q[share / 4][share % 4] = word;
    if (share == 0) {
        finish(blocks, block, round * 256 + me, d);
    }
}

// Makes blocks of the values of eight invocations each, ROUNDS of them at once: the first is `block`, and each next one `step` further
// on. Those from `end` on are not made.
void make_blocks(ActBlocks blocks, uint block, uint step, uint end, vec4 values[ROUNDS]) {
    [[unroll]] for (uint k = 0; k < ROUNDS; k++) {
        share_values(k, values[k]);
    }
    barrier();
    uint words[ROUNDS];
    float d[ROUNDS];
    [[unroll]] for (uint k = 0; k < ROUNDS; k++) {
        words[k] = share_codes(k, values[k], d[k]);
    }
    barrier();
    [[unroll]] for (uint k = 0; k < ROUNDS; k++) {
        if (block + k * step < end) {
            write_codes(blocks, block + k * step, k, words[k], d[k]);
        }
    }
}
