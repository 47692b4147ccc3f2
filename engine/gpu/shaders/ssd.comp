// Mamba-2's recurrence, `cpu/scan/ssd.rs` of the engine: S = S decay + B (delta x), then y = C S + y down the state, from y = d
// x on. A workgroup has some channels of one head of a part.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "scan.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint N_STATE = 128;
layout(constant_id = 1) const uint HEAD_DIM = 64;

// Values of a column that a segment has.
const uint SEGMENT = (N_STATE + SEGMENTS - 1) / SEGMENTS;
// Whether every segment has so many.
const bool EVEN = N_STATE % SEGMENTS == 0;
// Values of B and C that an invocation fetches for a row.
const uint FETCHED = (N_STATE + 127) / 128;
// Rows whose decays are made at once.
const uint BLOCK = 64;

layout(push_constant, scalar) uniform Push {
    Parts parts;
    Floats states;
    Floats x;
    Floats b;
    Floats c;
    Floats dt;
    Floats a;
    Floats d;
    Floats dt_bias;
    Floats result;
    uint n_units;
    uint n_head;
    uint heads_per_group;
    uint x_stride;
    uint b_stride;
    uint c_stride;
    uint dt_stride;
} push;

// B and C of the rows at hand.
shared vec2 bc[RING][N_STATE];
// Time steps and decays of two blocks of rows.
shared float deltas[2 * BLOCK];
shared float decays[2 * BLOCK];
// `delta x` and sums of a row for the next segment, of this turn and the one before.
shared vec2 carry[2][SEGMENTS][COLUMNS];

// The segment's values of the state, and where it starts.
float values[SEGMENT];
uint first;
// B and C of the next row, on their way to shared memory.
vec2 fetched[FETCHED];

// Whether value `i` of the segment is one of the state.
bool is_value(uint i) {
    return EVEN || first + i < N_STATE;
}

// Makes the time steps and decays of a block from a row on.
void make_factors(Floats dt, uint head, uint row, uint n_rows) {
    row += gl_LocalInvocationID.x;
    if (gl_LocalInvocationID.x < BLOCK && row < n_rows) {
        float delta = softplus_(dt.v[row * push.dt_stride] + push.dt_bias.v[head]);
        deltas[row % (2 * BLOCK)] = delta;
        decays[row % (2 * BLOCK)] = exp_(delta * push.a.v[head]);
    }
}

void fetch(Floats b, Floats c, uint row) {
    [[unroll]] for (uint f = 0; f < FETCHED; f++) {
        uint i = f * 128 + gl_LocalInvocationID.x;
        if (i < N_STATE) {
            fetched[f] = vec2(b.v[row * push.b_stride + i], c.v[row * push.c_stride + i]);
        }
    }
}

void put(uint row) {
    [[unroll]] for (uint f = 0; f < FETCHED; f++) {
        uint i = f * 128 + gl_LocalInvocationID.x;
        if (i < N_STATE) {
            bc[row % RING][i] = fetched[f];
        }
    }
}

// A row over the segment: `delta x`, and the sum up to the segment, which goes on.
float walk(uint row, float learnt, float y) {
    uint place = row % RING;
    float decay = decays[row % (2 * BLOCK)];
    [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
        if (is_value(i)) {
            vec2 factors = bc[place][first + i];
            values[i] = values[i] * decay + factors.x * learnt;
            y = factors.y * values[i] + y;
        }
    }
    return y;
}

void main() {
    uint unit = line();
    if (unit >= push.n_units) {
        return;
    }
    const uint tiles = (HEAD_DIM + COLUMNS - 1) / COLUMNS;
    uint head = unit / tiles % push.n_head;
    Part part = part_of(push.parts, unit / tiles / push.n_head);
    uint lane = gl_LocalInvocationID.x % COLUMNS;
    uint segment = gl_LocalInvocationID.x / COLUMNS;
    uint column = unit % tiles * COLUMNS + lane;
    bool used = column < HEAD_DIM;
    first = segment * SEGMENT;

    uint group = head / push.heads_per_group;
    uint64_t row_0 = part.first_row;
    Floats x = at(push.x, row_0 * push.x_stride + head * HEAD_DIM + column);
    Floats b = at(push.b, row_0 * push.b_stride + group * N_STATE);
    Floats c = at(push.c, row_0 * push.c_stride + group * N_STATE);
    Floats dt = at(push.dt, row_0 * push.dt_stride + head);
    Floats result = at(push.result, (row_0 * push.n_head + head) * HEAD_DIM + column);
    uint64_t in_slot = uint64_t(head) * N_STATE * HEAD_DIM + column;
    Floats state = at(push.states, slot_start(part.from, push.n_head * N_STATE * HEAD_DIM) + in_slot);
    float d = push.d.v[head];

    [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
        values[i] = used && is_value(i) ? state.v[(first + i) * HEAD_DIM] : 0.0;
    }
    fetch(b, c, 0);
    put(0);
    make_factors(dt, head, 0, part.n_rows);
    float x_next = used && segment == 0 ? x.v[0] : 0.0;
    barrier();

    for (uint turn = 0; turn < part.n_rows + SEGMENTS - 1; turn++) {
        // The next row is fetched while this one is computed.
        uint ahead = turn + 1;
        float x_now = x_next;
        if (ahead < part.n_rows) {
            fetch(b, c, ahead);
            if (used && segment == 0) {
                x_next = x.v[ahead * push.x_stride];
            }
        }
        uint row = turn - segment;
        if (turn >= segment && row < part.n_rows) {
            vec2 sums = vec2(x_now * deltas[row % (2 * BLOCK)], x_now * d);
            if (segment > 0) {
                sums = carry[ahead % 2][segment - 1][lane];
            }
            sums.y = walk(row, sums.x, sums.y);
            carry[turn % 2][segment][lane] = sums;
            if (used && segment == SEGMENTS - 1) {
                result.v[row * push.n_head * HEAD_DIM] = sums.y;
            }
            if (flushes(part, row)) {
                [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
                    values[i] = without_subnormals(values[i]);
                }
            }
        }
        if (ahead < part.n_rows) {
            put(ahead);
        }
        if (ahead % BLOCK == 0) {
            make_factors(dt, head, ahead, part.n_rows);
        }
        barrier();
    }

    state = at(push.states, slot_start(part.slot, push.n_head * N_STATE * HEAD_DIM) + in_slot);
    [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
        if (used && is_value(i)) {
            state.v[(first + i) * HEAD_DIM] = values[i];
        }
    }
}
