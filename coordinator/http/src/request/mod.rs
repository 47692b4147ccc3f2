//! Requests: a body is received, and read field by field into validated types. Nothing here knows an answer.

pub(crate) mod answer_format;
pub(crate) mod bodies;
pub(crate) mod caching;
pub(crate) mod chat_request;
pub(crate) mod companion;
pub(crate) mod fields;
pub(crate) mod ignored_fields;
pub(crate) mod keep_alive;
pub(crate) mod logit_bias;
pub(crate) mod messages;
pub(crate) mod model_name;
pub(crate) mod params;
pub(crate) mod prediction;
pub(crate) mod tools;
pub(crate) mod value;
