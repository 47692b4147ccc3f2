// Adds to each row the row of a table that a list names.
#version 460
#include "common.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
    Floats table;
    Uints list;
    Floats result;
    uint n;
    uint d;
    // Number of the table's last row.
    uint last;
} push;

void main() {
    uint i = item();
    if (i >= push.n) {
        return;
    }
    uint row = min(push.list.v[i / push.d], push.last);
    push.result.v[i] = push.result.v[i] + at(push.table, uint64_t(row) * push.d).v[i % push.d];
}
