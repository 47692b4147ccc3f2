// Copies runs of `width` values, each from a place of its own to another.
#version 460
#include "common.glsl"

layout(local_size_x = 64) in;

layout(push_constant, scalar) uniform Push {
    Uints from;
    Uints to;
    // Of each run the number of the first value that is read, and of the first that is written.
    Uints places;
    uint n;
    uint width;
} push;

void main() {
    uint i = item();
    if (i >= push.n) {
        return;
    }
    uint run = i / push.width, c = i % push.width;
    uint from = push.places.v[2 * run], to = push.places.v[2 * run + 1];
    push.to.v[to + c] = push.from.v[from + c];
}
