// Sorts pairs of a row and an expert by expert, rows of an expert ascending, and cuts them in pieces for products. A
// workgroup has an expert. It counts the pairs of all, and so finds where its own begin.
#version 460
#include "common.glsl"
#include "expert_pieces.glsl"

layout(local_size_x = 256) in;
// Experts that there is room for.
layout(constant_id = 0) const uint ROOM = 16;
// 1: these are the pairs of some of the rows. Each has a number among those of all rows, and reads the row of that number.
layout(constant_id = 1) const uint IS_PART = 0;

const uint SIZE = 256;

layout(push_constant, scalar) uniform Push {
    // Of each pair as it was chosen, `[n_rows, n_used]`.
    Uints ids;
    Floats weights;
    // Of each pair as it was chosen: its number among the sorted ones. Of a part they are there, for the pairs of all rows.
    Uints pairs;
    // Of each sorted pair.
    Uints rows;
    // These too, but for a part.
    Uints experts;
    Floats pair_weights;
    Pieces pieces;
    uint n_pairs;
    uint n_used;
    uint n_expert;
    uint n_pieces;
    // Most pairs of a piece.
    uint piece_rows;
} push;

shared uint counts[ROOM];
// Of the invocations up to each: pairs and pieces of experts before this one, and pairs of this one.
shared uvec3 sums[SIZE];

uint id(uint i) {
    return min(push.ids.v[i], push.n_expert - 1);
}

uint pieces_of(uint pairs) {
    return (pairs + push.piece_rows - 1) / push.piece_rows;
}

void put(uint expert, uint i, uint pair) {
    if (IS_PART != 0) {
        push.rows.v[pair] = push.pairs.v[i];
        return;
    }
    push.pairs.v[i] = pair;
    push.rows.v[pair] = i / push.n_used;
    push.experts.v[pair] = expert;
    push.pair_weights.v[pair] = push.weights.v[i];
}

void put_pieces(uint expert, uint first_pair, uint first_piece) {
    uint me = gl_LocalInvocationID.x, n = counts[expert], n_pieces = pieces_of(n);
    for (uint p = me; p < n_pieces; p += SIZE) {
        uint before = p * push.piece_rows;
        push.pieces.v[first_piece + p] =
            Piece(expert, first_pair + before, min(push.piece_rows, n - before));
    }
    // Behind the last there are none.
    if (expert + 1 == push.n_expert) {
        for (uint p = first_piece + n_pieces + me; p < push.n_pieces; p += SIZE) {
            push.pieces.v[p] = Piece(0, 0, 0);
        }
    }
}

void main() {
    uint expert = line(), me = gl_LocalInvocationID.x;
    if (expert >= push.n_expert) {
        return;
    }
    for (uint e = me; e < push.n_expert; e += SIZE) {
        counts[e] = 0;
    }
    barrier();
    for (uint i = me; i < push.n_pairs; i += SIZE) {
        atomicAdd(counts[id(i)], 1);
    }
    barrier();
    uvec3 mine = uvec3(0);
    for (uint e = me; e < expert; e += SIZE) {
        mine += uvec3(counts[e], pieces_of(counts[e]), 0);
    }
    // Each invocation has neighbouring pairs.
    uint each = (push.n_pairs + SIZE - 1) / SIZE;
    uint first = min(me * each, push.n_pairs), end = min(first + each, push.n_pairs);
    for (uint i = first; i < end; i++) {
        mine.z += id(i) == expert ? 1 : 0;
    }
    sums[me] = mine;
    barrier();
    for (uint d = 1; d < SIZE; d *= 2) {
        uvec3 further = me >= d ? sums[me - d] : uvec3(0);
        barrier();
        sums[me] += further;
        barrier();
    }
    uvec2 before = sums[SIZE - 1].xy;
    uint pair = before.x + sums[me].z - mine.z;
    for (uint i = first; i < end; i++) {
        if (id(i) == expert) {
            put(expert, i, pair);
            pair += 1;
        }
    }
    put_pieces(expert, before.x, before.y);
}
