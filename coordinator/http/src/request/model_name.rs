//! The field `model`: which names mean the model that is served.

use brigade_dialect::text_model::TextModel;

use crate::error::ApiError;

/// Refuses a name under which the model is not served; a request without one means the model that is.
///
/// # Errors
/// 404, with the names there are.
pub fn check_name(text: &TextModel, name: Option<&str>) -> Result<(), ApiError> {
    match name {
        Some(name) if !name.is_empty() && !text.serves(name) => Err(not_here(name, text.names())),
        _ => Ok(()),
    }
}

/// The error for a model `name` that is not here; `names` are the models that are.
pub(crate) fn not_here(name: &str, names: &[String]) -> ApiError {
    let there = match names {
        [] => String::new(),
        [one] => format!(": {one} is"),
        several => format!(": {} are", several.join(", ")),
    };
    let mut error = ApiError::not_found(format!(
        "the model {name:?} is not served here{there}; serve has --served-model-name for others"
    ));
    error.set_code("model_not_found");
    error
}
