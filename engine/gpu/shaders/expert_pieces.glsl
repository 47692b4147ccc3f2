// Rows of experts in pieces: what `route_pairs.comp` makes of the choice of experts, and products of experts work on.

// Neighbouring pairs of a row and an expert, all of one expert.
struct Piece {
    uint expert;
    uint first;
    // 0: there is no such piece.
    uint n;
};

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Pieces { Piece v[]; };
