// Mamba-1's selective scan, `cpu/mamba.rs` of the engine: S = S exp(delta A) + B (delta u), then y = S C + y down the state, and
// (D u + y) silu(gate). A workgroup has some channels of a part.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "scan.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint N_STATE = 16;

// Values of a channel that a segment has.
const uint SEGMENT = (N_STATE + SEGMENTS - 1) / SEGMENTS;
// Whether every segment has so many.
const bool EVEN = N_STATE % SEGMENTS == 0;
// Values of B and C that an invocation fetches for a row.
const uint FETCHED = (N_STATE + 127) / 128;
// Rows of a block: all invocations make its time steps before it, and its outputs behind it.
const uint BLOCK = 16;

layout(push_constant, scalar) uniform Push {
    Parts parts;
    Floats states;
    Floats u;
    Floats dt;
    Floats b;
    Floats c;
    Floats gate;
    Floats a;
    Floats dt_bias;
    Floats d;
    Floats result;
    uint n_units;
    uint channels;
    uint gate_stride;
} push;

// B and C of the rows at hand.
shared vec2 bc[RING][N_STATE];
// Time steps and inputs of two blocks.
shared vec2 inputs[2 * BLOCK][COLUMNS];
// `D u + y` of two blocks.
shared float outputs[2 * BLOCK][COLUMNS];
// Sums of a row for the next segment, of this turn and the one before.
shared float carry[2][SEGMENTS][COLUMNS];

// Makes the inputs of a block from a row on.
void make_inputs(Part part, uint first_column, uint first) {
    uint column = first_column + gl_LocalInvocationID.x % COLUMNS;
    for (uint i = gl_LocalInvocationID.x / COLUMNS; i < BLOCK; i += 128 / COLUMNS) {
        uint row = first + i;
        if (row < part.n_rows && column < push.channels) {
            uint at = (part.first_row + row) * push.channels + column;
            float delta = softplus_(push.dt.v[at] + push.dt_bias.v[column]);
            inputs[row % (2 * BLOCK)][column - first_column] = vec2(delta, push.u.v[at]);
        }
    }
}

// Gives out what a block from a row on has become.
void give_outputs(Part part, uint first_column, uint first) {
    uint column = first_column + gl_LocalInvocationID.x % COLUMNS;
    for (uint i = gl_LocalInvocationID.x / COLUMNS; i < BLOCK; i += 128 / COLUMNS) {
        uint row = first + i;
        if (row < part.n_rows && column < push.channels) {
            float gate = at(push.gate, uint64_t(part.first_row + row) * push.gate_stride).v[column];
            float y = outputs[row % (2 * BLOCK)][column - first_column] * silu_(gate);
            push.result.v[(part.first_row + row) * push.channels + column] = y;
        }
    }
}

void main() {
    uint unit = line();
    if (unit >= push.n_units) {
        return;
    }
    uint tiles = (push.channels + COLUMNS - 1) / COLUMNS;
    Part part = part_of(push.parts, unit / tiles);
    uint lane = gl_LocalInvocationID.x % COLUMNS;
    uint segment = gl_LocalInvocationID.x / COLUMNS;
    uint first_column = unit % tiles * COLUMNS;
    uint column = first_column + lane;
    uint first = segment * SEGMENT;
    bool used = column < push.channels;

    // Sixteen channels lie side by side, in `a` and in states.
    uint start = column / LANES * LANES * N_STATE + column % LANES;
    uint per_slot = (push.channels + LANES - 1) / LANES * LANES * N_STATE;
    Floats state = at(push.states, slot_start(part, per_slot) + start);
    Floats b = at(push.b, uint64_t(part.first_row) * N_STATE);
    Floats c = at(push.c, uint64_t(part.first_row) * N_STATE);
    float d = used ? push.d.v[column] : 0.0;

    float values[SEGMENT];
    float rates[SEGMENT];
    [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
        values[i] = 0.0;
        rates[i] = 0.0;
        if (used && (EVEN || first + i < N_STATE)) {
            values[i] = state.v[(first + i) * LANES];
            rates[i] = push.a.v[start + (first + i) * LANES];
        }
    }
    for (uint i = gl_LocalInvocationID.x; i < N_STATE; i += 128) {
        bc[0][i] = vec2(b.v[i], c.v[i]);
    }
    make_inputs(part, first_column, 0);
    barrier();

    for (uint turn = 0; turn < part.n_rows + SEGMENTS - 1; turn++) {
        // The next row is fetched while this one is computed.
        uint ahead = turn + 1;
        vec2 fetched[FETCHED];
        if (ahead < part.n_rows) {
            [[unroll]] for (uint f = 0; f < FETCHED; f++) {
                uint i = f * 128 + gl_LocalInvocationID.x;
                if (i < N_STATE) {
                    fetched[f] = vec2(b.v[ahead * N_STATE + i], c.v[ahead * N_STATE + i]);
                }
            }
        }
        uint row = turn - segment;
        if (used && turn >= segment && row < part.n_rows) {
            uint place = row % RING;
            vec2 inputs_now = inputs[row % (2 * BLOCK)][lane];
            float delta = inputs_now.x, u = inputs_now.y;
            float learnt = delta * u;
            float y = segment > 0 ? carry[ahead % 2][segment - 1][lane] : 0.0;
            [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
                if (EVEN || first + i < N_STATE) {
                    vec2 factors = bc[place][first + i];
                    values[i] = values[i] * exp_(delta * rates[i]) + factors.x * learnt;
                    y = values[i] * factors.y + y;
                }
            }
            carry[turn % 2][segment][lane] = y;
            if (segment == SEGMENTS - 1) {
                outputs[row % (2 * BLOCK)][lane] = d * u + y;
            }
            if (flushes(part, row)) {
                [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
                    values[i] = without_subnormals(values[i]);
                }
            }
        }
        if (ahead < part.n_rows) {
            [[unroll]] for (uint f = 0; f < FETCHED; f++) {
                uint i = f * 128 + gl_LocalInvocationID.x;
                if (i < N_STATE) {
                    bc[ahead % RING][i] = fetched[f];
                }
            }
        }
        if (ahead % BLOCK == 0) {
            make_inputs(part, first_column, ahead);
        }
        // The last segment has ended a block, in the turn before.
        if (turn > SEGMENTS + BLOCK - 2 && (turn - SEGMENTS + 1) % BLOCK == 0) {
            give_outputs(part, first_column, turn - SEGMENTS + 1 - BLOCK);
        }
        barrier();
    }
    give_outputs(part, first_column, (part.n_rows - 1) / BLOCK * BLOCK);

    [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
        if (used && (EVEN || first + i < N_STATE)) {
            state.v[(first + i) * LANES] = values[i];
        }
    }
}
