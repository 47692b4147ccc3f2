//! The choice of a product's kernel and of its cut, by rows, type and device. Without fast math, no bit depends on it.

use brigade_ops::DeviceClass;

use super::LANES;
use super::format::{Format, WeightType};
use super::forms::{FEW_ROWS, RowForm};
use crate::device::lines;
use crate::pipelines::shader::{Shader, shader};
use crate::vulkan::facts::{GpuFacts, MatrixShape, MatrixType};

static FEW: Shader = shader!("product_few");
static MANY: Shader = shader!("product_many");
static UNITS: Shader = shader!("product_units");
static FAST: Shader = shader!("product_fast");
static FLOATS_FEW: Shader = shader!("product_floats_few");
static FLOATS_MANY: Shader = shader!("product_floats_many");

/// Number of the constant for the operands of workgroups.
const KIND: usize = 12;

/// Invocations of a workgroup.
const INVOCATIONS: u32 = 256;

/// The kernel of a product, with its constants and workgroups.
pub(super) struct Kernel {
    pub(super) shader: &'static Shader,
    pub(super) constants: Vec<u32>,
    pub(super) groups: [u32; 3],
}

/// Factors of a product: weights of a type, and rows in a form.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    pub(super) ty: WeightType,
    pub(super) form: RowForm,
}

/// The pieces that the rows of experts are cut into.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    /// Rows that one has at most, a power of two up to 64.
    pub(super) rows: usize,
    /// Number of pieces.
    pub(super) n: usize,
}

impl Kernel {
    /// The kernel for `n_rows` rows and so many panels, at least one of each.
    pub(super) fn of(facts: &GpuFacts, factors: Factors, n_rows: usize, panels: usize) -> Self {
        if n_rows <= FEW_ROWS {
            return Self::of_few(factors.ty, n_rows.next_power_of_two(), panels);
        }
        let enough = if facts.kind == DeviceClass::Software { 1 } else { ENOUGH };
        let units = Units::of(facts, factors);
        if let Some(units) = units.filter(|units| units.pay(n_rows * panels)) {
            let rows = units.rows(n_rows, panels, enough);
            return Self::of_units(&units, rows, n_rows.div_ceil(rows), panels);
        }
        let tile = tile(n_rows, panels, enough);
        let groups = panels.div_ceil(tile) * n_rows.div_ceil(LANES * tile);
        Self::of_many(facts, factors, tile, groups)
    }

    /// The kernel for the pieces of experts. `kind` is what a workgroup of it multiplies.
    pub(super) fn of_experts(
        facts: &GpuFacts,
        factors: Factors,
        pieces: Pieces,
        panels: usize,
        kind: u32,
    ) -> Self {
        let Pieces { rows, n } = pieces;
        let mut kernel = if rows <= FEW_ROWS {
            Self::of_few(factors.ty, rows, panels * n)
        } else {
            let units = Units::of(facts, factors);
            let tile = rows / LANES;
            match units.filter(|units| units.pay(n * rows * panels)) {
                Some(units) => Self::of_units(&units, rows, n, panels),
                None => Self::of_many(facts, factors, tile, panels.div_ceil(tile) * n),
            }
        };
        // Numbers between that no constant of the shader has are without effect.
        let n = kernel.constants.len().max(KIND + 1);
        kernel.constants.resize(n, 0);
        kernel.constants[KIND] = kind;
        kernel
    }

    /// A kernel of up to `rows` rows, of which a workgroup takes all for one panel.
    fn of_few(ty: WeightType, rows: usize, groups: usize) -> Self {
        let (shader, constants) = match ty.format() {
            Some(format) => (&FEW, few(&format, rows as u32)),
            None => (&FLOATS_FEW, vec![float_type(ty), rows as u32]),
        };
        Self { shader, constants, groups: lines(groups) }
    }

    /// The kernel for matrix units, whose workgroups take `rows` rows each: `n_tiles` times so many.
    fn of_units(units: &Units, rows: usize, n_tiles: usize, panels: usize) -> Self {
        let groups = panels.div_ceil(units.panels()) * n_tiles;
        Self { shader: &UNITS, constants: units.constants(rows), groups: lines(groups) }
    }

    /// A kernel whose workgroups take so many panels, and sixteens of rows.
    fn of_many(facts: &GpuFacts, factors: Factors, tile: usize, groups: usize) -> Self {
        let Factors { ty, form } = factors;
        if let (RowForm::Halves, Some(units)) = (form, facts.f16_units()) {
            let constants = fast(ty, &units, facts.limits.subgroup, tile as u32);
            return Self { shader: &FAST, constants, groups: lines(groups) };
        }
        let (shader, constants) = match ty.format() {
            Some(format) => (&MANY, [&format.constants()[..], &[tile as u32]].concat()),
            None => (&FLOATS_MANY, vec![float_type(ty), tile as u32]),
        };
        Self { shader, constants, groups: lines(groups) }
    }
}

/// Matrix units that multiply signed bytes, for a format.
struct Units {
    format: Format,
    /// Rows of activations, rows of weights, columns.
    m: u32,
    n: u32,
    k: u32,
    /// Subgroups of a workgroup, at least.
    subgroups: u32,
    /// Rows times panels from which on they are worth it.
    least: usize,
}

impl Units {
    /// The units of the device that suit best, if products of such rows can use any.
    fn of(facts: &GpuFacts, factors: Factors) -> Option<Self> {
        let Factors { ty, form } = factors;
        let format = ty.format().filter(|_| form == RowForm::Blocks)?;
        let fits = |shape: &&MatrixShape| {
            let MatrixShape { m, n, k, factors, sums } = **shape;
            let types = factors == MatrixType::I8 && sums == MatrixType::I32;
            types && 16 % m == 0 && 16 % n == 0 && [8, 16, 32].contains(&k)
        };
        // Where columns share no scale, half of them are zeros.
        let useful = |shape: &&MatrixShape| shape.m * shape.n * shape.k.min(format.scale_columns());
        let shape = facts.matrices.iter().filter(fits).max_by_key(useful)?;
        let MatrixShape { m, n, k, .. } = *shape;
        let subgroups = (INVOCATIONS / facts.limits.subgroup).max(1);
        let least = if facts.kind == DeviceClass::Software { 1 } else { WORTH_UNITS };
        Some(Self { format, m, n, k, subgroups, least })
    }

    /// Whether a product of so many rows times panels is done sooner by them.
    fn pay(&self, rows_and_panels: usize) -> bool {
        rows_and_panels >= self.least
    }

    /// Panels of a workgroup: shared memory has words for twice as many where these are full.
    fn panels(&self) -> usize {
        if self.k == 8 { 4 } else { 8 }
    }

    /// Number of rows for a workgroup with which the product is done soonest, where `enough` workgroups run at once.
    /// The fixed work of a workgroup counts as some more rows.
    fn rows(&self, n_rows: usize, panels: usize, enough: usize) -> usize {
        const BESIDE: usize = 128;
        let time = |rows: &usize| {
            let groups = panels.div_ceil(self.panels()) * n_rows.div_ceil(*rows);
            groups.div_ceil(enough) * (rows + BESIDE)
        };
        [16, 32, 64].into_iter().min_by_key(time).expect("there are some")
    }

    /// Constants of the kernel, for workgroups of so many rows.
    fn constants(&self, rows: usize) -> Vec<u32> {
        let Self { m, n, k, subgroups, .. } = *self;
        let (high, wide) = (rows as u32 / m, LANES as u32 * self.panels() as u32 / n);
        // Tiles of a subgroup, as near to a square as they can be.
        let mut tiles = [1, 1];
        while (high / tiles[0]) * (wide / tiles[1]) > subgroups {
            let side = usize::from(tiles[0] >= high || tiles[1] < tiles[0]);
            tiles[side] *= 2;
        }
        [&self.format.constants()[..], &[m, n, k, 0, rows as u32], &tiles].concat()
    }
}

/// Constants of the kernel for f16 units, in subgroups of up to `subgroup` invocations.
fn fast(ty: WeightType, units: &MatrixShape, subgroup: u32, tile: u32) -> Vec<u32> {
    let MatrixShape { m, n, k, .. } = *units;
    let side = LANES as u32 * tile;
    let results = (side / m) * (side / n);
    let kept = results.div_ceil((INVOCATIONS / subgroup).max(1));
    // Plain halves have no format: any that the shader knows.
    let format = ty.format().map_or([0, 0, 0, 1, 8, 128, 0, 0, 0], |format| format.constants());
    let own = [m, n, k, 0, tile, kept, ty.format().is_none().into()];
    [&format[..], &own].concat()
}

/// Constants of the kernel of up to `rows` rows: how many blocks are taken at once depends on what shared memory holds of their
/// parts, on each of its two sides.
fn few(format: &Format, rows: u32) -> Vec<u32> {
    /// Blocks that an invocation reads at once, at most: they wait in its registers.
    const AT_ONCE: u32 = 4;
    // One row has many workgroups at once, if each takes little memory.
    let side_bytes = if rows == 1 { 8192 } else { 16384 };
    let fit = side_bytes / (4 * LANES as u32 * rows * format.parts());
    let slices = if fit >= 16 { 16 } else { 8 };
    let side = (fit / slices * slices).clamp(slices, AT_ONCE * slices);
    [&format.constants()[..], &[slices * LANES as u32, rows, side, 0, slices]].concat()
}

/// Rows times panels of a product from which on matrix units are faster: below, there are too few workgroups to hide that each
/// waits for its blocks. Measured with the bench `gpu_ops` on an NVIDIA H200, from where one is as fast as the other.
const WORTH_UNITS: usize = 12288;

/// Workgroups that keep a device busy.
const ENOUGH: usize = 128;

/// Number of panels, and sixteens of rows, for a workgroup. It is the cheapest number with `enough` workgroups, rows
/// that fill up tiles included.
fn tile(n_rows: usize, panels: usize, enough: usize) -> usize {
    let tiles = |tile: &usize| n_rows.div_ceil(LANES * tile);
    // A tile reads each row of either side once for `tile` products.
    let cost = |tile: &usize| tiles(tile) * tile * (tile + 1) * 4 / tile;
    let fits = |tile: &usize| panels.div_ceil(*tile) * tiles(tile) >= enough;
    [4, 2].into_iter().filter(fits).chain([1]).min_by_key(cost).unwrap_or(1)
}

/// The number of a float type in the shaders.
fn float_type(ty: WeightType) -> u32 {
    match ty {
        WeightType::F32 => 0,
        WeightType::F16 => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: MatrixShape =
        MatrixShape { m: 16, n: 16, k: 32, factors: MatrixType::I8, sums: MatrixType::I32 };
    const HALVES: MatrixShape =
        MatrixShape { m: 16, n: 16, k: 16, factors: MatrixType::F16, sums: MatrixType::F32 };

    /// A card with these shapes of matrix units.
    fn card(matrices: &[MatrixShape]) -> GpuFacts {
        GpuFacts::of_card(DeviceClass::Discrete, matrices)
    }

    fn q4_k(form: RowForm) -> Factors {
        Factors { ty: WeightType::Q4_K, form }
    }

    #[test]
    fn matrix_units_multiply_bytes_from_where_they_are_faster() {
        let facts = card(&[BYTES]);
        let kernel = |n_rows, panels| Kernel::of(&facts, q4_k(RowForm::Blocks), n_rows, panels);
        let units = kernel(512, 256);
        assert!(std::ptr::eq(units.shader, &UNITS));
        // 64 rows for 8 panels, and each subgroup of 32 has 4 of the 4 times 8 tiles.
        assert_eq!(units.constants[9..], [16, 16, 32, 0, 64, 2, 2]);
        assert_eq!(units.groups, lines(256 / 8 * 512 / 64));
        // Few workgroups would idle, so they take fewer rows each.
        assert_eq!(kernel(512, 64).constants[13], 32);
        let panels = WORTH_UNITS / 64;
        assert!(std::ptr::eq(kernel(64, panels).shader, &UNITS));
        assert!(std::ptr::eq(kernel(64, panels - 1).shader, &MANY));
        assert!(std::ptr::eq(kernel(FEW_ROWS, 100_000).shader, &FEW));
        // Those in software are there to be tested.
        let software = GpuFacts::of_card(DeviceClass::Software, &[BYTES]);
        let tested = Kernel::of(&software, q4_k(RowForm::Blocks), FEW_ROWS + 1, 1);
        assert!(std::ptr::eq(tested.shader, &UNITS));
    }

    #[test]
    fn units_whose_shape_no_kernel_has_are_left_alone() {
        let shapes = [
            MatrixShape { m: 32, ..BYTES },
            MatrixShape { k: 64, ..BYTES },
            MatrixShape { factors: MatrixType::U8, ..BYTES },
            MatrixShape { sums: MatrixType::F32, ..BYTES },
            HALVES,
        ];
        for shape in shapes {
            let kernel = Kernel::of(&card(&[shape]), q4_k(RowForm::Blocks), 512, 256);
            assert!(std::ptr::eq(kernel.shader, &MANY), "{shape:?}");
        }
        // Of several the one that does most at once.
        let small = MatrixShape { m: 8, n: 8, ..BYTES };
        let kernel = Kernel::of(&card(&[small, BYTES]), q4_k(RowForm::Blocks), 512, 256);
        assert_eq!(kernel.constants[9..12], [16, 16, 32]);
    }

    #[test]
    fn rows_in_halves_are_multiplied_by_units_of_f16() {
        let facts = card(&[BYTES, HALVES]);
        assert!(facts.has_f16_units() && facts.has_int8_units());
        assert!(facts.f16_identity().contains("F16"), "{}", facts.f16_identity());
        let kernel = Kernel::of(&facts, q4_k(RowForm::Halves), 512, 256);
        assert!(std::ptr::eq(kernel.shader, &FAST));
        let tile = tile(512, 256, ENOUGH) as u32;
        let results = tile * tile;
        // A workgroup of 256 has 8 subgroups of 32, each with as many of the results.
        assert_eq!(kernel.constants[9..], [16, 16, 16, 0, tile, results.div_ceil(8), 0]);
        let plain = Factors { ty: WeightType::F16, form: RowForm::Halves };
        assert_eq!(Kernel::of(&facts, plain, 512, 256).constants.last(), Some(&1));
    }

    #[test]
    fn pieces_of_experts_say_what_they_multiply() {
        let facts = card(&[BYTES]);
        let of = |rows, n, panels| {
            let (pieces, factors) = (Pieces { rows, n }, q4_k(RowForm::Blocks));
            Kernel::of_experts(&facts, factors, pieces, panels, 3)
        };
        for (kernel, shader, groups) in [
            (of(64, 40, 64), &UNITS, 64 / 8 * 40),
            (of(64, 2, 64), &MANY, 64 / 4 * 2),
            (of(1, 5, 64), &FEW, 64 * 5),
        ] {
            assert!(std::ptr::eq(kernel.shader, shader), "{:?}", kernel.constants);
            assert_eq!(kernel.constants[KIND], 3);
            assert_eq!(kernel.groups, lines(groups));
        }
    }
}
