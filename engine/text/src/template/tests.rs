//! Templates that grow, in every way that they can. Each is an error that names a limit, and takes little time and
//! memory. Real templates work as before.

use serde_json::{Value as Json, json};

use super::*;

fn render(source: &str, messages: &[Json]) -> Result<String, TextError> {
    let template = ChatTemplate::from_source(source, TemplateTokens::default())?;
    template.render(&TemplateInput { messages, ..TemplateInput::default() })
}

fn refusal(source: &str) -> String {
    let message = json!({ "role": "user", "content": "ab ab", "list": [1, 2, 3] });
    match render(source, &[message]) {
        Err(TextError::Template(why)) => why,
        other => panic!("{source}: {:?}", other.map(|text| text.len())),
    }
}

/// `step` 60 times over `ns.x`, which begins as `start`.
fn repeated(start: &str, step: &str) -> String {
    format!(
        "{{% set ns = namespace(x={start}) %}}{{% for i in range(60) %}}{step}{{% endfor %}}{{{{ ns.x|length }}}}"
    )
}

#[test]
fn texts_that_double_are_refused() {
    for step in [
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x * 2 %}",
        "{% set ns.x = 1000 * ns.x %}",
        "{% set ns.x = ns.x|replace('a', 'aa') %}",
        "{% set ns.x = ns.x|replace('a', ns.x) %}",
        "{% set ns.x = ns.x|replace('', ns.x) %}",
        "{% set ns.x = ns.x.replace('a', 'aa') %}",
        "{% set ns.x = ns.x.replace('a', ns.x) %}",
        "{% set ns.x = [ns.x, ns.x]|join %}",
        "{% set ns.x = [1, 2, 3]|join(ns.x) %}",
        "{% set ns.x = ns.x|join(ns.x) %}",
        "{% set ns.x = ns.x.join([1, 2, 3]) %}",
        "{% set ns.x = ns.x.join(ns.x) %}",
        "{% set ns.x = '%s%s'|format(ns.x, ns.x) %}",
        "{% set ns.x = '{0}{0}'.format(ns.x) %}",
        "{% set ns.x = [ns.x, ns.x]|sum(start='') %}",
        "{% set ns.x = [ns.x, ns.x]|string %}",
        "{% set ns.x = [ns.x, ns.x]|tojson %}",
        "{% set ns.x = {'a': ns.x, 'b': ns.x}|tojson(indent=4) %}",
        "{% set ns.x = (ns.x, ns.x) ~ '' %}",
        "{% set ns.x = ([ns.x, ns.x]|map('upper')|join)|lower %}",
        "{% set ns.x = ([ns.x, ns.x]|map('replace', 'a', 'aa')|join) %}",
        "{% set ns.x = (ns.x ~ '\\n' ~ ns.x)|indent(40) %}",
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
        "{% set y %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}{% set ns.x = y %}",
        "{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}{% set ns.x = m(ns.x) %}",
        "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}\
         {% set y %}{% call m() %}{{ ns.x }}{% endcall %}{% endset %}{% set ns.x = y %}",
        "{{ ns.x }}{% set ns.x = ns.x ~ ns.x %}",
    ] {
        let why = refusal(&repeated("'ab'", step));
        assert!(
            why.contains("the limit") || why.contains("repeated string is too large"),
            "{step}: {why}"
        );
    }
}

#[test]
fn lists_that_grow_are_refused() {
    for step in [
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x * 2 %}",
        "{% set ns.x = ns.x + ns.x|list %}",
        "{% set ns.x = [ns.x, ns.x] %}{% if i > 40 %}{{ ns.x }}{% endif %}",
        "{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% if i > 40 %}{{ ns.x|tojson }}{% endif %}",
        "{% set ns.x = dict(a=ns.x, b=ns.x) %}",
        "{% set ns.x = (ns.x, ns.x) %}",
    ] {
        let why = refusal(&repeated("[1]", step));
        assert!(why.contains("limit") || why.contains("too large"), "{step}: {why}");
    }
}

#[test]
fn single_steps_that_make_much_are_refused() {
    for source in [
        "{{ '%1000000000d'|format(1) }}",
        "{{ '%*d'|format(1000000000, 1) }}",
        "{{ '{:>1000000000}'.format('x') }}",
        "{{ '{:>{}}'.format('x', 1000000000) }}",
        "{{ 'a\\nb'|indent(1000000000) }}",
        "{{ 'a\\nb'|indent(width=1000000000) }}",
        "{{ [1]|batch(1000000000, 0)|list }}",
        "{{ [1]|slice(1000000000)|list }}",
        "{{ messages|tojson(indent=1000000000) }}",
        "{{ 'ab' * 100000000 }}",
        "{{ ('ab' ~ 'c') * (90000000 + 1) }}",
        "{{ [1] * 100000000 }}",
        "{% set x = messages[0].role * 100000000 %}{{ x|length }}",
        "{% set x = messages[0].list * 30000000 %}{{ x|length }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}0123456789{% endfor %}{% endfor %}",
        "{% set x %}{% for i in range(100000) %}{% for j in range(100) %}0123456789{% endfor %}{% endfor %}{% endset %}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% for x in [1, 2] recursive %}0123456789{{ loop([1, 2]) }}{% endfor %}",
        "{% set q = messages[0].role %}{% for i in range(100000) %}{% set ns2 = namespace(l=[q, q]) %}{% for j in range(100) %}{% set ns2.l = ns2.l + [q ~ j] %}{% endfor %}{% endfor %}",
    ] {
        let why = refusal(source);
        assert!(why.contains("limit") || why.contains("too large"), "{source}: {why}");
    }
}

/// Each template hides values in lists: it would take gigabytes at a few bytes for an item.
#[test]
fn items_that_are_made_with_their_lists_are_counted() {
    for source in [
        // A thousand copies of a text of a megabyte.
        "{% set x = 'abcdefghijklmnop' * 65536 %}{% set l = ([x] * 1000)|map('upper')|list %}{{ l|length }}",
        "{% set x = 'abcdefghijklmnop' * 65536 %}{% set l = ([x] * 1000)|map('replace', 'a', 'b')|list %}{{ l|length }}",
        // Millions of lists of one item, and of pairs.
        "{% set l = ([1] * 2000000)|batch(1)|list %}{{ l|length }}",
        "{% set l = ('abcdefghijklmnopqrstuvwxyz,' * 1200000).split(',') %}{{ l|length }}",
        "{% set l = ('abcdefghijklmnopqrstuvwxyz\n' * 1200000).splitlines() %}{{ l|length }}",
        "{% set l = ('abcdefghijklmnopqrstuvwxyz,' * 1200000)|split(',') %}{{ l|length }}",
        // Many lists of many items, all of them there at once.
        "{% set ns = namespace(l=[1] * 1000000, all=[0]) %}{% for i in range(1000) %}\
         {% set ns.all = ns.all + [ns.l + [i]] %}{% endfor %}{{ ns.all|length }}",
        "{% set ns = namespace(l=[1], all=[0]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}\
         {% set ns.all = ns.all + [ns.l, ns.l * 1, ns.l[0:]] %}{% endfor %}{{ ns.all|length }}",
    ] {
        let why = refusal(source);
        assert!(why.contains("limit"), "{source}: {why}");
    }
}

/// Dropping or writing these values would exhaust the stack.
#[test]
fn values_that_contain_themselves_or_nest_without_end_are_refused() {
    for source in [
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = {'a': ns} %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = dict(a=ns) %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = namespace(a=ns) %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = [1]|map(attribute='q', default=ns)|list %}{{ ns }}",
        "{% set ns = namespace(x=0) %}{% for i in range(100000) %}{% for j in [1] %}{% set ns.x = loop %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x=0) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{% set ns = namespace(x=0) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
        "{% set ns = namespace(x=[0]) %}{% for i in range(100000) %}{% set ns.x = ns.x|batch(1)|list %}{% endfor %}{{ ns.x }}",
        "{% set a = [] %}{% do a.append(a) %}{{ a }}",
        "{% set a = [] %}{% set b = [] %}{% do a.append(b) %}{% do b.append({'x': a}) %}{{ a }}",
        "{% set ns = namespace(a=[], b=0) %}{% for i in range(100000) %}{% set ns.b = [] %}{% do ns.a.append(ns.b) %}{% set ns.a = ns.b %}{% endfor %}",
    ] {
        let why = refusal(source);
        let named = ["limit", "may not"].iter().any(|word| why.contains(word));
        assert!(named, "{source}: {why}");
    }
}

/// Reading these sources takes a level of the stack for each link of a chain, or hundreds of bytes for each byte.
#[test]
fn sources_that_are_deep_or_long_are_refused() {
    let chains = [
        ("{{ ", "a ~ ", "a }}"),
        ("{{ ", "a ** ", "a }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "not ", "a }}"),
        ("{{ ", "a or ", "a }}"),
        ("{{ ", "a if b else ", "a }}"),
        ("{{ a", "|upper", " }}"),
        ("{{ a", ".b", " }}"),
        ("{{ a", "[b]", " }}"),
        ("{{ a", "()", " }}"),
        ("{{ a", " is b", " }}"),
        ("{{ ", "(", "a }}"),
        ("{% if a %}", "{% elif a %}", "{% endif %}"),
        ("", "{% if a %}", ""),
        ("", "{{ 1 < a < b }}", ""),
        ("", "{% set a = 1 %}", ""),
    ];
    for (before, link, behind) in chains {
        let source = |n: usize| format!("{before}{}{behind}", link.repeat(n));
        let why = ChatTemplate::from_source(&source(50_000), TemplateTokens::default());
        let why = why.expect_err(link).to_string();
        assert!(why.contains("limit"), "{link}: {why}");
        // What templates have of these compiles.
        if behind.is_empty() || link == "(" {
            continue;
        }
        assert!(ChatTemplate::from_source(&source(100), TemplateTokens::default()).is_ok());
    }
}

/// Lists that compute their items when asked nest without showing it.
#[test]
fn lazy_lists_do_not_nest() {
    for step in ["ns.x[0:]", "ns.x * 1", "ns.x|reverse", "(ns.x * 1) + []", "ns.x|list"] {
        let source = format!(
            "{{% set ns = namespace(x=range(3)) %}}{{% for i in range(100000) %}}{{% set ns.x = {step} %}}\
             {{% endfor %}}{{{{ ns.x|length }}}}"
        );
        assert_eq!(render(&source, &[]).unwrap(), "3", "{step}");
    }
}

#[test]
fn what_templates_do_in_earnest_is_let_be() {
    let text = "0123456789".repeat(100);
    let messages: Vec<Json> = (0..1000)
        .map(|i| json!({ "role": if i % 2 == 0 { "user" } else { "assistant" }, "content": text }))
        .collect();
    // All of them gathered in one variable, in a list, and looked at from each.
    for source in [
        "{% set ns = namespace(out='') %}{% for m in messages %}\
         {% set ns.out = ns.out ~ '<' ~ m.role ~ '>' ~ m.content|trim %}{% endfor %}{{ ns.out|length }}",
        "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m] %}{% endfor %}\
         {{ ns.l|length }}",
        "{% for m in messages %}{% if messages|selectattr('role', 'equalto', 'user')|list|length > 2 \
         and messages[loop.index0:]|length > 0 %}{{ m.content }}{% endif %}{% endfor %}",
        "{% set l = [] %}{% for m in messages %}{% set x = l.append({'m': m, 'calls': []}) %}\
         {% endfor %}{{ l|length }}",
        "{{ messages|tojson(indent=4) }}",
        "{% for m in messages %}{{ '%s: %s'|format(m.role, m.content) }}{{ '-' * 40 }}{% endfor %}",
    ] {
        let prompt = render(source, &messages).unwrap_or_else(|e| panic!("{source}: {e}"));
        assert!(!prompt.is_empty());
    }
    // Many short messages: their text is gathered with each.
    let short = vec![json!({ "role": "user", "content": "yes" }); 4000];
    for source in [
        "{% set ns = namespace(out='') %}{% for m in messages %}\
         {% set ns.out = ns.out + '<' + m.role + '>' %}{% set ns.out = ns.out ~ m.content|trim ~ '\n' %}{% endfor %}\
         {{ ns.out|length }}",
        "{% set ns = namespace(out='') %}{% for m in messages %}{% set ns.out %}{{ ns.out }}{{ m.content }}{% endset %}\
         {% endfor %}{{ ns.out|length }}",
        "{% macro one(m) %}{{ m.role ~ ': ' ~ m.content }}{% endmacro %}\
         {% for m in messages %}{% if m.role == messages[loop.index0 - 1].role and m.role in ['user', 'tool'] %}\
         {{ one(m) }}{% endif %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m] %}{% endfor %}{{ ns.l|length }}",
    ] {
        let prompt = render(source, &short).unwrap_or_else(|e| panic!("{source}: {e}"));
        assert!(!prompt.is_empty());
    }
}

/// The meter changes no result: as the engine alone renders it.
#[test]
fn results_are_those_of_the_engine_without_a_meter() {
    let message =
        json!({ "role": "user", "content": "a\nb", "n": 3, "list": [1, [2]], "none": null });
    let mut plain = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    plain.set_syntax(syntax.unwrap());
    plain.set_unknown_method_callback(python::method);
    plain.add_filter("tojson", python::tojson);
    for source in [
        "{{ 1 ~ 'b' ~ none ~ true ~ 1.5 ~ [1, 'x'] }}",
        "{{ 1 + 2 }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ 2 * 3 }} {{ 'ab' * 2 }} {{ 2 ** 8 }}",
        "{{ [1, [2]] + messages[0].list }} {{ [0] * 3 }} {{ (1, 2) + (3,) }}",
        "{{ messages[0].none or ('x' + 'y') }}{{ 'p' if false else 'q' ~ 'r' }}",
        "{{ 'a' ~ ('b' if messages else 'c') ~ messages[0].role ~ ('d' ~ 'e') ~ messages[0].list[0] }}",
        "{% for a, b in {'x': 1, 'y': 2}.items() %}{{ a }}{{ b }}{% endfor %}",
        "{% for x in [1, 2, 3] if x > 1 %}{{ loop.index }}{{ x }}{% else %}none{% endfor %}",
        "{% for x in [] %}{{ x }}{% else %}none{% endfor %}",
        "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}.{% endfor %}",
        "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
        "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=3) ~ '!' }}",
        "{% macro m(a) %}<{{ caller(a) }}>{% endmacro %}{% call(x) m(1) %}{{ x }}{% endcall %}",
        "{% set x, y = (1, 2) %}{{ y }}{{ x }}{{ (1, 2) }}",
        "{% set ns = namespace(a=1) %}{% set ns.b = ns.a + 1 %}{{ ns.a }}{{ ns.b }}",
        "{% set x %}a{{ 'b'|upper }}{% endset %}{{ x }}{% filter upper %}x{% endfilter %}",
        "{{ messages[0]['content'][::-1] }}{{ messages[0].content.split('\\n') }}",
        "{{ range(3)|list }}{{ range(3)[1:]|list }}{{ range(5, 0, -2)|list }}",
        "{% autoescape true %}<b>{{ '<' }}{% endautoescape %}",
        "{{ {'a': [1, {'b': none}]}|tojson }}{{ messages|tojson(indent=2) }}",
        "{{ missing }}{{ missing|default('d') }}{{ dict(a=1) }}{{ dict(a=1).a }}",
        "{{ [3, 1, 2]|sort|join(', ') }}{{ ['a', 'b']|map('upper')|list }}{{ [1, 2]|sum }}",
        "{{ 'a\\nb'|indent(2) }}{{ 'a\\nb'|indent(width=2, first=true) }}{{ '%05d %s'|format(3, 'x') }}",
        "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='n', default=0)|list }}",
        "{{ '{} {name}'.format(1, name='n') }}{{ 'abc'.replace('b', 'x') }}{{ ','.join(['a', 'b']) }}",
        "{{ [1, 2, 3]|batch(2, 0)|list }}{{ [1, 2, 3]|slice(2)|list }}{{ {'b': 1, 'a': 2}|dictsort }}",
        "  {% if true %}\n  x\n  {% endif %}\n{# c #}y {%- if true -%}  z  {%- endif -%}",
        "{% set a, b = 1, messages[0].n %}{{ a < b }}{{ a < b <= 3 }}{{ a in [b, 1] }}{{ 'a' in messages[0].content }}",
        "{{ 'role' in messages[0] }}{{ 9 not in messages[0].list }}{{ 1 < 2 < a }}{{ messages == messages }}{{ a != none }}",
        "{% set k = 'role' %}{{ messages[0][k] }}{{ messages[0]['n'] }}{{ 'xyz'[-1] }}{{ messages[-1]['role' if k else 'n'] }}",
        "{{ messages[0].content[1:] }}{{ messages[0].list[::-1] }}{{ (1, 2, 3)[1:] }}{{ 'ab'[:1] }}{{ (1,) * 3 }}{{ 3 * [0] }}",
        "{% macro m(a, b, c=0) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(1, *(2,), **{'c': 3}) }}",
        "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop.changed(x, 1) }}{{ loop.cycle('a', 'b') }}{% endfor %}",
        "{{ 1 is eq 1 }}{{ [1, 2]|select('gt', 1)|list }}{{ 'a' is in 'abc' }}{{ 'A' is upper }}{{ [] is sameas [] }}",
        "{{ ('x' ~ none)|length }}{{ ['b', 'a', 'B']|unique|list }}{{ [[2], [1]]|sort }}{{ [1, 3]|max }}{{ 'xax'|trim('x') }}",
        "{% set x = 'a' + ('b' if messages else 'c') + messages[0].role %}{{ x }}{{ [x] + [x + x] }}{{ x * 2 == x + x }}",
    ] {
        let messages = Value::from(Serde(std::slice::from_ref(&message)));
        let want = plain.render_str(source, minijinja::context! { messages });
        let got = render(source, std::slice::from_ref(&message));
        assert_eq!(got.unwrap(), want.unwrap(), "{source}");
    }
}

#[test]
fn arguments_of_another_kind_are_named_in_plain_words() {
    for (source, says) in [
        ("{{ 'a' | indent('b') }}", "cannot convert string to a whole number from 0"),
        ("{{ 'x'.rjust('y') }}", "cannot convert string to a whole number from 0"),
        ("{{ 'abc'[3:1:'x'] }}", "cannot convert string to a whole number"),
        ("{{ raise_exception('cannot convert this to i64ths') }}", "cannot convert this to i64ths"),
    ] {
        let template = ChatTemplate::from_source(source, TemplateTokens::default()).unwrap();
        let why = template.render(&TemplateInput::default()).unwrap_err().to_string();
        assert!(why.contains(says), "{source}: {why}");
        assert!(!why.contains("usize") && !why.ends_with("i64"), "{source}: {why}");
    }
}
