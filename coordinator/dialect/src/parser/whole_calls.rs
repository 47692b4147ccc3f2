//! Calls whose parts stand in an order that can be read only when all of them are there.

use super::lexer;
use crate::values::json;

/// A call that is read when it is complete.
pub struct WholeCall {
    /// The tool's name.
    pub name: String,
    /// The id that the model gave.
    pub id: Option<String>,
    /// The arguments, as JSON text.
    pub arguments: String,
}

/// The call that a complete object is.
pub fn whole_call(text: &str) -> Option<WholeCall> {
    let value: serde_json::Value = serde_json::from_str(&json::mend(text)?).ok()?;
    let object = match value.get("function") {
        Some(inner) if inner.is_object() => inner,
        _ => &value,
    };
    let first = |keys: &[&str]| keys.iter().find_map(|key| object.get(*key).or(value.get(*key)));
    let name = first(&["name", "tool_name", "function", "recipient_name"])?.as_str()?.to_string();
    let id = first(&["id", "tool_call_id", "call_id"]).and_then(|id| match id {
        serde_json::Value::String(id) => Some(id.clone()).filter(|id| !id.is_empty()),
        serde_json::Value::Number(id) => Some(id.to_string()),
        _ => None,
    });
    let arguments = match first(&["arguments", "parameters", "args", "input"]) {
        None | Some(serde_json::Value::Null) => "{}".to_string(),
        Some(serde_json::Value::String(text)) => {
            let mended = json::mend(text)?;
            mended.starts_with('{').then_some(mended)?
        }
        Some(object @ serde_json::Value::Object(_)) => object.to_string(),
        Some(_) => return None,
    };
    lexer::is_name(&name).then_some(WholeCall { name, id, arguments })
}
