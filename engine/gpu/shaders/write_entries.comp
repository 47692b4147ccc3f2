// Writes entries to their places, rounded to their type: keys, and behind each its key of an index. An invocation writes four
// elements of an entry, or a block of 32 where elements share a scale.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "kv_page.glsl"
#include "kv_elements.glsl"
#include "entries.glsl"

layout(local_size_x = 64) in;

layout(push_constant, scalar) uniform Push {
    // The first page.
    uint64_t pool;
    // Of each entry: its page, and where it starts in that.
    Uints places;
    Floats keys;
    Floats index;
    uint page_bytes;
    uint n_entries;
    uint width;
    uint index_dim;
    // Of an entry, before its key of the index.
    uint key_bytes;
} push;

void main() {
    uint of_key = units(whole_lanes(push.width)), of_index = units(whole_lanes(push.index_dim));
    uint unit = item() % (of_key + of_index), entry = item() / (of_key + of_index);
    if (entry >= push.n_entries) {
        return;
    }
    uint64_t page = push.pool + uint64_t(push.places.v[2 * entry]) * push.page_bytes;
    Elements x;
    x.codes = page + push.places.v[2 * entry + 1];
    x.from = at(push.keys, uint64_t(entry) * push.width);
    x.n = push.width;
    if (unit >= of_key) {
        unit -= of_key;
        x.codes += push.key_bytes;
        x.from = at(push.index, uint64_t(entry) * push.index_dim);
        x.n = push.index_dim;
    }
    x.width = whole_lanes(x.n);
    x.first = unit * UNIT;
    x.scales = x.codes + record_codes(x.n);
    x.pos = 0;
    x.scale_step = 1;
    x.across = false;
    write_elements(x);
}
