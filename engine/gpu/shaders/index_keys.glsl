// Keys of an index as pages have them, those of one head without values.

// Element `j` of the key at position `pos` of a page, whose keys start at `codes` and have `width` elements each.
float key_element(uint64_t codes, uint width, uint pos, uint j) {
    uint place = IN_KEYS ? pos * width + j : j * KV_PAGE + pos;
    if (TYPE == F32) {
        return Floats(codes).v[place];
    } else if (TYPE == F16) {
        return f16_to_f32(uint(Halves(codes).v[place]));
    }
    Halves scales = Halves(codes + codes_of(width));
    float scale = f16_to_f32(uint(scales.v[j / SCALE_ELEMS * KV_PAGE + pos]));
    return float(SignedBytes(codes).v[place]) * scale;
}
