// Float weights in panels of sixteen rows: column after column, a value of each row.

// The type of the weights.
layout(constant_id = 0) const uint TYPE = 0;
const uint F32 = 0;
const uint F16 = 1;

// Columns that are summed on their own, before their sum is added to the total.
const uint RUN = 256;

// Value `i` of a panel.
float weight(uint64_t panel, uint i) {
    if (TYPE == F32) {
        return Floats(panel).v[i];
    }
    uint bits = uint(Halves(panel).v[i]);
    return TYPE == F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}
