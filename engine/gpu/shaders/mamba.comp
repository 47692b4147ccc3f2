// Mamba-1's selective scan, `cpu/scan/mamba.rs` of the engine: S = S exp(delta A) + B (delta u), then y = S C + y down the
// state, and (D u + y) silu(gate). A workgroup has some channels of a part.
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

// The segment's values of the state and their rates of decay, and where it starts.
float values[SEGMENT];
float rates[SEGMENT];
uint first;
// B and C of the next row, on their way to shared memory.
vec2 fetched[FETCHED];

// Whether value `i` of the segment is one of the state.
bool is_value(uint i) {
    return EVEN || first + i < N_STATE;
}

void fetch(Floats b, Floats c, uint row) {
    [[unroll]] for (uint f = 0; f < FETCHED; f++) {
        uint i = f * 128 + gl_LocalInvocationID.x;
        if (i < N_STATE) {
            fetched[f] = vec2(b.v[row * N_STATE + i], c.v[row * N_STATE + i]);
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

// Makes the inputs of a block from a row on.
void make_inputs(Part part, uint channel, uint start) {
    uint lane = gl_LocalInvocationID.x % COLUMNS;
    for (uint i = gl_LocalInvocationID.x / COLUMNS; i < BLOCK; i += SEGMENTS) {
        uint row = start + i;
        if (row < part.n_rows && channel < push.channels) {
            uint from = (part.first_row + row) * push.channels + channel;
            float delta = softplus_(push.dt.v[from] + push.dt_bias.v[channel]);
            inputs[row % (2 * BLOCK)][lane] = vec2(delta, push.u.v[from]);
        }
    }
}

// Gives out what a block from a row on has become.
void give_outputs(Part part, uint channel, uint start) {
    uint lane = gl_LocalInvocationID.x % COLUMNS;
    for (uint i = gl_LocalInvocationID.x / COLUMNS; i < BLOCK; i += SEGMENTS) {
        uint row = start + i;
        if (row < part.n_rows && channel < push.channels) {
            uint64_t in_all = part.first_row + row;
            float gate = at(push.gate, in_all * push.gate_stride).v[channel];
            float y = outputs[row % (2 * BLOCK)][lane] * silu_(gate);
            at(push.result, in_all * push.channels).v[channel] = y;
        }
    }
}

// A row over the segment: its time step and input, and the sum up to the segment, which goes on.
float walk(uint row, float delta, float u, float y) {
    uint place = row % RING;
    float learnt = delta * u;
    [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
        if (is_value(i)) {
            vec2 factors = bc[place][first + i];
            values[i] = values[i] * exp_(delta * rates[i]) + factors.x * learnt;
            y = values[i] * factors.y + y;
        }
    }
    return y;
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
    uint channel = unit % tiles * COLUMNS + lane;
    bool used = channel < push.channels;
    first = segment * SEGMENT;

    // Sixteen channels lie side by side, in `a` and in states.
    uint start = channel / LANES * LANES * N_STATE + channel % LANES;
    uint per_slot = (push.channels + LANES - 1) / LANES * LANES * N_STATE;
    Floats state = at(push.states, slot_start(part.from, per_slot) + start);
    Floats b = at(push.b, uint64_t(part.first_row) * N_STATE);
    Floats c = at(push.c, uint64_t(part.first_row) * N_STATE);
    float d = used ? push.d.v[channel] : 0.0;

    [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
        bool is_mine = used && is_value(i);
        values[i] = is_mine ? state.v[(first + i) * LANES] : 0.0;
        rates[i] = is_mine ? push.a.v[start + (first + i) * LANES] : 0.0;
    }
    fetch(b, c, 0);
    put(0);
    make_inputs(part, channel, 0);
    barrier();

    for (uint turn = 0; turn < part.n_rows + SEGMENTS - 1; turn++) {
        // The next row is fetched while this one is computed.
        uint ahead = turn + 1;
        if (ahead < part.n_rows) {
            fetch(b, c, ahead);
        }
        uint row = turn - segment;
        if (used && turn >= segment && row < part.n_rows) {
            vec2 now = inputs[row % (2 * BLOCK)][lane];
            float y = segment > 0 ? carry[ahead % 2][segment - 1][lane] : 0.0;
            y = walk(row, now.x, now.y, y);
            carry[turn % 2][segment][lane] = y;
            if (segment == SEGMENTS - 1) {
                outputs[row % (2 * BLOCK)][lane] = d * now.y + y;
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
            make_inputs(part, channel, ahead);
        }
        // In the turn before, the last segment has ended a block.
        uint ended = turn - (SEGMENTS - 1);
        if (turn >= BLOCK + SEGMENTS - 1 && ended % BLOCK == 0) {
            give_outputs(part, channel, ended - BLOCK);
        }
        barrier();
    }
    give_outputs(part, channel, (part.n_rows - 1) / BLOCK * BLOCK);

    state = at(push.states, slot_start(part.slot, per_slot) + start);
    [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
        if (used && is_value(i)) {
            state.v[(first + i) * LANES] = values[i];
        }
    }
}
