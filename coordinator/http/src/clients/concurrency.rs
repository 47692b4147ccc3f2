//! Requests that are being answered. Where there are several keys, one of them has so many under way that others still
//! find a connection: keys behind one proxy come from one address.

use std::sync::Arc;

use crate::clients::shares::{Part, Room, Tenant};
use crate::error::ApiError;

/// A key leaves one in this many of an address's connections to other keys, since keys behind one proxy come from one
/// address.
const LEFT_ONE_IN: usize = 4;

/// When a key that has all the places it may have is told to come back: as soon as one of its answers ends.
const AGAIN_S: u64 = 1;

/// Requests that are being answered, of which one key has a part where there are several. Clones share them.
#[derive(Clone, Debug)]
pub struct UnderWay {
    room: Arc<Room>,
    each: usize,
}

impl Default for UnderWay {
    /// No limit.
    fn default() -> Self {
        Self::of_address(usize::MAX)
    }
}

impl UnderWay {
    /// Where one address may have so many connections.
    pub fn of_address(connections: usize) -> Self {
        let each = (connections - connections / LEFT_ONE_IN).max(1);
        Self { room: Room::new(usize::MAX, each), each }
    }

    /// A place, until it is dropped.
    pub(crate) fn begin(&self, tenant: Tenant) -> Result<Part, ApiError> {
        let mut part = self.room.part(tenant);
        part.grow(1).map(|()| part).map_err(|_| {
            let message = format!(
                "{} requests of the API key are under way, the limit of one key, which keeps connections free for others: wait until some have ended",
                self.each
            );
            ApiError::rate_limited(message, AGAIN_S)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_leaves_connections_to_others() {
        let under_way = UnderWay::of_address(8);
        let held: Vec<Part> = (0..6).map(|_| under_way.begin(Some(1)).unwrap()).collect();
        let refused = under_way.begin(Some(1)).unwrap_err();
        assert_eq!(refused.status().as_u16(), 429);
        assert!(under_way.begin(Some(2)).is_ok() && under_way.begin(None).is_ok());
        drop(held);
        assert!(under_way.begin(Some(1)).is_ok());
    }
}
