// Attention of a tile's queries over one span of pages. The order of every sum is that of the CPU's kernel, `cpu/attention/paged.rs` of
// the engine: scores over the elements of a key in order (in sixteen running sums where keys are rows), weights in a page by a
// fixed tree, values over positions in order.
//
// A workgroup takes some pages at once: it scores their positions, finds each page's greatest score so far, makes weights of the
// scores, and adds the weighted values page by page.
//
// Memory takes some hundred cycles to answer, and sums have to wait for each other. So codes are read many at a time, before the first
// of them is used, and the first codes of what comes next while these are added.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "kv_page.glsl"
#include "page_codes.glsl"
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
// Codes that an invocation reads at once: fours, and single ones. Large tiles have other workgroups beside them to wait for.
const uint BATCH = TYPE == F32 || TILE > 4 ? 8 : 16;
const uint SINGLES = TILE > 4 ? 16 : 32;
// Elements of a value that an invocation adds, for some queries: the fewer, the more queries to a value that is read and decoded.
const uint WIDTH = V_STRIDE > 2 * GROUP ? 4 : 2;
const uint VALUE_PARTS = V_STRIDE / WIDTH;
// Queries that the workgroup sums side by side, and sums of an invocation: at least two, where there are so many.
const uint MOST_BESIDE = TILE > 1 ? TILE / 2 : 1;
const uint BESIDE = GROUP / VALUE_PARTS < MOST_BESIDE ? GROUP / VALUE_PARTS : MOST_BESIDE;
const uint SUMS = (TILE + BESIDE - 1) / BESIDE;
// Positions whose values an invocation reads at once.
const uint AHEAD = (TYPE == F16 && TILE <= 4 ? 32 : 16) * 2 / WIDTH;
const uint ROW_FOURS = K_STRIDE / 4;

// Queries as rows, filled up with zeros.
shared vec4 queries[TILE * ROW_FOURS];
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
// Of each page of the span: its number in the sequence, its number among all, and which positions are read of it.
shared uint page_numbers[SPAN_PAGES];
shared uint page_blocks[SPAN_PAGES];
shared uvec2 page_reads[SPAN_PAGES];
// Of each page in work: behind the positions that all queries see from its beginning, and behind the last one that any sees.
shared uint seen_by_all[PAGES];
shared uint seen_by_some[PAGES];

uint me = gl_LocalInvocationID.x;
// The last invocations have the least to do with values: each of them goes over the pages of one query.
uint my_query = me - (GROUP - TILE);
bool walks = me >= GROUP - TILE;
Tile tile;
uint kv_head;
HeadPlaces places;
// The weighted values so far: WIDTH elements each of some queries.
vec4 sums[SUMS];

// Query head of a query.
uint head_of(uint query) {
    return kv_head * push.group + (tile.first_query + query) % push.group;
}

// Row of a query in its part.
uint row_of(uint query) {
    return (tile.first_query + query) / push.group;
}

// Whether a position of the page at a place of the span is read at all.
bool is_read(uint place, uint pos) {
    return !LISTED || (page_reads[place][pos / 32] >> pos % 32 & 1) != 0;
}

// Whether a query sees positions of the page at a place.
bool sees(uint query, uint place) {
    uint page = page_numbers[place];
    return seen_first[query] < (page + 1) * KV_PAGE && seen_end[query] > page * KV_PAGE;
}

// Behind the last position that a query sees of the page at a place; 0 where it sees none.
uint n_seen(uint query, uint place) {
    return sees(query, place) ? min(seen_end[query] - page_numbers[place] * KV_PAGE, KV_PAGE) : 0;
}

uint64_t head_address(uint place) {
    return push.pool + uint64_t(page_blocks[place]) * push.page_bytes + kv_head * places.bytes;
}

// Four elements of a query, zeros behind its end.
vec4 four_of_query(uint query, uint first) {
    uint64_t row = tile.first_row + row_of(query);
    Floats q = at(push.q, (row * (push.n_kv_head * push.group) + head_of(query)) * DK);
    vec4 x;
    [[unroll]] for (uint j = 0; j < 4; j++) {
        x[j] = DK % LANES == 0 || first + j < DK ? q.v[first + j] : 0.0;
    }
    return x;
}

void load_queries() {
    const uint fours = TILE * ROW_FOURS, rounds = (fours + GROUP - 1) / GROUP;
    vec4 x[rounds];
    [[unroll]] for (uint k = 0; k < rounds; k++) {
        uint i = me + k * GROUP, query = i / ROW_FOURS, first = i % ROW_FOURS * 4;
        x[k] = vec4(0.0);
        if (query < tile.n_queries) {
            x[k] = four_of_query(query, first);
        }
    }
    [[unroll]] for (uint k = 0; k < rounds; k++) {
        uint i = me + k * GROUP;
        if (i < fours) {
            queries[i] = x[k];
        }
    }
    if (me < TILE) {
        bool is = me < tile.n_queries;
        uint row = row_of(me);
        seen_first[me] = is ? first_visible(tile.first_pos + row, push.window) : 0;
        seen_end[me] = is ? end_visible(tile, row, push.window) : 0;
    }
}

// Finds the pages at the places `begin..end`, the span's first place being `first`. Where not all pages are read, `list` has
// those that are.
void find_pages(uint first, uint begin, uint end, Uints list) {
    uint i = GROUP - 1 - me, place = first + i;
    if (i >= SPAN_PAGES || place < begin || place >= end) {
        return;
    }
    uint page = LISTED ? list.v[1 + 3 * place] : place;
    page_numbers[i] = page;
    page_blocks[i] = push.pages.v[tile.pages + page];
    if (LISTED) {
        page_reads[i] = uvec2(list.v[2 + 3 * place], list.v[3 + 3 * place]);
    }
}

// Products of `AT_ONCE` queries with the keys at four positions, where positions lie side by side.
void products_across(uint64_t head, uint four, uint query, out vec4 products[AT_ONCE]) {
    const bool whole = DK % BATCH == 0;
    [[unroll]] for (uint r = 0; r < AT_ONCE; r++) {
        products[r] = vec4(0.0);
    }
    for (uint i = 0; i < DK; i += BATCH) {
        uvec4 codes[BATCH];
        [[unroll]] for (uint j = 0; j < BATCH; j++) {
            codes[j] = four_codes(head, (whole ? i + j : min(i + j, DK - 1)) * PAGE_FOURS + four);
        }
        vec4 scale = vec4(1.0);
        if (TYPE == Q8_0) {
            scale = four_scales(head + places.key_scales, i / SCALE_ELEMS, four);
        }
        [[unroll]] for (uint g = 0; g < BATCH; g += 4) {
            vec4 keys[4];
            [[unroll]] for (uint j = 0; j < 4; j++) {
                keys[j] = decoded(codes[g + j]);
                keys[j] = TYPE == Q8_0 ? keys[j] * scale : keys[j];
            }
            [[unroll]] for (uint r = 0; r < AT_ONCE; r++) {
                vec4 q = queries[(query + r) * ROW_FOURS + (i + g) / 4];
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    if (whole || i + g + j < DK) {
                        products[r] = keys[j] * q[j] + products[r];
                    }
                }
            }
        }
    }
}

// The same with the key at one position.
void products_at(uint64_t head, uint pos, uint query, out float products[AT_ONCE]) {
    const bool whole = DK % SINGLES == 0;
    [[unroll]] for (uint r = 0; r < AT_ONCE; r++) {
        products[r] = 0.0;
    }
    for (uint i = 0; i < DK; i += SINGLES) {
        uint codes[SINGLES];
        [[unroll]] for (uint j = 0; j < SINGLES; j++) {
            codes[j] = one_code(head, (whole ? i + j : min(i + j, DK - 1)) * KV_PAGE + pos);
        }
        float scale = 1.0;
        if (TYPE == Q8_0) {
            scale = halves_to_floats(scale_bits(head + places.key_scales, i / SCALE_ELEMS, pos)).x;
        }
        [[unroll]] for (uint g = 0; g < SINGLES; g += 4) {
            if (whole || i + g < DK) {
                [[unroll]] for (uint r = 0; r < AT_ONCE; r++) {
                    vec4 q = queries[(query + r) * ROW_FOURS + (i + g) / 4];
                    [[unroll]] for (uint j = 0; j < 4; j++) {
                        float key = one_decoded(codes[g + j]);
                        key = TYPE == Q8_0 ? key * scale : key;
                        if (whole || i + g + j < DK) {
                            products[r] = key * q[j] + products[r];
                        }
                    }
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
    const uint some = 8;
    const bool whole = ROW_FOURS % some == 0;
    vec4 lanes[AT_ONCE * 4];
    [[unroll]] for (uint i = 0; i < AT_ONCE * 4; i++) {
        lanes[i] = vec4(0.0);
    }
    for (uint i = 0; i < ROW_FOURS; i += some) {
        uvec4 codes[some];
        [[unroll]] for (uint j = 0; j < some; j++) {
            codes[j] = four_codes(head, pos * ROW_FOURS + (whole ? i + j : min(i + j, ROW_FOURS - 1)));
        }
        float scale = 1.0;
        if (TYPE == Q8_0) {
            scale = halves_to_floats(scale_bits(head + places.key_scales, i / (SCALE_ELEMS / 4), pos)).x;
        }
        [[unroll]] for (uint j = 0; j < some; j++) {
            if (whole || i + j < ROW_FOURS) {
                vec4 key = decoded(codes[j]);
                key = TYPE == Q8_0 ? key * scale : key;
                [[unroll]] for (uint r = 0; r < AT_ONCE; r++) {
                    vec4 q = queries[(query + r) * ROW_FOURS + i + j];
                    lanes[r * 4 + j % 4] = key * q + lanes[r * 4 + j % 4];
                }
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

// The score of a query at a position of the page at a place, or that of nothing.
float score_at(uint place, uint pos, float product, uint query) {
    float x = score(product, query, page_numbers[place] * KV_PAGE + pos);
    return is_read(place, pos) ? x : -INFINITE;
}

// Scores of the `n` pages from place `first` on, four positions to an invocation.
void score_fours(uint first, uint n) {
    uint four = me % FOURS, query = me / FOURS * AT_ONCE;
    if (four >= n * PAGE_FOURS) {
        return;
    }
    uint place = first + four / PAGE_FOURS, in_page = four % PAGE_FOURS;
    vec4 products[AT_ONCE];
    products_across(head_address(place), in_page, query, products);
    [[unroll]] for (uint r = 0; r < AT_ONCE; r++) {
        vec4 scores;
        [[unroll]] for (uint j = 0; j < 4; j++) {
            scores[j] = score_at(place, in_page * 4 + j, products[r][j], query + r);
        }
        weights[(query + r) * FOURS + four] = scores;
    }
}

// The same with one position to an invocation.
void score_singles(uint first, uint n) {
    uint positions = n * KV_PAGE;
    for (uint i = me; i < positions * (TILE / AT_ONCE); i += GROUP) {
        uint at = i % positions, query = i / positions * AT_ONCE;
        uint place = first + at / KV_PAGE, pos = at % KV_PAGE;
        float products[AT_ONCE];
        if (IN_KEYS) {
            products_in_rows(head_address(place), pos, query, products);
        } else {
            products_at(head_address(place), pos, query, products);
        }
        [[unroll]] for (uint r = 0; r < AT_ONCE; r++) {
            weights[(query + r) * FOURS + at / 4][at % 4] = score_at(place, pos, products[r], query + r);
        }
    }
}

void score_pages(uint first, uint n) {
    // Few positions are enough for all invocations only one by one.
    if (IN_KEYS || n * KV_PAGE * (TILE / AT_ONCE) <= GROUP) {
        score_singles(first, n);
    } else {
        score_fours(first, n);
    }
}

// Finds what queries see of page `page` of those from place `first` on.
void look_at_page(uint first, uint page) {
    uint last = tile.n_queries - 1;
    // Queries come by ascending position. Positions that all of them see come first.
    seen_by_all[page] = sees(last, first + page) ? n_seen(0, first + page) : 0;
    // Windows may begin behind the page for the last of them.
    uint end = 0;
    [[unroll]] for (uint q = 0; q < TILE; q++) {
        end = max(end, n_seen(q, first + page));
    }
    seen_by_some[page] = end;
}

// Makes weights of the scores of the `n` pages from place `first` on. An invocation has four lanes of a query and page; those that
// walk have their query's greatest score `top` and sum of weights `total` over pages.
void weigh(uint first, uint n, inout float top, inout float total) {
    uint pair = me / 4, lane = me % 4;
    uint query = pair / PAGES, page = pair % PAGES;
    uint place = query * FOURS + page * PAGE_FOURS + lane;
    bool mine = pair < TILE * PAGES && page < n;
    vec4 scores[4];
    if (mine) {
        [[unroll]] for (uint g = 0; g < 4; g++) {
            scores[g] = weights[place + g * 4];
        }
        vec4 four = scores[0];
        [[unroll]] for (uint g = 1; g < 4; g++) {
            vec4 next = scores[g];
            four = vec4(max_(four.x, next.x), max_(four.y, next.y), max_(four.z, next.z), max_(four.w, next.w));
        }
        by_lane[me].x = max_(max_(four.x, four.y), max_(four.z, four.w));
    }
    if (me < n) {
        look_at_page(first, me);
    }
    barrier();
    if (walks) {
        for (uint j = 0; j < n; j++) {
            uint at = my_query * PAGES + j;
            float of_lanes[4];
            [[unroll]] for (uint i = 0; i < 4; i++) {
                of_lanes[i] = by_lane[at * 4 + i].x;
            }
            top_before[at] = top;
            if (sees(my_query, first + j)) {
                [[unroll]] for (uint i = 0; i < 4; i++) {
                    top = max_(of_lanes[i], top);
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
        [[unroll]] for (uint g = 0; g < 4; g++) {
            vec4 x = sees_some ? scores[g] - greatest : vec4(-INFINITE);
            of_lanes[g] = vec4(exp_(x.x), exp_(x.y), exp_(x.z), exp_(x.w));
            weights[place + g * 4] = of_lanes[g];
        }
        by_lane[me] = (of_lanes[0] + of_lanes[1]) + (of_lanes[2] + of_lanes[3]);
        if (lane == 0) {
            correction[pair] = sees_some ? exp_(top_before[pair] - greatest) : 1.0;
        }
    }
    barrier();
    if (walks) {
        for (uint j = 0; j < n; j++) {
            uint at = my_query * PAGES + j;
            float sum = fold(by_lane[at * 4], by_lane[at * 4 + 1], by_lane[at * 4 + 2], by_lane[at * 4 + 3]);
            if (sees(my_query, first + j)) {
                total = total * correction[at] + sum;
            }
        }
    }
}

// Part `part` of the values at AHEAD positions from `pos` on, as they are kept: codes, and behind them the bits of their scale.
void read_values(uint place, uint pos, uint part, out uvec4 codes[AHEAD]) {
    uint64_t head = head_address(place);
    uint64_t plane = IN_KEYS ? head : head + places.values;
    uint64_t scales = head + (IN_KEYS ? places.key_scales : places.value_scales);
    [[unroll]] for (uint j = 0; j < AHEAD; j++) {
        uint i = (pos + j) * ((IN_KEYS ? K_STRIDE : V_STRIDE) / WIDTH) + part;
        codes[j] = WIDTH == 4 ? four_codes(plane, i) : two_codes(plane, i);
        if (TYPE == Q8_0) {
            codes[j].y = scale_bits(scales, part / (SCALE_ELEMS / WIDTH), pos + j);
        }
    }
}

vec4 value_of(uvec4 codes) {
    vec4 value = decoded(codes);
    return TYPE == Q8_0 ? value * halves_to_floats(codes.y).x : value;
}

// Adds the weighted values of AHEAD positions that all queries see, whose weights are at `places` for each sum.
void add_all(uvec4 codes[AHEAD], uint places[SUMS]) {
    [[unroll]] for (uint g = 0; g < AHEAD; g += 4) {
        vec4 values[4];
        [[unroll]] for (uint j = 0; j < 4; j++) {
            values[j] = value_of(codes[g + j]);
        }
        [[unroll]] for (uint s = 0; s < SUMS; s++) {
            vec4 weight = weights[places[s] + g / 4];
            [[unroll]] for (uint j = 0; j < 4; j++) {
                sums[s] = values[j] * weight[j] + sums[s];
            }
        }
    }
}

// The same of positions of which each sum's query sees the first `seen` alone, and none sees more than `most`.
void add_seen(uvec4 codes[AHEAD], uint places[SUMS], uint seen[SUMS], uint most) {
    [[unroll]] for (uint g = 0; g < AHEAD; g += 4) {
        if (g < most) {
            [[unroll]] for (uint j = 0; j < 4; j++) {
                vec4 value = value_of(codes[g + j]);
                [[unroll]] for (uint s = 0; s < SUMS; s++) {
                    vec4 sum = value * weights[places[s] + g / 4][j] + sums[s];
                    sums[s] = g + j < seen[s] ? sum : sums[s];
                }
            }
        }
    }
}

// Adds the weighted values of the `n` pages from place `first` on.
void add_values(uint first, uint n) {
    uint part = me % VALUE_PARTS, query = me / VALUE_PARTS;
    if (query >= BESIDE) {
        return;
    }
    uvec4 next[AHEAD];
    read_values(first, 0, part, next);
    for (uint page = 0; page < n; page++) {
        uint by_all = seen_by_all[page], end = seen_by_some[page];
        uint places[SUMS], seen[SUMS];
        [[unroll]] for (uint s = 0; s < SUMS; s++) {
            uint q = min(query + s * BESIDE, TILE - 1);
            places[s] = q * FOURS + page * PAGE_FOURS;
            seen[s] = n_seen(q, first + page);
            sums[s] = sums[s] * correction[q * PAGES + page];
        }
        // A page of which nobody sees anything is gone over once too, for what comes behind it.
        for (uint pos = 0; pos == 0 || pos < end; pos += AHEAD) {
            uvec4 codes[AHEAD];
            [[unroll]] for (uint j = 0; j < AHEAD; j++) {
                codes[j] = next[j];
            }
            if (pos + AHEAD < end) {
                read_values(first + page, pos + AHEAD, part, next);
            } else if (page + 1 < n) {
                read_values(first + page + 1, 0, part, next);
            }
            if (pos + AHEAD <= by_all) {
                add_all(codes, places);
            } else {
                add_seen(codes, places, seen, end - min(pos, end));
            }
            [[unroll]] for (uint s = 0; s < SUMS; s++) {
                places[s] += AHEAD / 4;
                seen[s] -= min(seen[s], AHEAD);
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
    Uints list = push.lists;
    if (LISTED) {
        list = page_list(push.lists, tile, kv_head, push.most);
    }
    [[unroll]] for (uint s = 0; s < SUMS; s++) {
        sums[s] = vec4(0.0);
    }
    // What the first query sees begins first, and what the last one sees ends last.
    uint first_seen = first_visible(tile.first_pos + row_of(0), push.window);
    uint end_seen = end_visible(tile, row_of(tile.n_queries - 1), push.window);
    uint first = (tile.first_span + span - tile.first_state) * SPAN_PAGES;
    uint n_pages = LISTED ? list.v[0] : (end_seen + KV_PAGE - 1) / KV_PAGE;
    uint place = max(first_seen / KV_PAGE, first);
    uint end = min(first + SPAN_PAGES, n_pages);
    find_pages(first, place, end, list);
    load_queries();
    barrier();
    float top = -INFINITE, total = 0.0;
    while (place < end) {
        uint n = min(PAGES, end - place);
        score_pages(place - first, n);
        barrier();
        weigh(place - first, n, top, total);
        add_values(place - first, n);
        barrier();
        place += n;
    }
    if (walks && my_query < tile.n_queries) {
        Floats to = state(span, my_query);
        to.v[0] = top;
        to.v[1] = total;
    }
    uint part = me % VALUE_PARTS, query = me / VALUE_PARTS;
    [[unroll]] for (uint s = 0; s < SUMS; s++) {
        uint q = query + s * BESIDE;
        if (query < BESIDE && q < tile.n_queries) {
            [[unroll]] for (uint j = 0; j < WIDTH; j++) {
                state(span, q).v[STATE_HEAD + part * WIDTH + j] = sums[s][j];
            }
        }
    }
}
