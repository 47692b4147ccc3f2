//! Dispatch of an op. It runs on the device that has its outputs and a kernel for it, else on the host. No other code
//! makes this choice.

use crate::ops::{
    Anywhere, Carry, Copy, Derived, Element, Host, Op, Operands, PairLists, Part, PartMut, Routing,
    View, ViewMut,
};

use crate::device::accelerator::There;
use crate::device::{Device, give_up, with_room};

/// Message of a panic: a stage on the host got values of a device.
const NO_DEVICE: &str = "values with a device belong to a stage that has one";

impl Device {
    /// Runs an op, or has the device begin with it.
    ///
    /// # Panics
    /// If its shapes disagree, or a device has no memory for it: the stage ends with this as its reason.
    #[inline]
    pub fn run<'a>(&self, op: impl Operands<'a>) {
        match &self.there {
            None => self.compute.run(op.at(&mut Here)),
            Some(there) => self.run_with(there, op.into()),
        }
    }

    /// Runs an op with a device, or on the host beside it.
    fn run_with(&self, there: &There, op: Op<'_, Anywhere>) {
        if op.writes_with_device() && there.supports(&op) {
            there.do_now(op);
        } else {
            self.run_on_host(there, op);
        }
    }

    /// Runs an op on the host. Operands with a device are copied to the host first, and results go back.
    fn run_on_host(&self, there: &There, op: Op<'_, Anywhere>) {
        let mut copies = None;
        let mut to_host = ToHost { next: Some(&mut copies), n: 0, written: Vec::new() };
        self.compute.run(op.carried(&mut to_host));
        let written = to_host.written;
        let mut numbered = std::iter::successors(copies.as_deref(), |copy| copy.next.as_deref());
        let mut n = 0;
        for (number, part) in written {
            let copy = numbered.nth(number - n).expect("a copy of what was written");
            n = number + 1;
            let from = View::Host(bytemuck::cast_slice(&copy.values));
            there.do_now(Copy { from, to: ViewMut::Device(part) });
        }
    }
}

/// Lists of the experts and their rows, brought to the host: waits for a device that chose them.
///
/// # Panics
/// If the device has no room for a copy. The stage ends with this as its reason.
pub(crate) fn bring_lists(routing: &Routing) -> &PairLists {
    with_room("a copy of the experts' lists", routing.bring())
}

/// Operands of a stage without a device: all of them lie with the host.
struct Here;

impl<'a: 'c, 'c> Carry<'a, 'c, Anywhere, Host> for Here {
    #[inline]
    fn read<T: Element>(&mut self, values: View<'a, T>) -> &'c [T] {
        match values {
            View::Host(values) | View::Lasting(values, _) => values,
            View::Device(_) => panic!("{NO_DEVICE}"),
        }
    }

    #[inline]
    fn write<T: Element>(&mut self, values: ViewMut<'a, T>) -> &'c mut [T] {
        match values {
            ViewMut::Host(values) => values,
            ViewMut::Device(_) => panic!("{NO_DEVICE}"),
        }
    }
}

/// A copy of what a device has, and behind it the next one.
#[derive(Default)]
struct Copied {
    values: Vec<u32>,
    /// Forms of the values that the host keeps.
    derived: Derived,
    next: Option<Box<Copied>>,
}

/// Takes operands to the host: those of a device as copies, which are made one after the other.
struct ToHost<'a, 'c> {
    /// The place of the next copy; it is always there.
    next: Option<&'c mut Option<Box<Copied>>>,
    /// Number of values.
    n: usize,
    /// Copies that are written, by their number, and where they belong.
    written: Vec<(usize, PartMut<'a>)>,
}

impl<'c> ToHost<'_, 'c> {
    /// The next copy, and its number.
    fn copy_of(&mut self, part: Option<Part<'_>>) -> (usize, &'c mut Vec<u32>, &'c Derived) {
        let mut copy = Copied::default();
        if let Some(part) = part {
            let (buffer, bytes) = part.place();
            let mut read = Vec::with_capacity(bytes.len());
            if let Err(error) = buffer.read(bytes, &mut read) {
                give_up("a copy of a device's values", &error);
            }
            copy.values = bytemuck::pod_collect_to_vec(&read);
        }
        let place = self.next.take().expect("a place for the next copy");
        let Copied { values, derived, next } = &mut **place.insert(Box::new(copy));
        self.next = Some(next);
        self.n += 1;
        (self.n - 1, values, derived)
    }
}

impl<'a: 'c, 'c> Carry<'a, 'c, Anywhere, Host> for ToHost<'a, 'c> {
    fn read<T: Element>(&mut self, values: View<'a, T>) -> &'c [T] {
        match values {
            View::Host(values) | View::Lasting(values, _) => values,
            View::Device(part) => bytemuck::cast_slice(self.copy_of(Some(part)).1),
        }
    }

    fn write<T: Element>(&mut self, values: ViewMut<'a, T>) -> &'c mut [T] {
        match values {
            ViewMut::Host(values) => values,
            ViewMut::Device(part) => {
                let (number, copy, _) = self.copy_of(Some(part.as_part()));
                self.written.push((number, part));
                bytemuck::cast_slice_mut(copy)
            }
        }
    }

    fn derived(&mut self, _: &'a Derived) -> &'c Derived {
        self.copy_of(None).2
    }

    fn pairs(&mut self, routing: &Routing) {
        bring_lists(routing);
    }
}
