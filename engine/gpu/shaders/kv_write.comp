// Writes keys and values of rows, and their keys of an index, into their pages. An invocation writes four elements of a row, or
// a block of 32 where elements share a scale.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "kv_page.glsl"

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
const float MAX_CODE = 127.0;

// Elements that an invocation writes.
const uint UNIT = TYPE == Q8_0 ? SCALE_ELEMS : 4;

uint units(uint width) {
    return (width + UNIT - 1) / UNIT;
}

// Some elements of one position.
struct Elements {
    // A row's, of which there are `n`; `width` with the zeros that fill it up.
    Floats from;
    uint n;
    uint width;
    // The first of these.
    uint first;
    // Where the row's plane of the page is, and that of its scales.
    uint64_t codes;
    uint64_t scales;
    // Position in the page.
    uint pos;
    // Whether an element's positions lie side by side, not a position's elements.
    bool across;
};

float element(Elements x, uint i) {
    return i < x.n ? x.from.v[i] : 0.0;
}

// The number of element `i` among those of the plane.
uint place(Elements x, uint i) {
    return x.across ? i * KV_PAGE + x.pos : x.pos * x.width + i;
}

void write_four(Elements x) {
    for (uint i = x.first; i < min(x.first + UNIT, x.width); i++) {
        float value = element(x, i);
        if (TYPE == F32) {
            Floats(x.codes).v[place(x, i)] = value;
        } else {
            Halves(x.codes).v[place(x, i)] = uint16_t(f32_to_f16(value));
        }
    }
}

// The f16 bits of a block's scale: the greatest magnitude over the greatest code; NaN where a value is no finite number.
uint scale_of(Elements x) {
    uint top = 0;
    for (uint i = x.first; i < min(x.first + UNIT, x.n); i++) {
        top = max(top, floatBitsToUint(x.from.v[i]) & 0x7fffffffu);
    }
    return top >= 0x7f800000u ? 0x7e00u : f32_to_f16(div_exact(uintBitsToFloat(top), MAX_CODE));
}

void write_block(Elements x) {
    uint bits = scale_of(x);
    Halves(x.scales).v[x.first / SCALE_ELEMS * KV_PAGE + x.pos] = uint16_t(bits);
    // Codes are of the scale as it is stored; of zero and of infinity they are zeros.
    float scale = f16_to_f32(bits);
    float inverse = scale > 0.0 ? div_exact(1.0, scale) : 0.0;
    for (uint i = x.first; i < min(x.first + UNIT, x.width); i++) {
        float code = max_(element(x, i) * inverse, -MAX_CODE);
        code = MAX_CODE > code ? code : MAX_CODE;
        SignedBytes(x.codes).v[place(x, i)] = int8_t(round_i32(code));
    }
}

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
    if (TYPE == Q8_0) {
        write_block(x);
    } else {
        write_four(x);
    }
}
