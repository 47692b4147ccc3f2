//! Functions and filters of Jinja that the engine does not have, or has with other arguments.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{
    ArgType, Kwargs, Object, ObjectRepr, Rest, Value, ValueOrKwargs, from_args,
};
use minijinja::{Environment, Error, ErrorKind, State};

/// Installs the functions; the filters are guarded as others are.
pub fn install(env: &mut Environment<'_>) {
    env.add_function("joiner", |between: Option<Value>| -> Result<Value, Error> {
        let between = match between {
            None => Value::from(", "),
            // The text itself: a copy would be counted by nobody.
            Some(text) if text.as_str().is_some() => text,
            Some(other) => Value::from(String::from_value(Some(&other))?),
        };
        Ok(Value::from_object(Joiner { between, n: AtomicUsize::new(0) }))
    });
    env.add_function("cycler", |items: Rest<Value>| -> Result<Value, Error> {
        // A list could be given this object later, and contain itself then.
        if items.is_empty() || items.iter().any(|item| item.as_object().is_some()) {
            let what = "cycler needs texts or numbers";
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        Ok(Value::from_object(Cycler { items: items.0, n: AtomicUsize::new(0) }))
    });
    env.add_test("callable", |value: &Value| {
        value.as_object().is_some_and(|object| matches!(object.repr(), ObjectRepr::Plain))
    });
}

/// Columns of `center` where none are given.
const COLUMNS: usize = 80;

/// A text in the middle of so many columns.
pub fn center(text: String, width: Option<usize>) -> String {
    let width = width.unwrap_or(COLUMNS);
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    format!("{}{text}{}", " ".repeat(left), " ".repeat(missing - left))
}

/// Words of a text.
pub fn wordcount(text: String) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).count()
}

/// Arguments of a cut: its length, whether words may be cut, the text behind it, the tolerance, and keywords.
type Cut = (Option<usize>, Option<bool>, Option<String>, Option<usize>, Kwargs);

/// A text cut to some characters.
pub fn truncate(text: String, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let (length, killwords, end, leeway, named): Cut = from_args(&args.into_values())?;
    let length = length.or(named.get("length")?).unwrap_or(255);
    let killwords = killwords.or(named.get("killwords")?).unwrap_or(false);
    let end = end.or(named.get("end")?).unwrap_or_else(|| "...".to_string());
    let leeway = leeway.or(named.get("leeway")?).unwrap_or(5);
    named.assert_all_used()?;
    let kept = length.checked_sub(end.chars().count());
    let kept = kept.ok_or_else(|| {
        let what = "truncate needs a length that its end has room in";
        Error::new(ErrorKind::InvalidOperation, what)
    })?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let cut: String = text.chars().take(kept).collect();
    let cut = if killwords { &cut } else { cut.rsplit_once(' ').map_or(&*cut, |(words, _)| words) };
    Ok(format!("{cut}{end}"))
}

/// Gives nothing the first time, and its text then.
#[derive(Debug)]
struct Joiner {
    between: Value,
    n: AtomicUsize,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        from_args::<()>(args)?;
        let is_first = self.n.fetch_add(1, Ordering::Relaxed) == 0;
        Ok(if is_first { Value::from("") } else { self.between.clone() })
    }
}

/// Gives its items in turn.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    n: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let n = self.n.load(Ordering::Relaxed);
        (key.as_str() == Some("current")).then(|| self.items[n % self.items.len()].clone())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        from_args::<()>(args)?;
        match method {
            "next" => {
                let n = self.n.fetch_add(1, Ordering::Relaxed);
                Ok(self.items[n % self.items.len()].clone())
            }
            "reset" => {
                self.n.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}
