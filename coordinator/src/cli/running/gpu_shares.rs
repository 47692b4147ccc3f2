//! Divides a GPU's memory among several local workers that share it.
//!
//! A worker that has a GPU to itself looks how much is free. Several workers would each find all of it free, and
//! would be given more layers than there is room for. A worker that is started again would find only the memory that
//! the others leave, which may be less than it had.

use brigade_engine::device::{
    DeviceClass, DeviceName, DeviceWish, Listed, list, may_have_accelerators, split_beside,
};
use brigade_worker::machine::memory::RESERVE_BYTES;

/// The properties of a GPU that matter here.
struct Card {
    name: DeviceName,
    free_bytes: u64,
    /// Whether `auto` may come to it.
    is_hardware: bool,
}

/// The bytes of a GPU for each of `count` workers; `None` where a worker has no GPU, or one to itself. `devices` are
/// taken in turn.
pub fn of_workers(devices: &[String], count: usize) -> Vec<Option<u64>> {
    let wishes: Vec<DeviceWish> = (0..count).map(|index| wish(devices, index)).collect();
    let has_hardware = may_have_accelerators();
    let may_be_on_gpu = |wish: &&DeviceWish| match wish {
        DeviceWish::Auto => has_hardware,
        DeviceWish::Named(name) => !matches!(name, DeviceName::Cpu(_)),
    };
    let n_on_gpus = wishes.iter().filter(may_be_on_gpu).count();
    // Nothing is asked of a GPU where none can be shared.
    if n_on_gpus < 2 {
        return vec![None; count];
    }
    // Workers report themselves why a GPU cannot be used.
    let (found, _) = list();
    shares(&wishes, &found.iter().map(Card::of).collect::<Vec<_>>())
}

/// The device for a worker. An invalid name is refused when the worker starts.
fn wish(devices: &[String], index: usize) -> DeviceWish {
    let name = devices.iter().cycle().nth(index);
    name.and_then(|name| split_beside(name).ok()?.0.parse().ok()).unwrap_or_default()
}

impl Card {
    fn of(listed: &Listed) -> Self {
        let facts = &listed.facts;
        let is_hardware = facts.class != DeviceClass::Software && facts.refused.is_none();
        Self { name: listed.name(), free_bytes: facts.free_bytes, is_hardware }
    }
}

fn shares(wishes: &[DeviceWish], cards: &[Card]) -> Vec<Option<u64>> {
    let index = |wish: &DeviceWish| match wish {
        DeviceWish::Auto => cards.iter().position(|card| card.is_hardware),
        DeviceWish::Named(name) => cards.iter().position(|card| card.name == *name),
    };
    let indices: Vec<Option<usize>> = wishes.iter().map(index).collect();
    let share = |of: &Option<usize>| {
        let card = cards.get((*of)?)?;
        let n = indices.iter().filter(|other| *other == of).count() as u64;
        (n > 1).then(|| card.free_bytes.saturating_sub(n * RESERVE_BYTES) / n)
    };
    indices.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_of_one_gpu_share_what_is_free() {
        let card = |name: &str, gib: u64, is_hardware| {
            let name = name.parse().unwrap();
            Card { name, free_bytes: gib << 30, is_hardware }
        };
        let cards =
            [card("vulkan:0", 2, false), card("vulkan:1", 80, true), card("vulkan:2", 24, true)];
        let shares = |names: &[&str]| {
            let wishes: Vec<DeviceWish> = names.iter().map(|name| name.parse().unwrap()).collect();
            shares(&wishes, &cards)
        };
        let half = Some(((80 << 30) - 2 * RESERVE_BYTES) / 2);
        assert_eq!(shares(&["auto", "auto"]), [half, half]);
        assert_eq!(shares(&["vulkan:1", "vulkan:2"]), [None, None]);
        assert_eq!(shares(&["auto", "cpu", "vulkan:1"]), [half, None, half]);
        assert_eq!(shares(&["vulkan:9", "vulkan:9"]), [None, None]);
    }

    #[test]
    fn without_gpus_there_is_nothing_to_share() {
        assert_eq!(of_workers(&["cpu".to_owned()], 3), [None, None, None]);
        assert_eq!(of_workers(&["vulkan:0".to_owned(), "cpu".to_owned()], 2), [None, None]);
        let auto: DeviceWish = "auto".parse().unwrap();
        assert_eq!(shares(&[auto.clone(), auto], &[]), [None, None]);
    }
}
