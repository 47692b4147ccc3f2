//! Where an op runs: on the device that has what it writes and a kernel for it, else on the host. This is the one place for that.

use crate::ops::{Anywhere, Carry, Element, Host, Op, Operands, Part, PartMut, View, ViewMut};
use brigade_gpu::{Gpu, GpuBuffer, ToGpu};

use super::{Device, give_up, with_room};

/// Why a stage on the host meets no values of a device.
const NO_DEVICE: &str = "values with a device belong to a stage that has one";

/// Most operands of an op that a device has and the host brings to its memory.
const MOST_COPIES: usize = 256;

impl Device {
    /// Runs an op, or has the device begin with it.
    ///
    /// # Panics
    /// If its shapes disagree, or a device has no memory for it: the stage ends with this as its reason.
    #[inline]
    pub fn run<'a>(&self, op: impl Operands<'a>) {
        match &self.gpu {
            None => self.compute.run(op.at(&mut Here)),
            Some(gpu) => self.run_with(gpu, op.into()),
        }
    }

    /// Runs an op with a device, or on the host beside it.
    fn run_with(&self, gpu: &Gpu, op: Op<'_, Anywhere>) {
        if op.writes_with_device() && gpu.supports(&op) {
            let name = op.name();
            with_room(name, gpu.run(op.carried(&mut ToGpu(gpu))));
        } else {
            self.run_on_host(gpu, op);
        }
    }

    /// Runs an op on the host. What a device has is brought here first, and what was written goes back.
    fn run_on_host(&self, gpu: &Gpu, op: Op<'_, Anywhere>) {
        let mut copies = vec![Vec::new(); MOST_COPIES];
        let mut to_host = ToHost { copies: copies.iter_mut(), written: Vec::new() };
        self.compute.run(op.carried(&mut to_host));
        for (place, part) in to_host.written {
            let to = ToGpu(gpu).write::<u32>(ViewMut::Device(part));
            gpu.copy(gpu.upload(bytemuck::cast_slice(&copies[place])), to);
        }
    }
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

/// Takes operands to the host: those of a device as copies, which are made one after the other.
struct ToHost<'a, 'c> {
    copies: std::slice::IterMut<'c, Vec<u32>>,
    /// Copies that are written, by their number, and where they belong.
    written: Vec<(usize, PartMut<'a>)>,
}

impl<'c> ToHost<'_, 'c> {
    /// A copy of what a device has, and its number.
    fn copy_of<T: Element>(&mut self, part: Part<'_>) -> (usize, &'c mut [T]) {
        let number = MOST_COPIES - self.copies.len();
        let copy = self.copies.next().expect("no op has more operands than there are copies");
        let (buffer, bytes) = part.within::<GpuBuffer>().expect("a device's buffer is a GPU's");
        let mut read = Vec::with_capacity(bytes.len());
        if let Err(error) = buffer.read(bytes, &mut read) {
            give_up("a copy of a device's values", &error);
        }
        *copy = bytemuck::pod_collect_to_vec(&read);
        (number, bytemuck::cast_slice_mut(copy))
    }
}

impl<'a: 'c, 'c> Carry<'a, 'c, Anywhere, Host> for ToHost<'a, 'c> {
    fn read<T: Element>(&mut self, values: View<'a, T>) -> &'c [T] {
        match values {
            View::Host(values) | View::Lasting(values, _) => values,
            View::Device(part) => self.copy_of(part).1,
        }
    }

    fn write<T: Element>(&mut self, values: ViewMut<'a, T>) -> &'c mut [T] {
        match values {
            ViewMut::Host(values) => values,
            ViewMut::Device(part) => {
                let (number, copy) = self.copy_of(part.as_part());
                self.written.push((number, part));
                copy
            }
        }
    }
}
