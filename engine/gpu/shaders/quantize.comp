// Rows of activations to blocks of 8-bit values. The values may be made here first: by a function of others, which is kept too.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "plain.glsl"
#include "product_rows.glsl"

layout(local_size_x = 256) in;
// AS_THEY_ARE, or a function as in `elementwise.comp`.
layout(constant_id = 0) const uint FUNCTION = 0xffffffff;
layout(constant_id = 1) const uint PLACE = 0;
const uint AS_THEY_ARE = 0xffffffff;
#include "functions.glsl"
#include "quantize.glsl"

layout(push_constant, scalar) uniform Push {
    Floats x;
    ActBlocks blocks;
    // Of a function: what it is of, and where its values go.
    Floats y;
    Floats result;
    uint n_blocks;
    uint width;
    vec4 k;
} push;

void main() {
    uint block = item() / SHARE, start = block * 32 + 4 * (gl_LocalInvocationID.x % SHARE);
    bool mine = block < push.n_blocks;
    vec4 values = vec4(0.0);
    [[unroll]] for (uint i = 0; i < 4; i++) {
        if (mine) {
            values[i] = push.x.v[start + i];
            if (FUNCTION != AS_THEY_ARE) {
                values[i] = of(values[i], operand(push.y, start + i, push.width), 0.0, push.k);
                push.result.v[start + i] = values[i];
            }
        }
    }
    make_block(push.blocks, block, mine, values);
}
