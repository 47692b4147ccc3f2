//! Memory of the machine that a hostile chat template takes. This is a process of its own. It renders the worst
//! templates that are known, and looks at the most that it ever held.

#![cfg(target_os = "linux")]

use brigade_text::{ChatTemplate, TEMPLATE_BYTES, TemplateInput, TemplateTokens};

/// Bound on the memory in units of the counted text and lists. Beyond these there are copies while a step is done, and
/// growing buffers of up to twice their contents.
const FACTOR: u64 = 4;

/// The most that this process has held, in bytes.
fn most_held() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line of it");
    let kilobytes = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
    kilobytes << 10
}

#[test]
fn a_hostile_template_holds_no_more_than_its_limit_allows() {
    let before = most_held();
    let setup = "{% set ns = namespace(x='ab', l=[], t='') %}";
    for body in [
        "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% for i in range(60) %}{% set ns.x = ns.x|replace('a', ns.x) %}{% endfor %}",
        "{% for i in range(60) %}{% set ns.x = ns.x.join([1, 2, 3]) %}{% endfor %}",
        "{% for i in range(20) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}\
         {% for i in range(100000) %}{% set ns.l = ns.l + [ns.x ~ i] %}{% endfor %}",
        "{% for i in range(20) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}\
         {% for i in range(100000) %}{% set ns.l = ns.l + [ns.x[1:]] %}{% endfor %}",
        "{% for i in range(60) %}{% set ns.l = ns.l + ns.l + [i] %}{% endfor %}",
        "{% for i in range(60) %}{% set ns.l = [ns.l, ns.l, ns.x] %}{% endfor %}{{ ns.l }}",
        "{% for i in range(100000) %}{% set ns.l = ns.l + [{'a': [i], 'b': {'c': i}}] %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(1000) %}{% macro m() %}{{ i }}{{ j }}{% endmacro %}\
         {% set ns.t = m %}{% endfor %}{% endfor %}",
        "{% set y %}{% for i in range(100000) %}{% for j in range(1000) %}0123456789{% endfor %}{% endfor %}{% endset %}",
        "{% for i in range(22) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x.split('a') }}",
        "{% for i in range(22) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x|list|length }}{{ ns.x|list|length }}",
        "{% set l = [1] * 100000 %}{% for i in range(1000) %}{% set ns.l = ns.l + [l + [i]] %}{% endfor %}",
        "{% set ns.l = [1] %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}\
         {% set ns.t = [ns.t, ns.l, ns.l * 1, ns.l[0:]] %}{% endfor %}",
        "{% set y = 'abcdefghijklmnop' * 65536 %}{% set ns.l = ([y] * 2000)|map('upper')|list %}",
        "{% set ns.l = (messages * 2000000)|batch(1)|list %}",
        "{% set y = (messages[0] * 20000000) %}{% set ns.l = y.split('a') %}",
        "{% set y = (messages[0] * 20000000) %}{% set ns.l = y|list %}",
        "{% set y = 'abcdefghijklmnopqrstuvwxyz,' * 600000 %}{% for i in range(99) %}{% set ns.l = ns.l + [y.split(',')] %}{% endfor %}",
        "{{ 'ab' * 8000000 }}{% set y = messages[0] * 45000000 %}",
    ] {
        let source = format!("{setup}{body}");
        let template = ChatTemplate::from_source(&source, TemplateTokens::default()).unwrap();
        let messages = [serde_json::json!("ab")];
        let input = TemplateInput { messages: &messages, ..TemplateInput::default() };
        let result = template.render(&input).map(|text| text.len());
        println!("{:5} MB held at most after {body:.60}: {result:?}", most_held() >> 20);
    }
    let held = most_held() - before;
    assert!(held < FACTOR * TEMPLATE_BYTES, "{held} bytes, limit {TEMPLATE_BYTES}");
}
