//! Moves operands: from the host to far memory, as every device does with its own memory, and from far memory to copies that
//! the host's kernels read.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use brigade_ops::{Anywhere, Carry, Derived, Element, Host, Place, View, ViewMut};

use super::memory::{FarBuffer, FarView, FarViewMut};

/// Far memory, as a place of operands.
#[derive(Clone, Copy, Debug)]
pub struct InFar;

impl Place for InFar {
    type Read<'a, T: Element> = FarView<'a>;
    type Write<'a, T: Element> = FarViewMut<'a>;

    fn len<T: Element>(values: &FarView<'_>) -> usize {
        values.len() / size_of::<T>()
    }

    fn len_mut<T: Element>(values: &FarViewMut<'_>) -> usize {
        values.view().len() / size_of::<T>()
    }
}

/// Far copies of what the host lends to an op: a list, of which each copy has the next.
#[derive(Default)]
pub struct Lent(OnceCell<Box<(FarBuffer, Lent)>>);

/// Takes operands to far memory. Operands with the host are copied there for the op, and constant ones once for all
/// ops.
///
/// # Panics
/// If something that is to be written lies elsewhere.
pub struct ToFar<'b> {
    lent: &'b Lent,
    reads: &'b Arc<AtomicU64>,
}

impl<'b> ToFar<'b> {
    /// A carrier that keeps values lent for the op in `lent`.
    pub fn new(lent: &'b Lent, reads: &'b Arc<AtomicU64>) -> Self {
        Self { lent, reads }
    }
}

impl<'a: 'b, 'b> Carry<'a, 'b, Anywhere, InFar> for ToFar<'b> {
    fn read<T: Element>(&mut self, values: View<'a, T>) -> FarView<'b> {
        match values {
            View::Host(values) => {
                let copy = || FarBuffer::of(bytemuck::cast_slice(values), self.reads);
                let (copy, next) =
                    &**self.lent.0.get_or_init(|| Box::new((copy(), Lent::default())));
                self.lent = next;
                copy.view()
            }
            View::Lasting(values, copies) => {
                let copy = || FarBuffer::of(bytemuck::cast_slice(values), self.reads);
                copies.kept::<FarBuffer>(copy).expect("values have the copy of one device").view()
            }
            View::Device(part) => FarView::of(part),
        }
    }

    fn write<T: Element>(&mut self, values: ViewMut<'a, T>) -> FarViewMut<'b> {
        match values {
            ViewMut::Host(_) => panic!("an op in far memory writes there"),
            ViewMut::Device(part) => FarViewMut::new(FarView::of(part.into_part())),
        }
    }
}

/// Copies that kernels compute with: a list, of which each copy has the next.
#[derive(Default)]
pub struct Near(Option<Box<Copied>>);

#[derive(Default)]
struct Copied {
    values: Vec<u32>,
    derived: Derived,
    next: Near,
}

/// Makes copies of operands in far memory, in the host's order of values.
pub struct ToNear<'a, 'b> {
    next: Option<&'b mut Near>,
    /// For each copy where it belongs, if it is written.
    written: Vec<Option<FarViewMut<'a>>>,
}

impl<'a, 'b> ToNear<'a, 'b> {
    /// The copies are kept in `near`.
    pub fn new(near: &'b mut Near) -> Self {
        Self { next: Some(near), written: Vec::new() }
    }

    /// For each copy where it belongs, if it is written.
    pub fn into_written(self) -> Vec<Option<FarViewMut<'a>>> {
        self.written
    }

    fn copy(&mut self, of: Option<FarView<'_>>) -> (&'b mut Vec<u32>, &'b Derived) {
        let place = self.next.take().expect("a place for the next copy");
        let copy =
            Copied { values: of.map_or_else(Vec::new, |of| of.decode()), ..Copied::default() };
        let Copied { values, derived, next } = &mut **place.0.insert(Box::new(copy));
        self.next = Some(next);
        self.written.push(None);
        (values, derived)
    }
}

impl<'a: 'b, 'b> Carry<'a, 'b, InFar, Host> for ToNear<'a, 'b> {
    fn read<T: Element>(&mut self, values: FarView<'a>) -> &'b [T] {
        bytemuck::cast_slice(self.copy(Some(values)).0)
    }

    fn write<T: Element>(&mut self, values: FarViewMut<'a>) -> &'b mut [T] {
        let copy = self.copy(Some(values.view())).0;
        // In the place of the entry that the copy has got.
        self.written.pop();
        self.written.push(Some(values));
        bytemuck::cast_slice_mut(copy)
    }

    // What was derived from the far operand is another device's: the copy has its own.
    fn derived(&mut self, _: &'a Derived) -> &'b Derived {
        self.copy(None).1
    }
}

impl Near {
    /// Writes to far memory what was written to copies.
    pub fn put_back(&self, written: Vec<Option<FarViewMut<'_>>>) {
        let copies = std::iter::successors(self.0.as_ref(), |copy| copy.next.0.as_ref());
        for (copy, place) in copies.zip(written) {
            if let Some(place) = place {
                place.encode(&bytemuck::cast_slice(&copy.values)[..place.view().len()]);
            }
        }
    }
}
