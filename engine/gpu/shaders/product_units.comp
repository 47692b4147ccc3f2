// Products of many rows with quantised weights, on matrix units. A workgroup has four panels and 64 rows of activations.
// Units multiply whole blocks, or their halves where these have scales of their own, in integers; the results go through
// shared memory, and each invocation adds what they make to its sixteen sums, block after block.
#version 460
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include "common.glsl"
#include "numbers.glsl"
#include "product_work.glsl"
#include "product_rows.glsl"
#include "product_codes.glsl"
#include "product_scales.glsl"
#include "product_parts.glsl"

layout(local_size_x = 256) in;
// What the units multiply: M rows of activations and N of weights, K columns of each; M and N divide 64, and K is 8, 16 or
// 32.
layout(constant_id = 9) const uint M = 16;
layout(constant_id = 10) const uint N = 16;
layout(constant_id = 11) const uint K = 16;

const uint SIDE = 64;
// Blocks taken at a time.
const uint DEPTH = 2;
// Whether units take more columns than have a scale. Between the halves of a row of weights lie zeros then: either half,
// with them, is as long as a block, and the zeros meet the other half's activations.
const bool WIDE = HALVES && K == 32;
const uint PIECES = HALVES ? 2 : 1;
const uint STEPS = (WIDE ? 32 : 32 / PIECES) / K;

// Everything for units is in words of eight bytes. Of a row of weights there are six with the zeros; of activations four.
const uint CODES_LENGTH = WIDE ? 6 : 4;
shared uvec2 codes[DEPTH * SIDE * CODES_LENGTH];
shared uvec2 values[DEPTH * SIDE * 4];
// Scales and minima; d with its sums; and negated sums.
shared vec4 scales[DEPTH][SIDE];
shared vec3 factors[DEPTH][SIDE];
shared ivec2 neg_sums[DEPTH][SIDE];
// Results of a piece: those of a row of activations beside each other.
shared int results[SIDE * SIDE];

// Unpacks block `block` of the row of weights `row` of the tile.
void take_weights(uint first_panel, uint row, uint depth, uint block) {
    uint p = min(first_panel + row / LANES, (push.rows - 1) / LANES);
    Uints panel = Uints(work.panels + uint64_t(p) * push.panel_words * 4);
    Codes c = block_codes(panel, block, row % LANES);
    Scales s = block_scales(panel, block, row % LANES);
    uint start = (depth * SIDE + row) * CODES_LENGTH;
    codes[start] = uvec2(c.v[0], c.v[1]);
    codes[start + 1] = uvec2(c.v[2], c.v[3]);
    if (WIDE) {
        codes[start + 2] = uvec2(0);
        codes[start + 3] = uvec2(0);
    }
    codes[start + CODES_LENGTH - 2] = uvec2(c.v[4], c.v[5]);
    codes[start + CODES_LENGTH - 1] = uvec2(c.v[6], c.v[7]);
    scales[depth][row] = vec4(s.scale, s.min);
}

// Copies block `block` of the row of activations `row` of the tile.
void take_row(uint first_row, uint row, uint depth, uint block) {
    uint r = x_row(min(first_row + row, work.n_rows - 1));
    ActBlock x = ActBlocks(work.x).v[r * push.width + block];
    Row of = row_of(x.d, x.d_sum, x.d_sum_half, x.neg_sum, x.neg_sum_half);
    uint start = (depth * SIDE + row) * 4;
    values[start] = x.q[0].xy;
    values[start + 1] = x.q[0].zw;
    values[start + 2] = x.q[1].xy;
    values[start + 3] = x.q[1].zw;
    factors[depth][row] = vec3(of.d, of.d_sum);
    neg_sums[depth][row] = of.neg_sum;
}

// The products of a piece of a block: of all rows, shared among the subgroups.
void multiply(uint depth, uint piece) {
    const uint columns = SIDE / N;
    for (uint tile = gl_SubgroupID; tile < SIDE / M * columns; tile += gl_NumSubgroups) {
        uint row = tile / columns * M, column = tile % columns * N;
        uint a_start = (depth * SIDE + row) * 4 + (WIDE ? 0 : 2 * piece);
        uint b_start = (depth * SIDE + column) * CODES_LENGTH + 2 * piece;
        coopmat<int, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sum =
            coopmat<int, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0);
        [[unroll]] for (uint k = 0; k < STEPS; k++) {
            coopmat<int8_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a;
            coopmat<int8_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b;
            coopMatLoad(a, values, a_start + k * K / 8, 4, gl_CooperativeMatrixLayoutRowMajor);
            coopMatLoad(
                b, codes, b_start + k * K / 8, CODES_LENGTH, gl_CooperativeMatrixLayoutColumnMajor);
            sum = coopMatMulAdd(a, b, sum);
        }
        coopMatStore(sum, results, row * SIDE + column, SIDE, gl_CooperativeMatrixLayoutRowMajor);
    }
}

void main() {
    find_work(push.width * ACT_BLOCK_BYTES);
    if (work.n_rows == 0) {
        return;
    }
    uint panels = (push.rows + LANES - 1) / LANES;
    uint tiles = (work.n_rows + SIDE - 1) / SIDE;
    uint first_panel = work.number / tiles * 4, first_row = work.number % tiles * SIDE;
    if (first_panel >= panels) {
        return;
    }
    // An invocation has two rows of weights, and eight of activations.
    uint me = gl_LocalInvocationID.x, i = me % 32, j = me / 32;
    float sums[2][8];
    int lows[2][8];
    [[unroll]] for (uint a = 0; a < 2; a++) {
        [[unroll]] for (uint b = 0; b < 8; b++) {
            sums[a][b] = 0.0;
            lows[a][b] = 0;
        }
    }
    for (uint first = 0; first < push.width; first += DEPTH) {
        uint depths = min(DEPTH, push.width - first);
        if (me / SIDE < depths) {
            take_weights(first_panel, me % SIDE, me / SIDE, first + me / SIDE);
        } else if (me >= DEPTH * SIDE && me % DEPTH < depths) {
            take_row(first_row, me / DEPTH - SIDE, me % DEPTH, first + me % DEPTH);
        }
        barrier();
        for (uint depth = 0; depth < depths; depth++) {
            [[unroll]] for (uint piece = 0; piece < PIECES; piece++) {
                multiply(depth, piece);
                barrier();
                [[unroll]] for (uint b = 0; b < 8; b++) {
                    uint row = j + 8 * b;
                    vec3 f = factors[depth][row];
                    Row x = Row(f.x, f.yz, neg_sums[depth][row]);
                    [[unroll]] for (uint a = 0; a < 2; a++) {
                        uint column = i + 32 * a;
                        int result = results[row * SIDE + column];
                        if (piece + 1 < PIECES) {
                            lows[a][b] = result;
                        } else {
                            vec4 s = scales[depth][column];
                            int low = HALVES ? lows[a][b] : result;
                            Parts parts = parts_of(low, result, Scales(s.xy, s.zw), x);
                            [[unroll]] for (uint k = 0; k < PARTS; k++) {
                                sums[a][b] += parts.v[k];
                            }
                        }
                    }
                }
                barrier();
            }
        }
    }
    [[unroll]] for (uint b = 0; b < 8; b++) {
        uint row = first_row + j + 8 * b;
        if (row < work.n_rows) {
            Floats y = at(Floats(work.y), uint64_t(row) * push.rows);
            [[unroll]] for (uint a = 0; a < 2; a++) {
                uint column = first_panel * LANES + i + 32 * a;
                if (column < push.rows) {
                    y.v[column] = sums[a][b] * work.scale;
                }
            }
        }
    }
}
