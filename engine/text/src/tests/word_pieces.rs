//! Word pieces: how text is cleaned and cut into words, and each word into its longest tokens.

use super::*;

fn bert() -> VocabData {
    let entries = [
        ("[PAD]", CONTROL, 0.0),
        ("[UNK]", UNKNOWN, 0.0),
        ("[CLS]", CONTROL, 0.0),
        ("[SEP]", CONTROL, 0.0),
        ("▁un", NORMAL, 0.0),
        ("▁unaff", NORMAL, 0.0),
        ("able", NORMAL, 0.0),
        ("ord", NORMAL, 0.0),
        ("aff", NORMAL, 0.0),
        ("▁,", NORMAL, 0.0),
        ("▁中", NORMAL, 0.0),
        ("▁cafe", NORMAL, 0.0),
        ("▁Café", NORMAL, 0.0),
    ];
    let mut d = data("bert", &entries);
    d.ids.unk = Some(1);
    d.ids.bos = Some(2);
    d.ids.sep = Some(3);
    d
}

#[test]
fn words_fall_into_their_longest_tokens_or_are_unknown() {
    let t = build(bert());
    assert_eq!(texts(&t, "unaffable", true, false), ["[CLS]", "▁unaff", "able", "[SEP]"]);
    assert_eq!(texts(&t, "unaffordable", false, false), ["▁unaff", "ord", "able"]);
    assert_eq!(texts(&t, "unaffordably x", false, false), ["[UNK]", "[UNK]"]);
    assert_eq!(texts(&t, "un,中un", false, false), ["▁un", "▁,", "▁中", "▁un"]);
}

#[test]
fn cleaning_follows_the_flags_of_the_file() {
    let t = build(bert());
    assert_eq!(texts(&t, "CAFÉ\u{0}\u{ad} cafe\u{301}", false, false), ["▁cafe", "▁cafe"]);
    let mut cased = bert();
    cased.flags.lowercase = Some(false);
    assert_eq!(texts(&build(cased), "Café cafe", false, false), ["▁Café", "▁cafe"]);
}
