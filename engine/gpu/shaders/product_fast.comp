// Products of many rows on matrix units for f16, whose bits are the device's own: of the class `--fast-math` alone. A
// workgroup has TILE panels and sixteen times TILE rows of activations. It unpacks weights to f16, and the units keep their
// sums, in f32, over all columns. Both sides are divided by powers of two, row by row, with which the sums are multiplied at last.
#version 460
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "common.glsl"
#include "numbers.glsl"
#include "product_work.glsl"
#include "product_codes.glsl"
#include "product_scales.glsl"
#include "product_half_rows.glsl"

layout(local_size_x = 256) in;
// What the units multiply: M rows of activations and N of weights, K columns of each; M and N divide 16, and K divides 32.
layout(constant_id = 9) const uint M = 16;
layout(constant_id = 10) const uint N = 16;
layout(constant_id = 11) const uint K = 16;
// 1, 2 or 4.
layout(constant_id = 13) const uint TILE = 4;
// Results that each subgroup keeps: as many as leave none out, however few subgroups there are.
layout(constant_id = 14) const uint KEPT = 4;
// Whether weights are f16 as they are, column after column, and not quantised.
layout(constant_id = 15) const bool PLAIN_HALVES = false;

const uint SIDE = 16 * TILE;
// Blocks taken at a time.
const uint DEPTH = 2;
// Eights of a row: one more than it has, so that neighbours lie in different banks.
const uint STRIDE = DEPTH * 4 + 1;
// Results of a workgroup, in rows of so many.
const uint ACROSS = SIDE / N;
const uint RESULTS = SIDE / M * ACROSS;
// The exponent of the head of a row with an infinity or a NaN.
const int POISONED = 128;

// Rows of weights and then rows of activations; at last the sums, which are fewer.
shared uvec4 room[2 * SIDE * STRIDE];
// Exponents of the rows of weights: no value of row i is `2^(weight_exponents[i] + 1)` or more.
shared int weight_exponents[SIDE];

Uints panel_of(uint first_panel, uint row) {
    uint p = min(first_panel + row / LANES, (push.rows - 1) / LANES);
    return Uints(work.panels + uint64_t(p) * push.panel_words * 4);
}

// The exponent that no value of a block exceeds: codes are up to 2^7 from OFFSET.
int block_exponent(Scales s) {
    uvec2 scale = floatBitsToUint(s.scale) & 0x7fffffffu, low = floatBitsToUint(s.min) & 0x7fffffffu;
    return max(exponent(max(scale.x, scale.y)) + 8, exponent(max(low.x, low.y)) + 1);
}

// Finds the exponents of all rows of weights. Weights that are f16 stay what they are.
void find_exponents(uint first_panel, uint me) {
    for (uint i = me; i < SIDE; i += 256) {
        weight_exponents[i] = PLAIN_HALVES ? LIFT : -127;
    }
    barrier();
    if (PLAIN_HALVES) {
        return;
    }
    uint row = me % SIDE;
    Uints panel = panel_of(first_panel, row);
    int most = -127;
    for (uint block = me / SIDE; block < push.width; block += 256 / SIDE) {
        most = max(most, block_exponent(block_scales(panel, block, row % LANES)));
    }
    atomicMax(weight_exponents[row], most);
    barrier();
}

// Values of two columns, bytes `first` and the next of a word, as f16. How they are rounded is the device's affair.
uint two_values(uint word, uint first, float scale, float low) {
    int a = int(word << (24 - 8 * first)) >> 24, b = int(word << (16 - 8 * first)) >> 24;
    return packHalf2x16(vec2(float(a - OFFSET), float(b - OFFSET)) * scale + low);
}

// Two columns of a lane of f16 weights; zeros behind the last one.
uint two_halves(Uints panel, uint column, uint lane) {
    uint cols = push.panel_words / 8;
    Halves of = Halves(uint64_t(panel));
    uint a = column < cols ? uint(of.v[column * LANES + lane]) : 0;
    uint b = column + 1 < cols ? uint(of.v[(column + 1) * LANES + lane]) : 0;
    return a | b << 16;
}

// Unpacks block `block` of the row of weights `row` of the tile.
void take_weights(uint first_panel, uint row, uint depth, uint block) {
    Uints panel = panel_of(first_panel, row);
    uint lane = row % LANES, start = row * STRIDE + depth * 4;
    if (PLAIN_HALVES) {
        [[unroll]] for (uint i = 0; i < 4; i++) {
            uvec4 eight;
            [[unroll]] for (uint j = 0; j < 4; j++) {
                eight[j] = two_halves(panel, block * 32 + i * 8 + j * 2, lane);
            }
            room[start + i] = eight;
        }
        return;
    }
    Codes c = block_codes(panel, block, lane);
    Scales s = block_scales(panel, block, lane);
    int e = LIFT - weight_exponents[row];
    [[unroll]] for (uint i = 0; i < 4; i++) {
        bool high = HALVES && i >= 2;
        float scale = times_power(high ? s.scale.y : s.scale.x, e);
        float low = MINS ? times_power(high ? s.min.y : s.min.x, e) : 0.0;
        uint a = c.v[2 * i], b = c.v[2 * i + 1];
        room[start + i] = uvec4(
            two_values(a, 0, scale, low), two_values(a, 2, scale, low),
            two_values(b, 0, scale, low), two_values(b, 2, scale, low));
    }
}

// Where the row of activations `row` of the tile is.
uint64_t row_at(uint first_row, uint row) {
    uint r = x_row(min(first_row + row, work.n_rows - 1));
    return work.x + uint64_t(r) * half_row_bytes(push.width);
}

// Copies block `block` of the row of activations `row` of the tile.
void take_row(uint first_row, uint row, uint depth, uint block) {
    Eights x = Eights(row_at(first_row, row) + ROW_HEAD_BYTES);
    uint start = (SIDE + row) * STRIDE + depth * 4;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        room[start + i] = x.v[block * 4 + i];
    }
}

// Takes the blocks from `first` on; where there is none, zeros.
void take(uint first_panel, uint first_row, uint first, uint me) {
    for (uint i = me; i < 2 * SIDE * DEPTH; i += 256) {
        uint side = i / (SIDE * DEPTH), row = i % SIDE, depth = i / SIDE % DEPTH;
        if (first + depth >= push.width) {
            [[unroll]] for (uint j = 0; j < 4; j++) {
                room[(side * SIDE + row) * STRIDE + depth * 4 + j] = uvec4(0);
            }
        } else if (side == 0) {
            take_weights(first_panel, row, depth, first + depth);
        } else {
            take_row(first_row, row, depth, first + depth);
        }
    }
}

// Writes the sums, of which shared memory has all.
void write_sums(uint first_panel, uint first_row, uint me) {
    for (uint i = me; i < SIDE * SIDE; i += 256) {
        uint row = i / SIDE, of = i % SIDE, column = first_panel * LANES + of;
        if (first_row + row < work.n_rows && column < push.rows) {
            int of_row = exponent(Uints(row_at(first_row, row)).v[0]);
            int e = of_row + weight_exponents[of] - 2 * LIFT;
            float sum = times_power(uintBitsToFloat(room[i / 4][i % 4]), e) * work.scale;
            Floats y = at(Floats(work.y), uint64_t(first_row + row) * push.rows);
            y.v[column] = of_row == POISONED ? NOT_A_NUMBER : sum;
        }
    }
}

void main() {
    find_work(half_row_bytes(push.width));
    if (work.n_rows == 0) {
        return;
    }
    uint panels = (push.rows + LANES - 1) / LANES;
    uint tiles = (work.n_rows + SIDE - 1) / SIDE;
    uint first_panel = work.number / tiles * TILE, first_row = work.number % tiles * SIDE;
    if (first_panel >= panels) {
        return;
    }
    uint me = gl_LocalInvocationID.x;
    find_exponents(first_panel, me);
    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sums[KEPT];
    [[unroll]] for (uint s = 0; s < KEPT; s++) {
        sums[s] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    }
    for (uint first = 0; first < push.width; first += DEPTH) {
        take(first_panel, first_row, first, me);
        barrier();
        [[unroll]] for (uint k = 0; k < DEPTH * 32; k += K) {
            [[unroll]] for (uint s = 0; s < KEPT; s++) {
                uint result = gl_SubgroupID + s * gl_NumSubgroups;
                if (result < RESULTS) {
                    coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a;
                    coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b;
                    uint row = SIDE + result / ACROSS * M, column = result % ACROSS * N;
                    coopMatLoad(
                        a, room, row * STRIDE + k / 8, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                    coopMatLoad(
                        b, room, column * STRIDE + k / 8, STRIDE,
                        gl_CooperativeMatrixLayoutColumnMajor);
                    sums[s] = coopMatMulAdd(a, b, sums[s]);
                }
            }
        }
        barrier();
    }
    [[unroll]] for (uint s = 0; s < KEPT; s++) {
        uint result = gl_SubgroupID + s * gl_NumSubgroups;
        if (result < RESULTS) {
            uint start = result / ACROSS * M * SIDE + result % ACROSS * N;
            coopMatStore(
                sums[s], room, start / 4, SIDE / 4, gl_CooperativeMatrixLayoutRowMajor);
        }
    }
    barrier();
    write_sums(first_panel, first_row, me);
}
