//! The ops of the host: methods of [`Compute`](super::compute::Compute), a folder for each family. An op checks its
//! shapes (a mismatch is a bug of the caller and panics), cuts its work into tiles for the threads, and leaves the
//! arithmetic to the table.

pub(crate) mod attention;
pub(crate) mod experts;
pub(crate) mod index;
pub(crate) mod kv;
pub(crate) mod products;
pub(crate) mod rowwise;
pub(crate) mod run;
pub(crate) mod scan;
