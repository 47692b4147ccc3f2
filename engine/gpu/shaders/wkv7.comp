// RWKV-7's time mixing, `cpu/wkv7.rs` of the engine: `known` is the state along kappa, then S = S w + (-known kappa_a + v k) and
// y = Σ r S, each down the keys. An invocation has a value of one head of a part, with all keys: a row has to know the whole column
// before it changes any of it.
#version 460
#include "common.glsl"
#include "scan.glsl"

layout(local_size_x = 64) in;
// Keys and values of a head, a multiple of 16.
layout(constant_id = 0) const uint D = 64;

// Keys that an invocation fetches for a row.
const uint FETCHED = (D + 63) / 64;

layout(push_constant, scalar) uniform Push {
    Parts parts;
    Floats states;
    Floats r;
    Floats w;
    Floats k;
    Floats v;
    Floats kappa;
    Floats kappa_a;
    Floats result;
    uint n_units;
    uint n_heads;
} push;

// w, k, kappa_a and r of the keys, of this row and the next.
shared vec4 keys[2][D];
// kappa of the row behind each of them: what it knows is summed while the state changes.
shared float kappas[2][D];

void main() {
    uint unit = line();
    if (unit >= push.n_units) {
        return;
    }
    const uint tiles = (D + 63) / 64;
    uint head = unit / tiles % push.n_heads;
    Part part = part_of(push.parts, unit / tiles / push.n_heads);
    uint column = unit % tiles * 64 + gl_LocalInvocationID.x;
    bool used = column < D;

    // Of the part's first row: the head, and the column in it.
    uint width = push.n_heads * D;
    uint head_at = part.first_row * width + head * D;
    uint column_at = head_at + column;
    Floats state = at(push.states, slot_start(part, width * D) + head * D * D + column / LANES * LANES * D + column % LANES);

    float values[D];
    float known = 0.0;
    [[unroll]] for (uint j = 0; j < D; j++) {
        values[j] = used ? state.v[j * LANES] : 0.0;
        known = values[j] * push.kappa.v[head_at + j] + known;
    }
    float v_next = used ? push.v.v[column_at] : 0.0;

    // Row -1 is that before the first: it only fetches.
    for (int row = -1; row < int(part.n_rows); row++) {
        uint ahead = uint(row + 1);
        float v = v_next;
        vec4 fetched[FETCHED];
        float kappa[FETCHED];
        [[unroll]] for (uint f = 0; f < FETCHED; f++) {
            uint j = f * 64 + gl_LocalInvocationID.x;
            uint from = head_at + ahead * width + j;
            if (j < D && ahead < part.n_rows) {
                fetched[f] = vec4(push.w.v[from], push.k.v[from], push.kappa_a.v[from], push.r.v[from]);
            }
            kappa[f] = j < D && ahead + 1 < part.n_rows ? push.kappa.v[from + width] : 0.0;
        }
        if (row >= 0) {
            if (used && ahead < part.n_rows) {
                v_next = push.v.v[column_at + ahead * width];
            }
            uint place = uint(row) % 2;
            float forget = 0.0 - known;
            float y = 0.0;
            known = 0.0;
            [[unroll]] for (uint j = 0; j < D; j++) {
                vec4 key = keys[place][j];
                float learnt = forget * key.z + v * key.y;
                values[j] = values[j] * key.x + learnt;
                y = values[j] * key.w + y;
                known = values[j] * kappas[place][j] + known;
            }
            if (used) {
                push.result.v[column_at + uint(row) * width] = y;
            }
            if (flushes(part, uint(row))) {
                known = 0.0;
                [[unroll]] for (uint j = 0; j < D; j++) {
                    values[j] = without_subnormals(values[j]);
                    known = values[j] * kappas[place][j] + known;
                }
            }
        }
        [[unroll]] for (uint f = 0; f < FETCHED; f++) {
            uint j = f * 64 + gl_LocalInvocationID.x;
            if (j < D) {
                keys[ahead % 2][j] = fetched[f];
                kappas[ahead % 2][j] = kappa[f];
            }
        }
        barrier();
    }

    [[unroll]] for (uint j = 0; j < D; j++) {
        if (used) {
            state.v[j * LANES] = values[j];
        }
    }
}
