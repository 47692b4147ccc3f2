//! Patterns of the pre-tokenizers that have no matcher of their own, put together from common parts.
//! [`super::splitter`] says what categories mean in them.

/// English contractions in any case.
const CONTRACTION: &str = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
/// White space: up to the last line break, up to the last space before a word, all.
const WHITE: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with one line break at a time.
const WHITE_ONE_BREAK: &str = r"\s*[\r\n]|\s+(?!\S)|\s+";
/// An optional sign in front of a word.
const LEAD: &str = r"[^\r\n\p{L}\p{N}]?";
/// Symbols with at most one space before and all line breaks behind.
const SYMBOLS: &str = r" ?[^\s\p{L}\p{N}]+[\r\n]*";

/// Chinese and Japanese runs as DeepSeek V3 has them.
pub const CJK: &str = "[一-龥぀-ゟ゠-ヿ]+";
/// Chinese and Korean runs as the first DeepSeek models have them.
pub const CJK_DEEPSEEK: &str = "[一-龥ࠀ-一가-퟿]+";
/// Asian scripts that AFMoE keeps apart.
pub const ASIAN_AFMOE: &str = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+";
/// Asian scripts and full-width punctuation that Youtu keeps apart.
pub const ASIAN_YOUTU: &str = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+";
/// Words between the sentence signs of Bloom.
pub const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
/// Full-width and ASCII punctuation of DeepSeek LLM.
pub const PUNCTUATION_DEEPSEEK: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";

/// Letters that have a case, as DeepSeek LLM lists them.
const CASED: &str = concat!(
    r"A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}",
    r"\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}",
    r"\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}",
    r"\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}",
    r"\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}",
    r"\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}",
    r"\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}",
    r"\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}",
    r"\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}",
    r"\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}",
    r"\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}",
    r"\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}",
    r"\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}",
    r"\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}",
    r"\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}",
    r"\u{1E900}-\u{1E943}",
);

/// Words of cased letters.
pub fn cased_words() -> String {
    format!(r"\s?[{CASED}]+")
}

/// Llama 3's alternatives with other digits or symbols.
pub fn llama3_like(contractions: bool, digits: &str, symbols: &str, white: &str) -> String {
    let c = if contractions { format!("{CONTRACTION}|") } else { String::new() };
    format!(r"{c}{LEAD}\p{{L}}+|{digits}|{symbols}|{white}")
}

/// Ufakzeka: Qwen 2 without contractions.
pub fn ufakzeka() -> String {
    llama3_like(false, r"\p{N}", SYMBOLS, WHITE)
}

/// BailingMoE: one line break ends a white-space run.
pub fn bailing() -> String {
    llama3_like(true, r"\p{N}", SYMBOLS, WHITE_ONE_BREAK)
}

/// Seed-Coder: symbols take no line breaks.
pub fn seed_coder() -> String {
    llama3_like(true, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", WHITE)
}

/// MiniCPM 5: numbers were cut before.
pub fn minicpm5() -> String {
    llama3_like(true, r"\p{N}+", SYMBOLS, WHITE)
}

/// Jais 2: white space falls into powers of two.
pub fn jais2() -> String {
    let mut white = String::from(r"\s*[\r\n]+");
    for n in [512, 256, 128, 64, 32, 16, 8, 4] {
        white.push_str(&format!(r"|\s{{{n}}}(?!\S)"));
    }
    white.push_str(r"|\s{1,2}(?!\S)|\s{1}");
    llama3_like(true, r"\p{N}{1,3}", SYMBOLS, &white)
}

/// EXAONE MoE: words may contain single spaces.
pub fn exaone_moe() -> String {
    let word = r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+";
    let symbols = r" ?[^\s\p{L}\p{N}]+[\r\n/]?";
    format!(r"{CONTRACTION}|{LEAD}{word}|\p{{N}}|{symbols}|{WHITE_ONE_BREAK}")
}

/// DeepSeek V3: signs glued to ASCII words, words with marks, punctuation.
pub fn deepseek3() -> String {
    deepseek3_like(r"[\r\n]*", r"\s*[\r\n]+")
}

/// Spark 2.5: each line break alone.
pub fn spark() -> String {
    deepseek3_like("", r"[\r\n]")
}

fn deepseek3_like(after_symbols: &str, line_break: &str) -> String {
    let ascii_signs = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"##;
    format!(
        r"{ascii_signs}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+{after_symbols}|{line_break}|\s+(?!\S)|\s+"
    )
}

/// Words of "upper" then "lower" letters, where a letter without case in ASCII counts as both.
fn cased_like(upper: &str, lower: &str, contractions: bool, digits: &str) -> String {
    let c = if contractions { format!("{CONTRACTION}?") } else { String::new() };
    let symbols = r" ?[^\s\p{L}\p{N}]+[\r\n/]*";
    format!("{LEAD}{upper}*{lower}+{c}|{LEAD}{upper}+{lower}*{c}|{digits}|{symbols}|{WHITE}")
}

/// A letter that is not a small ASCII one.
fn upper(letters: &str) -> String {
    format!("[{letters}--[a-z]]")
}

/// A letter that is not a capital ASCII one.
fn lower(letters: &str) -> String {
    format!("[{letters}--[A-Z]]")
}

/// Tekken: single digits, no contractions.
pub fn tekken() -> String {
    cased_like(&upper(r"\p{L}"), &lower(r"\p{L}"), false, r"\p{N}")
}

/// The pattern of GPT-4o.
pub fn gpt4o() -> String {
    cased_like(&upper(r"\p{L}"), &lower(r"\p{L}"), true, r"\p{N}{1,3}")
}

/// Granite embedding: GPT-4o with marks as letters.
pub fn granite_embed() -> String {
    let letters = r"\p{L}\p{M}";
    cased_like(&upper(letters), &lower(letters), true, r"\p{N}{1,3}")
}

/// GPT-4o with true case classes, which collapse to "letter or mark".
pub fn caseless_words(digits: &str) -> String {
    cased_like(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", true, digits)
}
