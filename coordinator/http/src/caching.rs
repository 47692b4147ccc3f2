//! What a request says of what is kept: whose prompts it may begin with.

use super::error::ApiError;
use super::fields::Fields;

/// Longest `cache_salt`.
const MAX_CACHE_SALT_BYTES: usize = 256;

/// vLLM's field: a text that narrows whose prompts this one may begin with.
pub(super) fn cache_salt(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let salt: Option<String> = fields.take("cache_salt")?;
    match salt.as_ref().map(String::len) {
        None | Some(1..=MAX_CACHE_SALT_BYTES) => Ok(salt),
        Some(n) => {
            let message = format!(
                "cache_salt has {n} bytes: 1 to {MAX_CACHE_SALT_BYTES} are needed; leave it out for none"
            );
            Err(ApiError::field("cache_salt", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_is_a_text_of_some_length() {
        let salt = |salt: &str| {
            let body = format!(r#"{{"cache_salt": {salt}}}"#);
            cache_salt(&mut Fields::parse(body.as_bytes()).unwrap())
                .map_err(|error| error.body().to_string())
        };
        assert_eq!(salt(r#""a""#), Ok(Some("a".into())));
        assert_eq!(salt("null"), Ok(None));
        let longest = format!("{:?}", "x".repeat(MAX_CACHE_SALT_BYTES));
        assert!(salt(&longest).is_ok());
        let longer = format!("{:?}", "x".repeat(MAX_CACHE_SALT_BYTES + 1));
        for wrong in [r#""""#, &longer, "3"] {
            assert!(salt(wrong).unwrap_err().contains("cache_salt"), "{wrong}");
        }
    }
}
