//! Room for keys that are copied for one op, which each thread that runs ops keeps.

use std::cell::RefCell;

thread_local! {
    static ROOM: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Does something with room for so many values. Its values do not matter.
pub(super) fn with_room(len: usize, work: impl FnOnce(&mut [f32])) {
    let mut room = ROOM.take();
    room.resize(room.len().max(len), 0.0);
    work(&mut room[..len]);
    ROOM.set(room);
}
