//! Fields and messages of text logs. A value that is more than one plain word is quoted, so that nothing from outside (a
//! request's id, a name, a path, an error that repeats one) can look like another field or another line.

use std::fmt::{self, Debug};

use tracing_subscriber::field::{MakeExt, RecordFields};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// The field that holds what an event says.
const MESSAGE: &str = "message";

/// Writes the fields of text logs.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextFields;

impl<'w> FormatFields<'w> for TextFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let each =
            debug_fn(|writer: &mut Writer<'_>, field, value: &dyn Debug| match field.name() {
                MESSAGE => writer.write_str(&message(value)),
                name => field_of(writer, name.trim_start_matches("r#"), value),
            });
        each.delimited(" ").format_fields(writer, fields)
    }
}

fn field_of(writer: &mut Writer<'_>, name: &str, value: &dyn Debug) -> fmt::Result {
    if writer.has_ansi_escapes() {
        write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?
    } else {
        write!(writer, "{name}=")?
    }
    writer.write_str(&word(value))
}

/// A value: as it is where it is one word, or one quoted text already.
fn word(value: &dyn Debug) -> String {
    let text = format!("{value:?}");
    let is_word = |c: char| is_printable(c) && !c.is_whitespace() && !matches!(c, '=' | '"' | '\\');
    if !text.is_empty() && text.chars().all(is_word) || is_quoted(&text) {
        return text;
    }
    format!("{text:?}")
}

/// An event's message. It is quoted if a part of it could be taken for a field or another line.
fn message(value: &dyn Debug) -> String {
    let text = format!("{value:?}");
    if text.chars().all(|c| is_printable(c) && c != '=') {
        return text;
    }
    format!("{text:?}")
}

/// Whether a character shows as itself.
fn is_printable(c: char) -> bool {
    c.is_ascii_graphic() || c == ' ' || c.escape_debug().len() == 1
}

/// Whether a text is one string between quotes, with its own quotes escaped.
fn is_quoted(text: &str) -> bool {
    let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let Some(inner) = inner else { return false };
    let mut escaped = false;
    for c in inner.chars() {
        if !is_printable(c) || (c == '"' && !escaped) {
            return false;
        }
        escaped = c == '\\' && !escaped;
    }
    !escaped
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(tell: impl FnOnce()) -> String {
        let log = Log::default();
        let made = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(TextFields)
            .with_ansi(false)
            .without_time()
            .with_writer(move || made.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, tell);
        let bytes = log.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn nothing_from_outside_forges_a_field_or_a_line() {
        let forged = "a\" level=ERROR key=\"root\" b\n2026-01-01 ERROR all=lost \u{1b}[31m\u{202e}";
        let by_value = logged(|| tracing::info!(id = forged, "request"));
        let displayed = logged(|| tracing::info!(id = %forged, "request"));
        let debugged = logged(|| tracing::info!(id = ?forged, "request"));
        let in_message = logged(|| tracing::info!("the label {forged} is odd"));
        let in_span = logged(|| {
            let _entered = tracing::info_span!("request", id = %forged, n = 3).entered();
            tracing::info!("answered");
        });
        let quoted = format!("id={forged:?}");
        for text in [&by_value, &displayed, &debugged] {
            assert!(text.contains(&quoted), "{text}");
        }
        assert!(in_span.contains(&format!("request{{id={forged:?} n=3}}")), "{in_span}");
        for text in [by_value, displayed, debugged, in_message, in_span] {
            assert_eq!(text.lines().count(), 1, "{text}");
            let plain = text.trim_end().chars().all(|c| !c.is_control() && c != '\u{202e}');
            assert!(plain, "{text}");
            // Text outside of quotes has no field from outside.
            let unescaped = text.replace("\\\"", "");
            let outside: String = unescaped.split('"').step_by(2).collect();
            assert!(!outside.contains("level=") && !outside.contains("all="), "{text}");
        }
    }

    #[test]
    fn plain_words_are_not_quoted() {
        let text = logged(|| {
            tracing::info!(worker = %"10.0.0.2:7070", n = 3, up = true, "the worker's line is up");
        });
        let said = "the worker's line is up worker=10.0.0.2:7070 n=3 up=true";
        assert!(text.trim_end().ends_with(said), "{text}");
        assert!(logged(|| tracing::info!(key = "", "x")).contains("key=\"\""));
        let pretends = logged(|| tracing::info!(key = %"\"a\" b=\"c\"", "x"));
        assert!(pretends.contains(r#"key="\"a\" b=\"c\"""#), "{pretends}");
    }
}
