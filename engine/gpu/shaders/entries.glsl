// Records: what is kept of an entry, a key with its elements side by side and its scales behind them. `EntryPages` in
// `ops/index/entries.rs` says what lies where.

// Bytes of the codes of a key of `n` elements.
uint record_codes(uint n) {
    return whole_lanes(n) * CODE_BYTES;
}

// Element `j` of the record at an address, which has room for `width`.
float record_element(uint64_t record, uint width, uint j) {
    if (TYPE == F32) {
        return Floats(record).v[j];
    } else if (TYPE == F16) {
        return f16_to_f32(uint(Halves(record).v[j]));
    }
    float scale = f16_to_f32(uint(Halves(record + width).v[j / SCALE_ELEMS]));
    return float(SignedBytes(record).v[j]) * scale;
}
