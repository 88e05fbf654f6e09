//! Results of a run, in float32 before output rounding and in the order of the whole sequence.

use crate::stats::{Pass, PerPe, Span};
use longreach::{Need, Tensor};

/// Tensors of a call; gradients are empty where none were asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// `[B, Sq, Hq, Dv]`.
    pub out: Vec<f32>,
    /// `[B, Hq, Sq]`.
    pub lse: Vec<f32>,
    /// `[B, Sq, Hq, Dqk]`.
    pub dq: Vec<f32>,
    /// `[B, Skv, Hkv, Dqk]`.
    pub dk: Vec<f32>,
    /// `[B, Skv, Hkv, Dv]`.
    pub dv: Vec<f32>,
}

impl Results {
    /// The tensors by name.
    pub fn tensors(&self) -> [(&'static str, &[f32]); 5] {
        [("out", &self.out), ("lse", &self.lse), ("dq", &self.dq), ("dk", &self.dk), ("dv", &self.dv)]
    }
}

/// The first tensor of two lists of the same ones of which not all bits are the same.
pub fn difference<'t>(
    first: impl IntoIterator<Item = (&'static str, &'t Tensor)>,
    second: impl IntoIterator<Item = (&'static str, &'t Tensor)>,
) -> Option<&'static str> {
    let same =
        |a: &Tensor, b: &Tensor| a.shape() == b.shape() && a.elements().bytes() == b.elements().bytes();
    first.into_iter().zip(second).find_map(|((name, a), (_, b))| (!same(a, b)).then_some(name))
}

/// What was measured in one of several equal runs.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The forward pass of all PEs.
    pub forward: Pass,
    /// The backward pass of all PEs.
    pub backward: Option<Pass>,
    /// Each PE's part.
    pub per_pe: Vec<PerPe>,
}

/// Equal runs, one after the other in one world.
#[derive(Clone, Debug)]
pub struct Runs {
    /// The tensors of the first run.
    pub results: Results,
    /// The first run (counted from 1) with other bits than the first one, and the tensor.
    pub difference: Option<(usize, &'static str)>,
    /// Each run's times.
    pub measured: Vec<Measured>,
    /// Largest number of fetched stages of a PE.
    pub stages: usize,
    /// Symmetric and scratch memory of the PE that takes most.
    pub need: Need,
    /// What every stream did when, in the first run.
    pub spans: Vec<Span>,
}

impl Runs {
    /// One run with the medians of the times over all of them.
    pub fn median(&self) -> Measured {
        let pe = |number: usize, first: &PerPe| PerPe {
            forward: Pass::median(&self.each(|run| run.per_pe[number].forward)),
            backward: median_of_some(&self.each(|run| run.per_pe[number].backward)),
            ..first.clone()
        };
        let per_pe = self.measured.first().map_or(&[][..], |first| &first.per_pe);
        Measured {
            forward: Pass::median(&self.each(|run| run.forward)),
            backward: median_of_some(&self.each(|run| run.backward)),
            per_pe: per_pe.iter().enumerate().map(|(number, first)| pe(number, first)).collect(),
        }
    }

    fn each<T>(&self, of: impl Fn(&Measured) -> T) -> Vec<T> {
        self.measured.iter().map(of).collect()
    }
}

fn median_of_some(passes: &[Option<Pass>]) -> Option<Pass> {
    let passes: Vec<Pass> = passes.iter().flatten().copied().collect();
    (!passes.is_empty()).then(|| Pass::median(&passes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_with_other_bits_differ() {
        let tensor = |x| Tensor::new(longreach::Elements::F32(vec![1.0, x]), [1, 2, 1, 1]).unwrap();
        let found = |x, y| {
            let (one, a, b) = (tensor(1.0), tensor(x), tensor(y));
            difference([("out", &one), ("dk", &a)], [("out", &one), ("dk", &b)])
        };
        assert_eq!(found(0.0, 0.0), None);
        assert_eq!(found(0.0, -0.0), Some("dk"));
        assert_eq!(found(f32::NAN, f32::NAN), None);
    }
}
