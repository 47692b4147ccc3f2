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
const uint ROUNDS = 1;
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
    vec4 values[ROUNDS];
    values[0] = vec4(0.0);
    if (block < push.n_blocks) {
        // All is read before anything is written: whoever compiles this cannot know that these lie apart.
        vec4 x, y;
        [[unroll]] for (uint i = 0; i < 4; i++) {
            x[i] = push.x.v[start + i];
            y[i] = FUNCTION != AS_THEY_ARE ? operand(push.y, start + i, push.width) : 0.0;
        }
        values[0] = x;
        if (FUNCTION != AS_THEY_ARE) {
            [[unroll]] for (uint i = 0; i < 4; i++) {
                values[0][i] = of(x[i], y[i], 0.0, push.k);
            }
            [[unroll]] for (uint i = 0; i < 4; i++) {
                push.result.v[start + i] = values[0][i];
            }
        }
    }
    make_blocks(push.blocks, block, 0, push.n_blocks, values);
}
