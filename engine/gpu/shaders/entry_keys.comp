// Brings what rows attend to to pages of keys of their own: entries in their order, and behind them the keys of the last
// positions, rounded to the entries' type. An invocation brings four elements of a key, or a block of 32 where elements share
// a scale.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "kv_page.glsl"
#include "kv_elements.glsl"
#include "entries.glsl"

layout(local_size_x = 64) in;

const uint NO_LIST = 0xffffffffu;

// What a row attends to.
struct Row {
    // Where the list of pages has its sequence's.
    uint pages;
    // Entries that it sees.
    uint n_seen;
    // Which list has those it attends to, or NO_LIST: the first ones.
    uint list;
    uint n_entries;
    // The first of its near keys, and how many there are.
    uint near;
    uint n_near;
    // The first of its own pages.
    uint own_page;
};

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Rows { Row v[]; };

layout(push_constant, scalar) uniform Push {
    Rows rows;
    Uints pages;
    // `[lists, per_row]`.
    Uints lists;
    // `[_, width]`.
    Floats near;
    // The first page of entries, and the first of the rows' own.
    uint64_t from;
    uint64_t to;
    uint from_bytes;
    uint to_bytes;
    uint entry_bytes;
    uint n_rows;
    // Most keys of a row.
    uint n_places;
    // Positions of an entry.
    uint every;
    uint per_row;
    uint width;
} push;

// Copies unit `unit` of a record to place `place` of a page.
void copy_record(uint64_t record, uint64_t page, uint place, uint unit) {
    uint width = whole_lanes(push.width), first = unit * UNIT;
    uint bytes = min(UNIT, width - first) * CODE_BYTES;
    uint64_t from = record + first * CODE_BYTES, to = page + (place * width + first) * CODE_BYTES;
    if (TYPE != Q8_0) {
        for (uint i = 0; i < bytes / 4; i++) {
            Uints(to).v[i] = Uints(from).v[i];
        }
        return;
    }
    // Records start on multiples of two bytes.
    for (uint i = 0; i < bytes / 2; i++) {
        Halves(to).v[i] = Halves(from).v[i];
    }
    Halves(page + codes_of(width)).v[unit * KV_PAGE + place] = Halves(record + width).v[unit];
}

void main() {
    uint of_key = units(whole_lanes(push.width));
    uint unit = item() % of_key, i = item() / of_key;
    uint place = i % push.n_places, number = i / push.n_places;
    if (number >= push.n_rows) {
        return;
    }
    Row row = push.rows.v[number];
    if (place >= row.n_entries + row.n_near) {
        return;
    }
    uint64_t page = push.to + uint64_t(row.own_page + place / KV_PAGE) * push.to_bytes;
    if (place < row.n_entries) {
        uint entry = place;
        if (row.list != NO_LIST) {
            // Nothing is read behind the row, whatever the list has.
            Uints list = Uints(uint64_t(push.lists) + uint64_t(row.list) * push.per_row * 4);
            entry = min(list.v[place], row.n_seen - 1);
        }
        uint last = entry * push.every + push.every - 1;
        uint64_t record = push.from + uint64_t(push.pages.v[row.pages + last / KV_PAGE]) * push.from_bytes;
        record += last % KV_PAGE / push.every * push.entry_bytes;
        copy_record(record, page, place % KV_PAGE, unit);
        return;
    }
    Elements x;
    x.from = at(push.near, uint64_t(row.near + place - row.n_entries) * push.width);
    x.n = push.width;
    x.width = whole_lanes(push.width);
    x.first = unit * UNIT;
    x.codes = page;
    x.scales = page + codes_of(x.width);
    x.pos = place % KV_PAGE;
    x.scale_step = KV_PAGE;
    x.across = false;
    write_elements(x);
}
