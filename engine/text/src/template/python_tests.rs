//! Tests of Python's strings and of Jinja, against their output in Jinja itself; and of a template's own bytes.

use serde_json::json;

use super::*;

fn render(source: &str) -> String {
    let template = ChatTemplate::from_source(source, TemplateTokens::default()).unwrap();
    let messages = [json!({ "role": "user", "content": "a\r\nb" })];
    let kwargs = json!({ "m": { "role": "user" } });
    let input = TemplateInput {
        messages: &messages,
        kwargs: kwargs.as_object(),
        ..TemplateInput::default()
    };
    template.render(&input).unwrap_or_else(|e| panic!("{source}: {e}"))
}

/// Sources, and what Jinja 3.1 under Python 3 makes of them.
const CASES: &[(&str, &str)] = &[
    ("{{ '%s-%d' % (m.role, 1) }}", "user-1"),
    ("{{ '%s' % m.role }}", "user"),
    ("{{ '%05.1f|%-4s|%x' % (2.25, 'a', 255) }}", "002.2|a   |ff"),
    ("{{ '%(a)s' % {'a': m.role} }}", "user"),
    ("{{ '%s' % [1, 2] }}", "[1, 2]"),
    ("{{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 % 2 }} {{ true % 2 }}", "1 2 -2 1.5 1"),
    ("{{ 'a-b-c'.rsplit('-', 1) }}", "['a-b', 'c']"),
    ("{{ 'a-b-c'.rsplit('-') }}", "['a', 'b', 'c']"),
    ("{{ 'a-b-c'.split('-', maxsplit=1) }}", "['a', 'b-c']"),
    ("{{ ' a  b c '.rsplit(none, 1) }}", "[' a  b', 'c']"),
    ("{{ ' a  b c '.split(none, 1) }}", "['a', 'b c ']"),
    ("{{ ' a  b '.split() }}", "['a', 'b']"),
    ("{{ ''.split() }}{{ ''.split('x') }}", "[]['']"),
    ("{{ 'a b'.split(sep='b') }}", "['a ', '']"),
    ("{{ 'a=b=c'.partition('=') }}", "('a', '=', 'b=c')"),
    ("{{ 'a=b=c'.rpartition('=') }}", "('a=b', '=', 'c')"),
    ("{{ 'abc'.partition('=')[0] }}", "abc"),
    ("{{ 'abc'.rpartition('=')[2] }}", "abc"),
    (
        "{{ 'héllo'.find('l') }} {{ 'héllo'.find('l', 3) }} {{ 'héllo'.rfind('l', 0, 3) }} {{ 'abc'.find('z') }} {{ 'abab'.index('b') }} {{ 'abab'.rindex('b') }}",
        "2 3 2 -1 1 3",
    ),
    (
        "{{ 'abab'.count('a') }} {{ 'abab'.count('a', 1) }} {{ 'ab'.count('') }} {{ 'abc'.find('c', -1) }}",
        "2 1 3 2",
    ),
    (
        "{{ 'abc'.startswith('b', 1) }} {{ 'abc'.endswith('b', 0, 2) }} {{ 'abc'.startswith(('x', 'a')) }}",
        "True True True",
    ),
    (
        "{{ 'ab'.center(5, '*') }}|{{ 'abc'.center(6, '*') }}|{{ 'ab'.ljust(4) }}|{{ 'ab'.rjust(4, '0') }}|{{ 'toolong'.ljust(2) }}",
        "**ab*|*abc**|ab  |00ab|toolong",
    ),
    ("{{ '42'.zfill(5) }} {{ '-42'.zfill(5) }} {{ 'a\tb'.expandtabs(4) }}|", "00042 -0042 a   b|"),
    (
        "{{ 'aBc'.swapcase() }} {{ 'Straße'.casefold() }} {{ \"they're bill's\".title() }} {{ 'They Are'.istitle() }} {{ 'x1'.isidentifier() }} {{ '12'.isdecimal() }} {{ 'a\n'.isprintable() }}",
        "AbC strasse They'Re Bill'S True True True False",
    ),
    (
        "{{ 'a\r\nb\u{b}c\n'.splitlines() | length }} {{ 'a\nb\n'.splitlines(true) | length }} {{ 'a\n\nb'.splitlines() }}",
        "3 2 ['a', '', 'b']",
    ),
    ("{{ 'prefix-x'.removeprefix('prefix-') }}{{ 'x.y'.removesuffix('.y') }}", "xx"),
    ("{{ [1, 2, 3].index(2) }} {{ {'a': 1}.copy() }} {{ [1].copy() }}", "1 {'a': 1} [1]"),
    ("{% set j = joiner(',') %}{% for x in [1, 2, 3] %}{{ j() }}{{ x }}{% endfor %}", "1,2,3"),
    ("{% set j = joiner() %}{{ j() }}a{{ j() }}b", "a, b"),
    (
        "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.current }}",
        "ababa",
    ),
    (
        "{{ 'ab'|center(5) }}|{{ 'a b, c'|wordcount }} {{ 'a long text here'|truncate(10) }} {{ '<b>x</b>  y'|striptags }}",
        "  ab |3 a long... x y",
    ),
    (
        "{% set l = [] %}{% set _ = l.extend([1, 2]) %}{% set _ = l.insert(0, 0) %}{{ l }}",
        "[0, 1, 2]",
    ),
];

#[test]
fn strings_have_pythons_methods() {
    let mut wrong = Vec::new();
    for &(source, want) in CASES {
        let got = render(source);
        if got != want {
            wrong.push(format!("{source}\n  got  {got}\n  want {want}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn line_ends_of_a_template_are_line_feeds_and_those_of_messages_stay() {
    let source =
        "{% for m in messages %}\n<{{ m.role }}>\n{{ 'x\ny' }}{{ m.content }}\n{% endfor %}\n";
    let want = "<user>\nx\nya\r\nb\n";
    for end in ["\n", "\r\n", "\r"] {
        let written = source.replace('\n', end);
        assert_eq!(render(&written), want, "{end:?}");
        assert_eq!(render(&format!("\u{feff}{written}")), want, "a byte order mark is no text");
    }
}

#[test]
fn what_grows_has_its_limits() {
    for source in [
        "{{ 'x'.center(1000000000) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x'.zfill(1000000000) }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ 'x\t'.expandtabs(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
    ] {
        let template = ChatTemplate::from_source(source, TemplateTokens::default()).unwrap();
        let why = template.render(&TemplateInput::default()).unwrap_err();
        assert!(why.is_limit(), "{source}: {why}");
    }
    for source in ["{{ cycler([1]) }}", "{{ cycler() }}", "{{ 1 % 0 }}", "{{ [] % 2 }}"] {
        let template = ChatTemplate::from_source(source, TemplateTokens::default()).unwrap();
        assert!(template.render(&TemplateInput::default()).is_err(), "{source}");
    }
}
