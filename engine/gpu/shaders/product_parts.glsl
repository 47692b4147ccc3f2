// What a block of weights and one of activations add to a sum, in the steps of `cpu/products/matmul_q8.rs` of the engine: integers
// are exact, then there are one to three parts, which are added one after the other.

const uint PARTS = MINS ? (HALVES ? 3 : 2) : 1;

// The first PARTS of them.
struct Parts {
    float v[3];
};

// What products read of a block of activations beside its values.
struct Row {
    float d;
    // `d` times sums: of the whole in the first place, or of the halves.
    vec2 d_sum;
    // Negated sums, likewise.
    ivec2 neg_sum;
};

Row row_of(float d, float d_sum, vec2 d_sum_half, int neg_sum, ivec2 neg_sum_half) {
    return Row(d, HALVES ? d_sum_half : vec2(d_sum), HALVES ? neg_sum_half : ivec2(neg_sum));
}

// The parts, of the integer products of the halves or, in the first place, of the whole.
Parts parts_of(int low, int high, Scales s, Row x) {
    Parts parts;
    float one = float(low + OFFSET * x.neg_sum.x) * s.scale.x;
    if (!HALVES) {
        parts.v[0] = MINS ? s.min.x * x.d_sum.x : one * x.d;
        parts.v[1] = one * x.d;
        return parts;
    }
    float both = float(high + OFFSET * x.neg_sum.y) * s.scale.y + one;
    parts.v[0] = MINS ? s.min.x * x.d_sum.x : both * x.d;
    parts.v[1] = s.min.y * x.d_sum.y;
    parts.v[2] = both * x.d;
    return parts;
}

Parts block_parts(uvec4 codes[2], Scales s, uvec4 q[2], Row x) {
    int low = dot_half(0, codes[0], q[0]);
    if (!HALVES) {
        return parts_of(dot_half(low, codes[1], q[1]), 0, s, x);
    }
    return parts_of(low, dot_half(0, codes[1], q[1]), s, x);
}
