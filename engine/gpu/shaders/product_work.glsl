// What a workgroup multiplies: a part of the one product that the host tells of, or of a product of some rows with their
// expert, which lists on the device tell of.

#include "expert_pieces.glsl"

const uint ONE_PRODUCT = 0;
// Experts; each pair of a row and an expert has a row of activations.
const uint OF_PAIRS = 1;
// Experts; a list says which row of activations a pair reads.
const uint OF_LISTED_ROWS = 2;
layout(constant_id = 12) const uint KIND = ONE_PRODUCT;

// The weights of an expert.
struct Expert {
    uint64_t panels;
    float scale;
    uint pad;
};

layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Experts { Expert v[]; };

layout(push_constant, scalar) uniform Push {
    // Of one product.
    uint64_t panels;
    uint64_t x;
    uint64_t y;
    // Of experts.
    Experts experts;
    Pieces pieces;
    Uints list;
    uint panel_words;
    // Columns, or blocks of them.
    uint width;
    // Rows of the weights.
    uint rows;
    // Rows of activations, or pieces.
    uint n;
    float scale;
} push;

struct Work {
    uint64_t panels;
    uint64_t x;
    uint64_t y;
    // Where the rows of `x` are listed.
    uint64_t list;
    uint n_rows;
    float scale;
    // Number of this workgroup among those of the product.
    uint number;
};

Work work;

// Finds the work of this workgroup; `row_bytes` is the size of a row of activations. Where there is none, it has no rows.
void find_work(uint row_bytes) {
    work = Work(push.panels, push.x, push.y, uint64_t(push.list), push.n, push.scale, line());
    if (KIND == ONE_PRODUCT) {
        return;
    }
    Piece piece = push.pieces.v[work.number % push.n];
    Expert expert = push.experts.v[piece.expert];
    work.panels = expert.panels;
    work.scale = expert.scale;
    work.n_rows = piece.n;
    work.number /= push.n;
    work.y += uint64_t(piece.first) * push.rows * 4;
    if (KIND == OF_PAIRS) {
        work.x += uint64_t(piece.first) * row_bytes;
    } else {
        work.list += uint64_t(piece.first) * 4;
    }
}

// The row of activations that row `r` of the work is.
uint x_row(uint r) {
    return KIND == OF_LISTED_ROWS ? Uints(work.list).v[r] : r;
}
