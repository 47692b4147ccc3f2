//! Who a worker is to its cluster: its key, its certificate, and where both come from.

pub mod credentials;
mod enrolment;
pub mod membership;
pub mod stage;
pub mod word;
