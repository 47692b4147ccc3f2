// Products of many rows with quantised weights. A workgroup has TILE panels and sixteen times TILE rows of activations; it
// unpacks some blocks of both into shared memory at a time, and an invocation adds what they make to TILE by TILE sums,
// block after block.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "product_work.glsl"
#include "product_rows.glsl"
#include "product_codes.glsl"
#include "product_scales.glsl"
#include "product_parts.glsl"

layout(local_size_x = 256) in;
// 1, 2 or 4.
layout(constant_id = 9) const uint TILE = 4;

const uint SIDE = 16 * TILE;
// Blocks taken at a time: every invocation unpacks one.
const uint DEPTH = 16 / TILE;

// Each half of a block's codes, and its scales and minima: the rows of a tile beside each other.
shared uvec4 codes[DEPTH][2][SIDE];
shared vec4 scales[DEPTH][SIDE];
// Activations: their two halves, and the rest of the block as it lies in memory.
shared uvec4 rows[DEPTH][SIDE][4];

// Unpacks block `block` of the row of weights `row` of the tile.
void take_weights(uint first_panel, uint row, uint depth, uint block) {
    uint p = min(first_panel + row / LANES, (push.rows - 1) / LANES);
    Uints panel = Uints(work.panels + uint64_t(p) * push.panel_words * 4);
    Codes c = block_codes(panel, block, row % LANES);
    Scales s = block_scales(panel, block, row % LANES);
    codes[depth][0][row] = uvec4(c.v[0], c.v[1], c.v[2], c.v[3]);
    codes[depth][1][row] = uvec4(c.v[4], c.v[5], c.v[6], c.v[7]);
    scales[depth][row] = vec4(s.scale, s.min);
}

// Copies block `block` of the row of activations `row` of the tile.
void take_row(uint first_row, uint row, uint depth, uint block) {
    uint r = x_row(min(first_row + row, work.n_rows - 1));
    ActBlock x = ActBlocks(work.x).v[r * push.width + block];
    rows[depth][row][0] = x.q[0];
    rows[depth][row][1] = x.q[1];
    rows[depth][row][2] = floatBitsToUint(vec4(x.d, x.d_sum, x.d_sum_half));
    rows[depth][row][3] = uvec4(x.neg_sum, x.neg_sum_half, 0);
}

Row staged(uint depth, uint row) {
    vec4 floats = uintBitsToFloat(rows[depth][row][2]);
    ivec4 ints = ivec4(rows[depth][row][3]);
    return row_of(floats.x, floats.y, floats.zw, ints.x, ints.yz);
}

void main() {
    find_work(push.width * ACT_BLOCK_BYTES);
    if (work.n_rows == 0) {
        return;
    }
    uint panels = (push.rows + LANES - 1) / LANES;
    uint tiles = (work.n_rows + SIDE - 1) / SIDE;
    uint first_panel = work.number / tiles * TILE, first_row = work.number % tiles * SIDE;
    if (first_panel >= panels) {
        return;
    }
    uint me = gl_LocalInvocationID.x, i = me % 16, j = me / 16;
    float sums[TILE][TILE];
    [[unroll]] for (uint a = 0; a < TILE; a++) {
        [[unroll]] for (uint b = 0; b < TILE; b++) {
            sums[a][b] = 0.0;
        }
    }
    for (uint first = 0; first < push.width; first += DEPTH) {
        uint depths = min(DEPTH, push.width - first);
        if (me / SIDE < depths) {
            take_weights(first_panel, me % SIDE, me / SIDE, first + me / SIDE);
        }
        if (me % DEPTH < depths) {
            take_row(first_row, me / DEPTH, me % DEPTH, first + me % DEPTH);
        }
        barrier();
        for (uint depth = 0; depth < depths; depth++) {
            uvec4 q[TILE][2];
            Row x[TILE];
            [[unroll]] for (uint b = 0; b < TILE; b++) {
                uint row = j + 16 * b;
                q[b] = uvec4[2](rows[depth][row][0], rows[depth][row][1]);
                x[b] = staged(depth, row);
            }
            [[unroll]] for (uint a = 0; a < TILE; a++) {
                uint row = i + 16 * a;
                uvec4 c[2] = { codes[depth][0][row], codes[depth][1][row] };
                Scales s = Scales(scales[depth][row].xy, scales[depth][row].zw);
                [[unroll]] for (uint b = 0; b < TILE; b++) {
                    Parts parts = block_parts(c, s, q[b], x[b]);
                    [[unroll]] for (uint k = 0; k < PARTS; k++) {
                        sums[a][b] += parts.v[k];
                    }
                }
            }
        }
        barrier();
    }
    [[unroll]] for (uint b = 0; b < TILE; b++) {
        uint row = first_row + j + 16 * b;
        if (row < work.n_rows) {
            Floats y = at(Floats(work.y), uint64_t(row) * push.rows);
            [[unroll]] for (uint a = 0; a < TILE; a++) {
                uint column = first_panel * LANES + i + 16 * a;
                if (column < push.rows) {
                    y.v[column] = sums[a][b] * work.scale;
                }
            }
        }
    }
}
