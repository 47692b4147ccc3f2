// Writes keys and values of rows, and their keys of an index, into their pages. An invocation writes four elements of a row, or
// a block of 32 where elements share a scale.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "kv_page.glsl"
#include "kv_elements.glsl"

layout(local_size_x = 64) in;

layout(push_constant, scalar) uniform Push {
    // The first page, on a multiple of 64 bytes.
    uint64_t pool;
    // Of each row: its page times 64 and its position there, or NO_PLACE.
    Uints places;
    Floats k;
    Floats v;
    Floats index;
    uint page_bytes;
    uint n_rows;
    uint n_head;
    uint dk;
    uint dv;
    uint index_dim;
} push;

const uint NO_PLACE = 0xffffffffu;

// The elements that unit `unit` of a row is.
Elements elements(uint row, uint unit, uint64_t page) {
    HeadPlaces head = head_places(push.dk, push.dv);
    uint of_key = units(head.key_width), of_value = units(head.value_width);
    uint of_heads = push.n_head * (of_key + of_value);
    Elements x;
    if (unit >= of_heads) {
        HeadPlaces index = head_places(push.index_dim, 0);
        x.from = at(push.index, uint64_t(row) * push.index_dim);
        x.n = push.index_dim;
        x.width = index.key_width;
        x.first = (unit - of_heads) * UNIT;
        x.codes = page + push.n_head * head.bytes;
        x.scales = x.codes + index.key_scales;
        x.across = !IN_KEYS;
        return x;
    }
    uint h = unit / (of_key + of_value);
    unit -= h * (of_key + of_value);
    uint64_t head_row = uint64_t(row) * push.n_head + h;
    page += h * head.bytes;
    if (unit < of_key) {
        x.from = at(push.k, head_row * push.dk);
        x.n = push.dk;
        x.width = head.key_width;
        x.first = unit * UNIT;
        x.codes = page;
        x.scales = page + head.key_scales;
        x.across = !IN_KEYS;
    } else {
        x.from = at(push.v, head_row * push.dv);
        x.n = push.dv;
        x.width = head.value_width;
        x.first = (unit - of_key) * UNIT;
        x.codes = page + head.values;
        x.scales = page + head.value_scales;
        x.across = false;
    }
    return x;
}

void main() {
    uint i = item();
    // Rows lie side by side: neighbours write positions that are neighbours.
    uint row = i % push.n_rows, unit = i / push.n_rows;
    HeadPlaces head = head_places(push.dk, push.dv);
    uint of_index = push.index_dim > 0 ? units(head_places(push.index_dim, 0).key_width) : 0;
    if (unit >= push.n_head * (units(head.key_width) + units(head.value_width)) + of_index) {
        return;
    }
    uint slot = push.places.v[row];
    if (slot == NO_PLACE) {
        return;
    }
    uint64_t page = push.pool + uint64_t(slot / KV_PAGE) * push.page_bytes;
    Elements x = elements(row, unit, page);
    x.pos = slot % KV_PAGE;
    x.scale_step = KV_PAGE;
    write_elements(x);
}
