//! What one PE has computed, and the bytes that it travels in to PE 0.

use crate::measure::Called;
use longreach::{Elements, Error, Tensor};
use serde::{Deserialize, Serialize};

/// Names of the tensors of a call, in the order in which PEs have them.
const NAMES: [&str; 5] = ["out", "lse", "dq", "dk", "dv"];

/// The tensors of a PE's first run, and what was measured in each run.
#[derive(Debug)]
pub struct Part {
    /// The results by name, float32.
    pub tensors: Vec<(&'static str, Tensor)>,
    /// The first run (from 1) with other bits than the first one, and the tensor.
    pub difference: Option<(usize, &'static str)>,
    /// Each run's statistics.
    pub calls: Vec<Called>,
}

/// All of a part but the elements, which follow it.
#[derive(Serialize, Deserialize)]
struct Head {
    shapes: Vec<[usize; 4]>,
    /// Run and number of the name.
    difference: Option<(usize, usize)>,
    calls: Vec<Called>,
}

impl Part {
    /// The part as bytes: the length of a head, the head, and the tensors' elements.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let number = |name: &str| NAMES.iter().position(|known| *known == name).unwrap_or(0);
        let head = Head {
            shapes: self.tensors.iter().map(|(_, tensor)| tensor.shape()).collect(),
            difference: self.difference.map(|(run, name)| (run, number(name))),
            calls: self.calls.clone(),
        };
        let head = serde_json::to_vec(&head).map_err(|error| Error::Input(error.to_string()))?;
        let mut bytes = (head.len() as u64).to_le_bytes().to_vec();
        bytes.extend(head);
        self.tensors.iter().for_each(|(_, tensor)| bytes.extend_from_slice(tensor.elements().bytes()));
        Ok(bytes)
    }

    /// The part that [`Part::to_bytes`] gave of a PE of this program.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        Self::read(bytes).ok_or_else(|| Error::Input("a PE's results cannot be read".to_owned()))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (len, bytes) = bytes.split_first_chunk()?;
        let (head, mut elements) = bytes.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        let head: Head = serde_json::from_slice(head).ok()?;
        let mut tensors = Vec::with_capacity(head.shapes.len());
        for (name, shape) in NAMES.into_iter().zip(head.shapes) {
            let own = shape.iter().try_fold(size_of::<f32>(), |size, dim| size.checked_mul(*dim))?;
            let (own, rest) = elements.split_at_checked(own)?;
            tensors.push((name, Tensor::new(Elements::F32(floats(own)), shape).ok()?));
            elements = rest;
        }
        let difference = match head.difference {
            None => None,
            Some((run, name)) => Some((run, *NAMES.get(name)?)),
        };
        elements.is_empty().then_some(Self { tensors, difference, calls: head.calls })
    }
}

/// Elements in the order of bytes that a tensor's have: PEs are on one machine.
fn floats(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks();
    values.iter().map(|value| f32::from_ne_bytes(*value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Timed;

    fn part() -> Part {
        let tensor = |shape: [usize; 4]| {
            let values = (0..shape.iter().product()).map(|i| i as f32 - 0.5);
            Tensor::new(Elements::F32(values.collect()), shape).unwrap()
        };
        let mut out = tensor([1, 2, 3, 4]);
        out = Tensor::new(
            Elements::F32([&[f32::NAN, -0.0, f32::NEG_INFINITY], &out.as_f32().unwrap()[3..]].concat()),
            out.shape(),
        )
        .unwrap();
        let timed = Timed { start: 0.1, end: 0.7, flops: u64::MAX, ..Timed::default() };
        Part {
            tensors: vec![("out", out), ("lse", tensor([1, 3, 2, 1])), ("dq", tensor([1, 0, 3, 4]))],
            difference: Some((7, "dq")),
            calls: vec![Called { forward: timed, backward: None }; 2],
        }
    }

    #[test]
    fn a_part_comes_back_bit_by_bit() {
        let (part, back) = (part(), Part::from_bytes(&part().to_bytes().unwrap()).unwrap());
        assert_eq!(back.difference, part.difference);
        assert_eq!(back.calls.len(), 2);
        assert_eq!((back.calls[1].forward.flops, back.calls[0].forward.end), (u64::MAX, 0.7));
        for ((name, tensor), (as_before, before)) in back.tensors.iter().zip(&part.tensors) {
            assert_eq!((name, tensor.shape()), (as_before, before.shape()));
            assert_eq!(tensor.elements().bytes(), before.elements().bytes());
        }
    }

    #[test]
    fn bytes_that_are_cut_or_too_many_are_an_error() {
        let bytes = part().to_bytes().unwrap();
        for len in 0..bytes.len() {
            assert!(Part::from_bytes(&bytes[..len]).is_err(), "{len}");
        }
        assert!(Part::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    }
}
