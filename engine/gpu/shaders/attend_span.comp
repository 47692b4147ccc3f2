// Attention of a tile's queries over one span of pages. The order of every sum is that of the CPU's kernel, `cpu/attention.rs` of
// the engine: scores over the elements of a key in order (in sixteen running sums where keys are rows), weights in a page by a
// fixed tree, values over positions in order.
//
// A workgroup takes some pages at once: it scores their positions, finds each page's greatest score so far, makes weights of the
// scores, and adds the weighted values page by page.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "kv_page.glsl"
#include "attend_tile.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 4) const uint DK = 128;
layout(constant_id = 5) const uint DV = 128;

layout(push_constant, scalar) uniform Push {
    // The first page, on a multiple of 64 bytes.
    uint64_t pool;
    Floats q;
    Tiles tiles;
    // Of each span the tile that it belongs to.
    Uints spans;
    Uints pages;
    // A state of each span, head and query.
    Floats states;
    Floats slopes;
    Floats biases;
    Uints lists;
    uint page_bytes;
    uint n_kv_head;
    uint group;
    uint window;
    uint reach;
    uint n_spans;
    // Pages that a list has room for.
    uint most;
    float scale;
    float softcap;
    float inverse_cap;
} push;

const uint GROUP = 256;
// Elements from one row to the next.
const uint K_STRIDE = (DK + LANES - 1) / LANES * LANES;
const uint V_STRIDE = (DV + LANES - 1) / LANES * LANES;
// Pages at once, and what they have of positions, four each.
const uint PAGES = TILE > 4 ? 64 / TILE : 16;
const uint PAGE_FOURS = KV_PAGE / 4;
const uint FOURS = PAGES * PAGE_FOURS;
// Queries that an invocation scores at once.
const uint AT_ONCE = TILE > 4 ? 4 : TILE;
// Fours of a value, tiles' queries whose fours the workgroup sums side by side, and sums of an invocation.
const uint VALUE_FOURS = V_STRIDE / 4;
const uint BESIDE = GROUP / VALUE_FOURS;
const uint SUMS = (TILE + BESIDE - 1) / BESIDE;

// Queries as rows, filled up with zeros.
shared vec4 queries[TILE * (K_STRIDE / 4)];
// Scores and then weights, of each query and position.
shared vec4 weights[TILE * FOURS];
// Of each query and page: greatest scores, then sums of weights, by lane.
shared vec4 by_lane[TILE * PAGES * 4];
// Of each query and page: the greatest score before and with it, and the factor on earlier sums.
shared float top_before[TILE * PAGES];
shared float top_with[TILE * PAGES];
shared float correction[TILE * PAGES];
// What each query sees.
shared uint seen_first[TILE];
shared uint seen_end[TILE];

uint me = gl_LocalInvocationID.x;
Tile tile;
uint kv_head;
HeadPlaces places;
// The pages that are read of the sequence, where they are not all; and the last page that the tile sees.
Uints list;
uint last_page;
// The weighted values so far: four elements of each of some queries.
vec4 sums[SUMS];

// Query head of a query.
uint head_of(uint query) {
    return kv_head * push.group + (tile.first_query + query) % push.group;
}

// Row of a query in its part.
uint row_of(uint query) {
    return (tile.first_query + query) / push.group;
}

// The number in its sequence of the page at a place among those that are read. Behind a list's end lies anything, and a
// software driver runs a loop's body once more than it asks, without storing: so no page behind the tile's last is told.
uint page_at(uint place) {
    return LISTED ? min(list.v[1 + 3 * place], last_page) : place;
}

// Whether a position of the page at a place is read at all.
bool is_read(uint place, uint pos) {
    return !LISTED || (list.v[2 + 3 * place + pos / 32] >> pos % 32 & 1) != 0;
}

// Whether a query sees positions of the page at a place.
bool sees(uint query, uint place) {
    uint page = page_at(place);
    return seen_first[query] < (page + 1) * KV_PAGE && seen_end[query] > page * KV_PAGE;
}

// Behind the last position that a query sees of the page at a place; 0 where it sees none.
uint n_seen(uint query, uint place) {
    return sees(query, place) ? min(seen_end[query] - page_at(place) * KV_PAGE, KV_PAGE) : 0;
}

uint64_t head_address(uint place) {
    uint64_t block = push.pages.v[tile.pages + page_at(place)];
    return push.pool + block * push.page_bytes + kv_head * places.bytes;
}

// Four values of a page, or four codes where they have scales.
vec4 four_codes(uint64_t plane, uint i) {
    if (TYPE == F32) {
        return FourFloats(plane).v[i];
    } else if (TYPE == F16) {
        uvec2 h = FourHalves(plane).v[i];
        return vec4(f16_to_f32(h.x & 0xffff), f16_to_f32(h.x >> 16), f16_to_f32(h.y & 0xffff),
                    f16_to_f32(h.y >> 16));
    }
    int w = int(Uints(plane).v[i]);
    return vec4(bitfieldExtract(w, 0, 8), bitfieldExtract(w, 8, 8), bitfieldExtract(w, 16, 8),
                bitfieldExtract(w, 24, 8));
}

// The scale of a block of elements at one position, and at four.
float scale_at(uint64_t scales, uint block, uint pos) {
    return f16_to_f32(uint(Halves(scales).v[block * KV_PAGE + pos]));
}

vec4 four_scales(uint64_t scales, uint block, uint four) {
    uvec2 h = FourHalves(scales).v[block * PAGE_FOURS + four];
    return vec4(f16_to_f32(h.x & 0xffff), f16_to_f32(h.x >> 16), f16_to_f32(h.y & 0xffff),
                f16_to_f32(h.y >> 16));
}

void load_queries() {
    const uint row_fours = K_STRIDE / 4;
    for (uint i = me; i < TILE * row_fours; i += GROUP) {
        uint query = i / row_fours, first = i % row_fours * 4;
        vec4 x = vec4(0.0);
        if (query < tile.n_queries) {
            uint64_t row = tile.first_row + row_of(query);
            Floats q = at(push.q, (row * (push.n_kv_head * push.group) + head_of(query)) * DK);
            [[unroll]] for (uint j = 0; j < 4; j++) {
                x[j] = first + j < DK ? q.v[first + j] : 0.0;
            }
        }
        queries[i] = x;
    }
    if (me < TILE) {
        bool is = me < tile.n_queries;
        uint row = row_of(me);
        seen_first[me] = is ? first_visible(tile.first_pos + row, push.window) : 0;
        seen_end[me] = is ? end_visible(tile, row, push.window) : 0;
    }
}

// Products of `AT_ONCE` queries with the keys at four positions, where positions lie side by side.
void products_across(uint64_t head, uint four, uint query, out vec4 products[AT_ONCE]) {
    for (uint r = 0; r < AT_ONCE; r++) {
        products[r] = vec4(0.0);
    }
    vec4 scale = vec4(1.0);
    for (uint i = 0; i < DK; i += 4) {
        if (TYPE == Q8_0 && i % SCALE_ELEMS == 0) {
            scale = four_scales(head + places.key_scales, i / SCALE_ELEMS, four);
        }
        const uint n = min(DK - i, 4);
        vec4 keys[4];
        [[unroll]] for (uint j = 0; j < 4; j++) {
            if (DK % 4 == 0 || j < n) {
                keys[j] = four_codes(head, (i + j) * PAGE_FOURS + four);
                keys[j] = TYPE == Q8_0 ? keys[j] * scale : keys[j];
            }
        }
        [[unroll]] for (uint r = 0; r < AT_ONCE; r++) {
            vec4 q = queries[(query + r) * (K_STRIDE / 4) + i / 4];
            [[unroll]] for (uint j = 0; j < 4; j++) {
                if (DK % 4 == 0 || j < n) {
                    products[r] = keys[j] * q[j] + products[r];
                }
            }
        }
    }
}

// The product of sixteen running sums: halves added onto each other.
float fold(vec4 a, vec4 b, vec4 c, vec4 d) {
    vec4 four = (a + c) + (b + d);
    vec2 two = four.xy + four.zw;
    return two.x + two.y;
}

// Products of `AT_ONCE` queries with the key at one position, where keys are rows.
void products_in_rows(uint64_t head, uint pos, uint query, out float products[AT_ONCE]) {
    vec4 lanes[AT_ONCE * 4];
    for (uint i = 0; i < AT_ONCE * 4; i++) {
        lanes[i] = vec4(0.0);
    }
    float scale = 1.0;
    for (uint i = 0; i < K_STRIDE / 4; i += 4) {
        if (TYPE == Q8_0 && i % (SCALE_ELEMS / 4) == 0) {
            scale = scale_at(head + places.key_scales, i / (SCALE_ELEMS / 4), pos);
        }
        [[unroll]] for (uint j = 0; j < 4; j++) {
            vec4 key = four_codes(head, pos * (K_STRIDE / 4) + i + j);
            key = TYPE == Q8_0 ? key * scale : key;
            [[unroll]] for (uint r = 0; r < AT_ONCE; r++) {
                vec4 q = queries[(query + r) * (K_STRIDE / 4) + i + j];
                lanes[r * 4 + j] = key * q + lanes[r * 4 + j];
            }
        }
    }
    [[unroll]] for (uint r = 0; r < AT_ONCE; r++) {
        products[r] = fold(lanes[r * 4], lanes[r * 4 + 1], lanes[r * 4 + 2], lanes[r * 4 + 3]);
    }
}

// The score of a query at a position, of their product.
float score(float product, uint query, uint pos) {
    if (pos < seen_first[query] || pos >= seen_end[query]) {
        return -INFINITE;
    }
    float x = product * push.scale;
    if (SOFTCAP) {
        x = tanh_(x * push.inverse_cap) * push.softcap;
    }
    int ahead = int(pos) - int(tile.first_pos + row_of(query));
    if (SLOPES) {
        x = (0.0 - float(abs(ahead))) * push.slopes.v[head_of(query)] + x;
    }
    if (BIASES) {
        int reach = int(push.reach);
        uint place = uint(clamp(ahead + reach, 0, 2 * reach));
        x = x + push.biases.v[head_of(query) * (2 * push.reach + 1) + place];
    }
    return x;
}

// Scores of the `n` pages from place `first` on.
void score_pages(uint first, uint n) {
    uint four = me % FOURS, query = me / FOURS * AT_ONCE;
    uint place = first + four / PAGE_FOURS;
    if (four >= n * PAGE_FOURS) {
        return;
    }
    uint pos = page_at(place) * KV_PAGE + four % PAGE_FOURS * 4;
    vec4 of_queries[AT_ONCE];
    uint64_t head = head_address(place);
    if (IN_KEYS) {
        for (uint j = 0; j < 4; j++) {
            float products[AT_ONCE];
            products_in_rows(head, pos % KV_PAGE + j, query, products);
            [[unroll]] for (uint r = 0; r < AT_ONCE; r++) {
                of_queries[r][j] = products[r];
            }
        }
    } else {
        products_across(head, pos % KV_PAGE / 4, query, of_queries);
    }
    [[unroll]] for (uint r = 0; r < AT_ONCE; r++) {
        vec4 scores;
        for (uint j = 0; j < 4; j++) {
            float x = score(of_queries[r][j], query + r, pos + j);
            scores[j] = is_read(place, pos % KV_PAGE + j) ? x : -INFINITE;
        }
        weights[(query + r) * FOURS + four] = scores;
    }
}

// Makes weights of the scores of the `n` pages from place `first` on. An invocation has four lanes of a query and page; the first
// ones have a query's greatest score `top` and sum of weights `total` over pages.
void weigh(uint first, uint n, inout float top, inout float total) {
    uint pair = me / 4, lane = me % 4;
    uint query = pair / PAGES, page = pair % PAGES;
    uint place = query * FOURS + page * PAGE_FOURS + lane;
    bool mine = pair < TILE * PAGES && page < n;
    if (mine) {
        vec4 four = weights[place];
        [[unroll]] for (uint g = 1; g < 4; g++) {
            vec4 next = weights[place + g * 4];
            four = vec4(max_(four.x, next.x), max_(four.y, next.y), max_(four.z, next.z), max_(four.w, next.w));
        }
        by_lane[me].x = max_(max_(four.x, four.y), max_(four.z, four.w));
    }
    barrier();
    if (me < TILE) {
        for (uint j = 0; j < n; j++) {
            uint at = me * PAGES + j;
            top_before[at] = top;
            if (sees(me, first + j)) {
                [[unroll]] for (uint i = 0; i < 4; i++) {
                    top = max_(by_lane[at * 4 + i].x, top);
                }
            }
            top_with[at] = top;
        }
    }
    barrier();
    if (mine) {
        bool sees_some = sees(query, first + page);
        float greatest = top_with[pair];
        vec4 of_lanes[4];
        for (uint g = 0; g < 4; g++) {
            vec4 x = weights[place + g * 4];
            x = sees_some ? x - greatest : vec4(-INFINITE);
            of_lanes[g] = vec4(exp_(x.x), exp_(x.y), exp_(x.z), exp_(x.w));
            weights[place + g * 4] = of_lanes[g];
        }
        by_lane[me] = (of_lanes[0] + of_lanes[1]) + (of_lanes[2] + of_lanes[3]);
        if (lane == 0) {
            correction[pair] = sees_some ? exp_(top_before[pair] - greatest) : 1.0;
        }
    }
    barrier();
    if (me < TILE) {
        for (uint j = 0; j < n; j++) {
            uint at = me * PAGES + j;
            if (sees(me, first + j)) {
                float sum = fold(by_lane[at * 4], by_lane[at * 4 + 1], by_lane[at * 4 + 2], by_lane[at * 4 + 3]);
                total = total * correction[at] + sum;
            }
        }
    }
}

vec4 four_of_value(uint64_t head, uint pos, uint four) {
    uint64_t plane = IN_KEYS ? head : head + places.values;
    vec4 value = four_codes(plane, pos * ((IN_KEYS ? K_STRIDE : V_STRIDE) / 4) + four);
    if (TYPE == Q8_0) {
        uint64_t scales = head + (IN_KEYS ? places.key_scales : places.value_scales);
        value = value * scale_at(scales, four / (SCALE_ELEMS / 4), pos);
    }
    return value;
}

// Adds the weighted values of the `n` pages from place `first` on.
void add_values(uint first, uint n) {
    uint four = me % VALUE_FOURS, query = me / VALUE_FOURS;
    if (query >= BESIDE) {
        return;
    }
    uint last = tile.n_queries - 1;
    for (uint page = 0; page < n; page++) {
        uint64_t head = head_address(first + page);
        // Queries come by ascending position. Positions that all of them see come first.
        uint by_all = sees(last, first + page) ? n_seen(0, first + page) : 0;
        // Windows may begin behind the page for the last of them.
        uint end = 0;
        for (uint q = 0; q <= last; q++) {
            end = max(end, n_seen(q, first + page));
        }
        uint places[SUMS];
        [[unroll]] for (uint s = 0; s < SUMS; s++) {
            uint q = min(query + s * BESIDE, TILE - 1);
            places[s] = q * FOURS + page * PAGE_FOURS;
            sums[s] = sums[s] * correction[q * PAGES + page];
        }
        uint pos = 0;
        for (; pos + 4 <= by_all; pos += 4) {
            vec4 values[4];
            [[unroll]] for (uint j = 0; j < 4; j++) {
                values[j] = four_of_value(head, pos + j, four);
            }
            [[unroll]] for (uint s = 0; s < SUMS; s++) {
                vec4 weight = weights[places[s] + pos / 4];
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    sums[s] = values[j] * weight[j] + sums[s];
                }
            }
        }
        for (; pos < end; pos++) {
            vec4 value = four_of_value(head, pos, four);
            [[unroll]] for (uint s = 0; s < SUMS; s++) {
                uint q = min(query + s * BESIDE, TILE - 1);
                if (pos < n_seen(q, first + page)) {
                    sums[s] = value * weights[places[s] + pos / 4][pos % 4] + sums[s];
                }
            }
        }
    }
}

// Where the state of a query is.
Floats state(uint64_t span, uint query) {
    uint64_t number = (span * push.n_kv_head + kv_head) * TILE + query;
    return at(push.states, number * (STATE_HEAD + V_STRIDE));
}

void main() {
    uint span = line() / push.n_kv_head;
    if (span >= push.n_spans) {
        return;
    }
    kv_head = line() % push.n_kv_head;
    tile = push.tiles.v[push.spans.v[span]];
    places = head_places(DK, DV);
    if (LISTED) {
        list = page_list(push.lists, tile, kv_head, push.most);
    }
    [[unroll]] for (uint s = 0; s < SUMS; s++) {
        sums[s] = vec4(0.0);
    }
    load_queries();
    barrier();
    last_page = (max(seen_end[tile.n_queries - 1], 1) - 1) / KV_PAGE;
    uint in_sequence = tile.first_span + span - tile.first_state;
    uint n_pages = LISTED ? list.v[0] : (seen_end[tile.n_queries - 1] + KV_PAGE - 1) / KV_PAGE;
    uint page = max(seen_first[0] / KV_PAGE, in_sequence * SPAN_PAGES);
    uint end = min((in_sequence + 1) * SPAN_PAGES, n_pages);
    float top = -INFINITE, total = 0.0;
    while (page < end) {
        uint n = min(PAGES, end - page);
        score_pages(page, n);
        barrier();
        weigh(page, n, top, total);
        add_values(page, n);
        barrier();
        page += n;
    }
    if (me < tile.n_queries) {
        Floats to = state(span, me);
        to.v[0] = top;
        to.v[1] = total;
    }
    uint four = me % VALUE_FOURS, query = me / VALUE_FOURS;
    [[unroll]] for (uint s = 0; s < SUMS; s++) {
        uint q = query + s * BESIDE;
        if (query < BESIDE && q < tile.n_queries) {
            FourFloats(uint64_t(state(span, q))).v[STATE_HEAD / 4 + four] = sums[s];
        }
    }
}
