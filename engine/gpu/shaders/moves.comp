// Moves rows of `width` values without changing them. Row r is row `r % inner` of group `r / inner`; both ends have strides of their own
// for groups and for rows.
#version 460
#include "common.glsl"

layout(local_size_x = 256) in;
// 0 moves rows to their places, 1 takes the rows that a list names, 2 writes one value.
layout(constant_id = 0) const uint KIND = 0;

layout(push_constant, scalar) uniform Push {
    Uints from;
    Uints list;
    Uints to;
    uint n;
    uint width;
    uint inner;
    uint from_group;
    uint from_row;
    uint to_group;
    uint to_row;
    // Rows that the list may name, or the value.
    uint last;
} push;

Uints place(Uints start, uint r, uint group, uint row) {
    uint64_t values = uint64_t(r / push.inner) * group + uint64_t(r % push.inner) * row;
    return Uints(uint64_t(start) + values * 4);
}

void main() {
    uint i = item();
    if (i >= push.n) {
        return;
    }
    uint r = i / push.width, c = i % push.width;
    Uints to = place(push.to, r, push.to_group, push.to_row);
    if (KIND == 2) {
        to.v[c] = push.last;
        return;
    }
    if (KIND == 1) {
        r = min(push.list.v[r], push.last);
    }
    to.v[c] = place(push.from, r, push.from_group, push.from_row).v[c];
}
