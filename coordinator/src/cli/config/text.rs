//! Writes the options for people: as a commented file, and as the manual's reference, which a test writes.

use serde_json::Value;

use super::options::{self, KEYS, Kind, MODEL, NAME, Opt, SHARE, VERSION};

/// Columns of a comment.
const WIDTH: usize = 110;

/// A file with all options, commented out, with their default values.
pub fn commented() -> String {
    let mut text = String::new();
    let mut line = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    line(
        "# Options of brigade. What counts: a flag, then an environment variable, then the files of the folder brigade.d",
    );
    line(
        "# beside this file (the last by name first), then this file. `brigade config check` says what is wrong.",
    );
    line(
        "# Secrets do not belong here: name the file that has them, such as \"$CREDENTIALS_DIRECTORY/token\".",
    );
    line(&format!("version = {VERSION}"));
    for section in options::sections() {
        let about = section.command.get_about().map(ToString::to_string).unwrap_or_default();
        line(&format!("\n# {about}.\n[{}]", section.name));
        text_of(section.options.iter(), &mut line);
        if section.name == "serve" {
            line(
                "\n# A model, with the options of its line: instead of the same options of [serve], for this model.",
            );
            line(&format!("#[[{MODEL}]]"));
            line("\n# Name of the model, for -m NAME and for clients");
            line(&format!("#{NAME} = \"NAME\""));
            let keys: Vec<&str> = section.of_a_model().map(Opt::key).collect();
            wrapped(&format!("And all of these: {}", keys.join(", ")), &mut line);
            line("\n# API keys that share computed beginnings of prompts.");
            line(&format!("#[[{SHARE}]]\n#{KEYS} = [\"NAME\", \"NAME\"]"));
        }
    }
    text
}

fn text_of<'a>(options: impl Iterator<Item = &'a Opt>, line: &mut impl FnMut(&str)) {
    let mut heading = "";
    for option in options {
        if option.heading() != heading {
            heading = option.heading();
            line(&format!("\n# --- {heading} ---"));
        }
        line("");
        wrapped(&about(option), line);
        line(&format!("#{} = {}", option.key(), example(option)));
    }
}

/// A comment, in lines of [`WIDTH`] columns at most.
fn wrapped(text: &str, line: &mut impl FnMut(&str)) {
    let mut row = "#".to_owned();
    for word in text.split_whitespace() {
        if row.chars().count() + 1 + word.chars().count() > WIDTH {
            line(&row);
            row = "#".to_owned();
        }
        row.push(' ');
        row.push_str(word);
    }
    line(&row);
}

/// The description of an option and of its values.
fn about(option: &Opt) -> String {
    let choices = option.choices();
    if choices.is_empty() {
        option.help()
    } else {
        format!("{} [{}]", option.help(), choices.join(", "))
    }
}

/// The option's default as it would stand in the file, or what stands for its value in `--help`.
fn example(option: &Opt) -> String {
    let one = match (option.kind(), option.default()) {
        (Kind::Switch, _) => "false".to_owned(),
        (Kind::Integer | Kind::Number, Some(default)) => default,
        (Kind::Integer | Kind::Number, None) => option.value_name(),
        (Kind::Text, default) => {
            let text = default.unwrap_or_else(|| option.value_name());
            Value::from(text).to_string()
        }
    };
    if option.is_list() { format!("[{one}]") } else { one }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::path::Path;

    use super::super::options::Section;
    use super::*;

    /// The page of the manual that has the reference.
    const PAGE: &str = "docs/configuration.md";
    /// The markers around the reference in the manual.
    const MARKERS: [&str; 2] =
        ["<!-- options: made by a test, `just bless` writes it -->\n", "<!-- options: end -->"];

    /// A table for each section.
    fn reference() -> String {
        let mut text = String::new();
        for section in options::sections() {
            let _ = writeln!(text, "\n### {}\n\n{}", section.name, table(section));
        }
        text
    }

    fn table(section: &Section) -> String {
        let mut table = "| key | value | meaning |\n|---|---|---|\n".to_owned();
        for option in &section.options {
            let value = match option.kind() {
                Kind::Switch => "`true`, `false`".to_owned(),
                _ => format!("`{}`", example(option)),
            };
            let env = option.env().map_or(String::new(), |name| format!(", `{name}`"));
            let cells = [format!("`{}`{env}", option.key()), value, about(option)];
            let cells = cells.map(|cell| cell.replace('|', "\\|").replace('*', "\\*"));
            let _ = writeln!(table, "| {} |", cells.join(" | "));
        }
        table
    }

    #[test]
    fn the_manual_has_every_option() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = here.ancestors().nth(2).expect("this package is `coordinator/unit`").join(PAGE);
        let page = std::fs::read_to_string(&path).expect("the page");
        let (before, rest) = page.split_once(MARKERS[0]).expect("the first marker");
        let (_, behind) = rest.split_once(MARKERS[1]).expect("the second marker");
        let made = [before, MARKERS[0], &reference(), MARKERS[1], behind].concat();
        if std::env::var_os("BRIGADE_BLESS").is_some_and(|value| value == "1") {
            std::fs::write(&path, made).expect("the page is written");
        } else {
            assert!(made == page, "{PAGE} has other options: BRIGADE_BLESS=1 writes it");
        }
    }

    #[test]
    fn comments_have_every_option_and_fit_a_screen() {
        let text = commented();
        for section in options::sections() {
            for option in &section.options {
                assert!(text.contains(&format!("\n#{} = ", option.key())), "{}", option.key());
            }
        }
        let longest = text.lines().filter(|line| line.starts_with("# ")).map(|l| l.chars().count());
        assert!(longest.max() <= Some(WIDTH + 10), "{:?}", text.lines().max_by_key(|l| l.len()));
    }
}
