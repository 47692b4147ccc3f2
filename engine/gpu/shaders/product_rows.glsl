// Rows of activations as products read them: 8-bit blocks of 32 columns, `cpu/products/activations.rs` of the engine. A row is a series of
// blocks.

struct ActBlock {
    // The values, four signed bytes to a word.
    uvec4 q[2];
    // The scale: a value is `d * q`.
    float d;
    // `d` times the sum of the values: of all, and of each half.
    float d_sum;
    vec2 d_sum_half;
    // The negated sum of the values: of all, and of each half.
    int neg_sum;
    ivec2 neg_sum_half;
    int pad;
};

const uint ACT_BLOCK_BYTES = 64;

layout(buffer_reference, scalar, buffer_reference_align = 16) buffer ActBlocks { ActBlock v[]; };
