//! A stage's time as a function of rows: a straight line, and measurements of about one size.

/// Weight of a new measurement in its bucket, once the bucket has `1 / RECENT` of them.
pub(super) const RECENT: f64 = 1.0 / 16.0;

/// Ubatches after which the last measurements of about a size count half: a machine that was slow then may
/// not be now, and a size that seemed slow should be tried again.
pub(super) const HALF_LIFE: f64 = 128.0;

/// `fixed + per_row * rows`, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    pub fixed: f64,
    pub per_row: f64,
}

impl Cost {
    pub fn of(self, rows: u32) -> f64 {
        self.fixed + self.per_row * f64::from(rows)
    }

    /// Most rows that take no longer than `us`.
    pub fn rows_within(self, us: f64) -> f64 {
        ((us - self.fixed) / self.per_row).max(0.0)
    }
}

/// Measurements of ubatches of about the same size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    pub n: f64,
    pub rows: f64,
    pub us: f64,
    /// Mean of |measured - mean| / mean.
    pub deviation: f64,
    /// The number of the stage's ubatch that was measured here last.
    pub last: u64,
}

impl Bucket {
    /// `per_row` carries the mean to this size: a bucket's sizes differ up to twofold.
    pub fn add(&mut self, rows: f64, us: f64, per_row: f64) {
        self.n += 1.0;
        let weight = (1.0 / self.n).max(RECENT);
        if self.n > 1.0 {
            let expected = self.us + per_row * (rows - self.rows);
            self.deviation += weight * ((us - expected).abs() / self.us - self.deviation);
        }
        self.rows += weight * (rows - self.rows);
        self.us += weight * (us - self.us);
    }
}
