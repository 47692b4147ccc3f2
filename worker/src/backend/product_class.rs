//! Classes of products, by the arithmetic of their weights. Machines differ by another factor in each class, so a worker
//! measures one type of each, and the planner adds up a layer's operations class by class.

use std::iter::Sum;
use std::ops::{Add, Index, IndexMut, Sub};

use brigade_quant::GgmlType;
use serde::{Deserialize, Serialize};

/// A class of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductClass {
    /// Weights in blocks of integers of up to five bits, with one scale for 32 columns.
    Nibble,
    /// Integers of six or seven bits, or a scale for each 16 columns.
    Halves,
    /// Integers that fill the byte once they are unpacked.
    Byte,
    /// Floating-point weights, in f32 arithmetic; with fast math in pairs of bfloat16 values. F32 is then counted too fast: no
    /// files of large models have it.
    Float,
}

impl ProductClass {
    /// Every class.
    pub const ALL: [Self; 4] = [Self::Nibble, Self::Halves, Self::Byte, Self::Float];

    /// The class of products with weights of type `ty`.
    pub fn of(ty: GgmlType) -> Self {
        match ty {
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => Self::Float,
            GgmlType::Q8_0 | GgmlType::IQ4_NL | GgmlType::IQ4_XS => Self::Byte,
            GgmlType::Q2_K
            | GgmlType::Q3_K
            | GgmlType::Q6_K
            | GgmlType::IQ1_M
            | GgmlType::IQ2_XXS
            | GgmlType::IQ2_XS
            | GgmlType::IQ2_S
            | GgmlType::IQ3_XXS
            | GgmlType::NVFP4 => Self::Halves,
            _ => Self::Nibble,
        }
    }

    /// The type that is measured for the class: the one that most files have.
    pub fn measured_type(self) -> GgmlType {
        match self {
            Self::Nibble => GgmlType::Q4_K,
            Self::Halves => GgmlType::Q6_K,
            Self::Byte => GgmlType::Q8_0,
            Self::Float => GgmlType::F16,
        }
    }
}

/// A value for each class. In JSON a class has the name of the type that is measured for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ByClass<T> {
    /// Of [`ProductClass::Nibble`].
    #[serde(rename = "q4_k")]
    pub nibble: T,
    /// Of [`ProductClass::Halves`].
    #[serde(rename = "q6_k")]
    pub halves: T,
    /// Of [`ProductClass::Byte`].
    #[serde(rename = "q8_0")]
    pub byte: T,
    /// Of [`ProductClass::Float`].
    #[serde(rename = "f16")]
    pub float: T,
}

impl<T: Copy> ByClass<T> {
    /// What `value` says of each class.
    pub fn from_fn(mut value: impl FnMut(ProductClass) -> T) -> Self {
        let [nibble, halves, byte, float] = ProductClass::ALL.map(&mut value);
        Self { nibble, halves, byte, float }
    }

    /// The same value for every class.
    pub fn all(value: T) -> Self {
        Self::from_fn(|_| value)
    }

    /// `value` for one class, and nothing for the others.
    pub fn only(class: ProductClass, value: T) -> Self
    where
        T: Default,
    {
        let mut only = Self::default();
        only[class] = value;
        only
    }

    /// The values, in the order of [`ProductClass::ALL`].
    pub fn values(&self) -> [T; 4] {
        ProductClass::ALL.map(|class| self[class])
    }

    /// What `change` makes of each value.
    pub fn map<U: Copy>(self, change: impl Fn(T) -> U) -> ByClass<U> {
        ByClass::from_fn(|class| change(self[class]))
    }

    /// What `join` makes of each value and that of `other` for the same class.
    pub fn zip<U: Copy, V: Copy>(self, other: ByClass<U>, join: impl Fn(T, U) -> V) -> ByClass<V> {
        ByClass::from_fn(|class| join(self[class], other[class]))
    }

    /// The sum over all classes.
    pub fn sum(&self) -> T
    where
        T: Sum,
    {
        self.values().into_iter().sum()
    }

    /// The value that all classes have; `None`: they differ.
    pub fn common(&self) -> Option<T>
    where
        T: PartialEq,
    {
        (*self == Self::all(self.nibble)).then_some(self.nibble)
    }
}

impl ByClass<u64> {
    /// The speed of products with so many elements of each class, where those of one class have `speeds`. Without elements: that
    /// of the first class.
    pub fn mean_speed(self, speeds: ByClass<f64>) -> f64 {
        match self.sum() {
            0 => speeds.nibble,
            n => n as f64 / self.zip(speeds, |n, speed| n as f64 / speed).sum(),
        }
    }
}

impl<T> Index<ProductClass> for ByClass<T> {
    type Output = T;

    fn index(&self, class: ProductClass) -> &T {
        match class {
            ProductClass::Nibble => &self.nibble,
            ProductClass::Halves => &self.halves,
            ProductClass::Byte => &self.byte,
            ProductClass::Float => &self.float,
        }
    }
}

impl<T> IndexMut<ProductClass> for ByClass<T> {
    fn index_mut(&mut self, class: ProductClass) -> &mut T {
        match class {
            ProductClass::Nibble => &mut self.nibble,
            ProductClass::Halves => &mut self.halves,
            ProductClass::Byte => &mut self.byte,
            ProductClass::Float => &mut self.float,
        }
    }
}

impl<T: Copy + Add<Output = T>> Add for ByClass<T> {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
}

impl<T: Copy + Sub<Output = T>> Sub for ByClass<T> {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
}

impl<T: Copy + Default + Add<Output = T>> Sum for ByClass<T> {
    fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
        values.fold(Self::default(), |sum, value| sum + value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_measured_with_a_type_of_its_own() {
        for class in ProductClass::ALL {
            assert_eq!(ProductClass::of(class.measured_type()), class);
        }
    }

    #[test]
    fn json_names_classes_by_their_types() {
        let speeds = ByClass { nibble: 4.0, halves: 3.0, byte: 2.0, float: 1.0 };
        let text = serde_json::to_string(&speeds).unwrap();
        assert_eq!(text, r#"{"q4_k":4.0,"q6_k":3.0,"q8_0":2.0,"f16":1.0}"#);
        assert_eq!(serde_json::from_str::<ByClass<f64>>(&text).unwrap(), speeds);
        assert_eq!((speeds.common(), ByClass::all(4.0).common()), (None, Some(4.0)));
        assert_eq!((speeds + speeds - ByClass::only(ProductClass::Float, 2.0)).sum(), 18.0);
    }
}
