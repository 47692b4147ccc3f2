//! What a hostile chat template takes. An allocator that counts says how many bytes a rendering held at most, how many
//! allocations it made, and how long these were in all. No clock is looked at.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use brigade_text::{ChatTemplate, TemplateInput, TemplateTokens, TextError};
use serde_json::{Value as Json, json};

/// Most bytes that a rendering holds for a request of ordinary size.
const MAX_HELD: u64 = 64 << 20;
/// Most allocations of a rendering. A list that is walked through takes one, and so does most of what is made.
const MAX_CALLS: u64 = 8_000_000;
/// Most bytes that a rendering allocates, one after the other.
const MAX_ALLOCATED: u64 = 1 << 30;

/// What a thread has allocated.
#[derive(Clone, Copy, Default)]
struct Taken {
    held: i64,
    most_held: i64,
    calls: u64,
    bytes: u64,
}

thread_local! {
    static TAKEN: Cell<Taken> = const { Cell::new(Taken { held: 0, most_held: 0, calls: 0, bytes: 0 }) };
}

/// The system's allocator, with a count for each thread.
struct Counting;

fn count(change: i64) {
    // Fails only while the thread ends, when the count is over.
    let _ = TAKEN.try_with(|taken| {
        let mut now = taken.get();
        now.held += change;
        now.most_held = now.most_held.max(now.held);
        now.calls += u64::from(change > 0);
        now.bytes += change.max(0) as u64;
        taken.set(now);
    });
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting does not allocate, as the thread-local
// is initialised at compile time and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` took on this thread.
fn taken_by<T>(work: impl FnOnce() -> T) -> (T, Taken) {
    let before = TAKEN.get().held;
    TAKEN.set(Taken { held: before, most_held: before, ..Taken::default() });
    let result = work();
    let taken = TAKEN.get();
    (result, Taken { most_held: taken.most_held - before, ..taken })
}

#[test]
fn the_count_counts() {
    let ((), taken) = taken_by(|| drop(std::hint::black_box(vec![0_u8; 1 << 20])));
    assert!(taken.most_held >= 1 << 20 && taken.calls >= 1 && taken.bytes >= 1 << 20);
    assert_eq!(taken_by(|| ()).1.calls, 0);
}

/// Compiles and renders a template over a conversation of ordinary size, and looks at what that took.
fn render(source: &str) -> Result<usize, TextError> {
    let messages: Vec<Json> = (0..20)
        .map(|i| json!({ "role": "user", "content": "some words \n".repeat(10), "n": i, "list": [1, [2, {"a": 3}]] }))
        .collect();
    let (result, taken) = taken_by(|| {
        let template = ChatTemplate::from_source(source, TemplateTokens::default())?;
        let input = TemplateInput { messages: &messages, ..TemplateInput::default() };
        template.render(&input).map(|text| text.len())
    });
    let Taken { most_held, calls, bytes, .. } = taken;
    println!(
        "{:4} MB held at most, {:5} MB and {:5} thousand allocations in all: {source:.100} {result:.100?}",
        most_held >> 20,
        bytes >> 20,
        calls / 1000
    );
    assert!(most_held <= MAX_HELD as i64, "{most_held} bytes held: {source}");
    assert!(calls <= MAX_CALLS, "{calls} allocations: {source}");
    assert!(bytes <= MAX_ALLOCATED, "{bytes} bytes allocated: {source}");
    result
}

/// Each of these is repeated as often as the instructions allow. It is refused before.
fn refused(bodies: &[&str]) {
    for body in bodies {
        let source = format!(
            "{{% set big = messages[0].content * 60000 %}}{{% set ns = namespace(x='abab', l=[1], m=[], t='') %}}{body}"
        );
        let why = match render(&source) {
            Ok(len) => panic!("{body}: {len} bytes"),
            Err(error) => error.to_string(),
        };
        assert!(why.contains("limit") || why.contains("too large"), "{body}: {why}");
    }
}

/// The words for a step that is repeated.
fn repeated(steps: &[&str]) {
    for step in steps {
        let body = format!(
            "{{% for i in range(100000) %}}{{% for j in range(100) %}}{step}{{% endfor %}}{{% endfor %}}"
        );
        refused(&[&body]);
    }
}

#[test]
fn texts_that_grow_unprinted() {
    repeated(&[
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x * 3 %}",
        "{% set ns.x = ns.x|replace('a', ns.x) %}",
        "{% set ns.x = ns.x.replace('', ns.x) %}",
        "{% set ns.x = [ns.x, ns.x, ns.x]|join(ns.x) %}",
        "{% set ns.x = ns.x.join([1, 2, 3]) %}",
        "{% set ns.x = '%s%s'|format(ns.x, ns.x) %}",
        "{% set ns.x = '{0}{0}'.format(ns.x) %}",
        "{% set ns.x = '%s%s' % (ns.x, ns.x) %}",
        "{% set ns.x = (ns.x ~ '\\n' ~ ns.x)|indent(40) %}",
        "{% set ns.x = ([ns.x, '\"', '\\n'] * 2)|tojson(indent=4) %}",
        "{% set ns.x = {'a': ns.x, 'b': ns.x}|tojson(sort_keys=true) %}",
        "{% set ns.x = (ns.x ~ '<\"')|e ~ ns.x %}",
        "{% set ns.x = ((ns.x ~ 'ŉΐ')|upper) * 2 %}",
        "{% set ns.x = [ns.x, ns.x]|string %}",
        "{% set ns.x = [ns.x, ns.x]|sum(start='') %}",
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
        "{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}{% set ns.x = m(ns.x) %}",
        "{% set y %}{% autoescape true %}{{ ns.x ~ '\"\"' }}{{ ns.x }}{% endautoescape %}{% endset %}{% set ns.x = y ~ '' %}",
    ]);
}

#[test]
fn lists_that_grow_unprinted() {
    repeated(&[
        "{% set ns.l = ns.l + ns.l %}",
        "{% set ns.l = ns.l * 3 %}",
        "{% set ns.l = (1, 2) * 90000000 %}",
        "{% set ns.l = ns.l + [ns.l] %}",
        "{% set ns.l = [ns.l, ns.l] %}",
        "{% set ns.l = {'a': ns.l, 'b': ns.l} %}",
        "{% set ns.l = dict(a=ns.l, b=ns.l) %}",
        "{% set ns.l = (ns.l, ns.l) %}",
        "{% set ns.l = ns.l + ns.l|map('string')|list %}",
        "{% set ns.l = ns.l + [{'a': [i], 'b': {'c': j}}] %}",
        "{% set ns.l = ns.l + [big[j:]] %}",
        "{% set ns.l = ns.l + [big ~ j] %}",
        "{% set ns.l = ns.l + [big.split('o')] %}",
        "{% set ns.l = ns.l + [big|list] %}",
        "{% set ns.l = ns.l + [joiner(big ~ j)] %}",
        "{% set ns.l = ns.l + [cycler(*range(1000))] %}",
        "{% set ns.l = ns.l + [dict(**messages[0])] %}",
        "{% macro m() %}{{ i }}{{ j }}{% endmacro %}{% set ns.t = m %}",
        "{% set ns.t %}{% endset %}{% set ns.l = ns.l + [ns.t ~ 'a text that is not short'] %}",
        "{% set ns.l = ns.l + [ns.l|batch(2)|list, ns.l|slice(3)|list] %}",
        "{% set ns.l = ns.l + [ns.l[0:], ns.l[::-1], ns.l|reverse] %}",
        "{% do ns.m.append(ns.m|list) %}{% set ns.m = [] %}{% do ns.m.append([]) %}{% do ns.m.extend(range(1000)) %}{% set ns.l = ns.l + [ns.m] %}",
    ]);
}

/// Names take memory each time that a macro or a loop enters itself, or that a macro keeps them.
#[test]
fn names_of_values() {
    let reads: String = (0..1000).map(|i| format!("{{{{ v{i} }}}}")).collect();
    let sets: String = (0..1000).map(|i| format!("{{%set v{i}=1%}}")).collect();
    let attributes: String = (0..1000).map(|i| format!("{{%set q.v{i}=1%}}")).collect();
    for body in [
        format!(
            "{{% for i in range(100000) %}}{{% for j in [1] %}}{{% macro m() %}}{reads}{{% endmacro %}}{{% endfor %}}\
             {{% endfor %}}"
        ),
        format!("{{% for n in [1, 2] recursive %}}{sets}{{{{ loop([1, 2]) }}}}{{% endfor %}}"),
        format!("{{% macro m(n) %}}{sets}{{{{ m(n + 1) }}}}{{% endmacro %}}{{{{ m(0) }}}}"),
        format!(
            "{{% macro m(n) %}}{{% set q = namespace() %}}{attributes}{{{{ m(n + 1) }}}}{{% endmacro %}}{{{{ m(0) }}}}"
        ),
    ] {
        refused(&[&body]);
    }
}

#[test]
fn single_steps_that_make_much() {
    refused(&[
        "{{ 'ab' * 90000000 }}",
        "{{ messages[0].role * 20000000 }}",
        "{{ (messages[0].n, 1) * 90000000 }}",
        "{{ messages * 90000000 }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ 'a\\nb'|indent(1000000000) }}",
        "{{ [1]|batch(1000000000, 0)|list }}",
        "{{ [1]|slice(1000000000)|list }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ (big|e) ~ (big|tojson) ~ big }}",
        "{{ ('\"' * 10000000)|e }}",
        "{{ ('ΐ' * 5000000)|upper }}",
        "{{ ([1] * 500000)|tojson(sort_keys=true) }}",
        "{{ strftime_now('%A' * 2000000) }}",
        "{{ (messages * 10000)|sort(attribute='a,' * 10000) }}",
        "{{ (messages * 20000)|groupby('role')|list|length }}{{ (messages * 20000)|map('tojson')|list }}",
    ]);
}

/// These make little or nothing: they look at much.
#[test]
fn steps_that_look_at_much() {
    let nested = "{% set ns.m = 1 %}{% for k in range(14) %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}\
        {% set a = [ns.m, 1] %}{% set b = [ns.m, 2] %}{% set z = ns.m|list %}";
    for step in [
        // Lists of lists.
        "{% set ns.t = [ns.m] %}",
        "{% set ns.t = {'a': ns.m} %}",
        "{% set ns.t = [ns.m, i] == [z, j] %}",
        "{% if z == ns.m %}{% endif %}",
        "{% if z < ns.m %}{% endif %}",
        "{% if 1 < z < ns.m %}{% endif %}",
        "{% if z in [1, ns.m] %}{% endif %}",
        "{% if z is eq ns.m %}{% endif %}",
        "{% if [1, z] is in [ns.m, [1]] %}{% endif %}",
        "{% if [z]|select('eq', ns.m)|list %}{% endif %}",
        "{% if [z]|reject('ne', ns.m)|list %}{% endif %}",
        "{% if z|count == 1 or z.count(ns.m) %}{% endif %}",
        "{% if [z].index(ns.m) %}{% endif %}",
        "{% if ({1: 2}).get(z) %}{% endif %}",
        "{% if ({1: 2})[z] %}{% endif %}",
        "{% if z in {1: 2} %}{% endif %}",
        "{% if [z, ns.m]|sort %}{% endif %}",
        "{% if [z, ns.m]|unique|list %}{% endif %}",
        "{% if [z, ns.m]|max %}{% endif %}",
        "{% if loop.changed(z) %}{% endif %}{% if loop.changed(z|list) %}{% endif %}",
        "{% if z|wordcount %}{% endif %}",
        "{% if z is startingwith 'x' %}{% endif %}",
        // Long texts.
        "{% if big|length %}{% endif %}",
        "{% if big == big ~ '' %}{% endif %}",
        "{% if 'zz' in big %}{% endif %}",
        "{% if big in [big] %}{% endif %}",
        "{% if big.find('zz') %}{% endif %}",
        "{% if big.count('zz') %}{% endif %}",
        "{% if big.isprintable() %}{% endif %}",
        "{% if big is lower %}{% endif %}",
        "{% if big[-1] %}{% endif %}",
        "{% if big[-1:] %}{% endif %}",
        "{% if big|wordcount %}{% endif %}",
        "{% if big|last %}{% endif %}",
        "{% if ({'a': 1})[big] %}{% endif %}",
        "{% if ({'a': 1}).get(big) %}{% endif %}",
        "{% if big.strip('abcdefghijklmnopqrstuvwxyz \\n') %}{% endif %}",
        "{% if big|trim(big) %}{% endif %}",
        "{% if big.startswith((big, big)) %}{% endif %}",
        "{% if big.split('q', 1) %}{% endif %}",
        // Long lists.
        "{% for q in messages * 2000 %}{% break %}{% endfor %}",
        "{% if (messages * 2000)|last %}{% endif %}",
        "{% if dict(**messages[0]) %}{% endif %}",
    ] {
        let body = format!(
            "{nested}{{% for i in range(100000) %}}{{% for j in range(100) %}}{step}{{% endfor %}}{{% endfor %}}"
        );
        refused(&[&body]);
    }
    // A list that grows is copied for each look at all of it.
    refused(&[
        "{% set ns.m = [] %}{% do ns.m.extend(range(60000)) %}{% for i in range(100000) %}{% for j in range(100) %}\
         {% for q in ns.m %}{% break %}{% endfor %}{% endfor %}{% endfor %}",
        "{% set ns.m = [] %}{% do ns.m.extend(range(60000)) %}{% for i in range(100000) %}{% for j in range(100) %}\
         {% do ns.m.insert(0, ns.m.pop(0)) %}{% endfor %}{% endfor %}",
        "{% set ns.m = [] %}{% do ns.m.extend(range(60000)) %}{% for i in range(100000) %}{% for j in range(100) %}\
         {% if ns.m|first %}{% endif %}{% endfor %}{% endfor %}",
        "{% set ns.m = [] %}{% do ns.m.extend(range(60000)) %}{% for i in range(100000) %}{% for j in range(100) %}\
         {% if ns.m|length and ns.m %}{% endif %}{% endfor %}{% endfor %}",
    ]);
}
