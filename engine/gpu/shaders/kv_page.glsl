// A page of keys and values: 64 positions of one layer of one sequence. `PageLayout` in `ops/kv/pages.rs` says what lies where.

#include "four_floats.glsl"

layout(constant_id = 0) const uint TYPE = 0;
layout(constant_id = 1) const bool IN_KEYS = false;

const uint KV_PAGE = 64;
// Elements that share a scale.
const uint SCALE_ELEMS = 32;

// Values of TYPE.
const uint F32 = 0;
const uint F16 = 1;
const uint Q8_0 = 2;

const uint CODE_BYTES = TYPE == F32 ? 4 : TYPE == F16 ? 2 : 1;

// f16 of memory, four at once.
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer FourHalves { uvec2 v[]; };

// `n` filled up to whole vectors.
uint whole_lanes(uint n) {
    return (n + LANES - 1) / LANES * LANES;
}

// Bytes of the codes of `n` elements at all positions.
uint codes_of(uint n) {
    return n * KV_PAGE * CODE_BYTES;
}

// Bytes of the scales of `n` elements at all positions.
uint scales_of(uint n) {
    return TYPE == Q8_0 ? (n + SCALE_ELEMS - 1) / SCALE_ELEMS * KV_PAGE * 2 : 0;
}

// Where the parts of one head of a page are, in bytes from its start; keys start there.
struct HeadPlaces {
    // Elements of a position: of its key, and of its value beside it.
    uint key_width;
    uint value_width;
    uint values;
    uint key_scales;
    uint value_scales;
    uint bytes;
};

// Of heads whose keys have `dk` elements, and whose values have `dv` of their own.
HeadPlaces head_places(uint dk, uint dv) {
    HeadPlaces head;
    head.key_width = IN_KEYS ? whole_lanes(dk) : dk;
    head.value_width = IN_KEYS ? 0 : whole_lanes(dv);
    head.values = codes_of(head.key_width);
    head.key_scales = head.values + codes_of(head.value_width);
    head.value_scales = head.key_scales + scales_of(head.key_width);
    head.bytes = head.value_scales + scales_of(head.value_width);
    return head;
}
