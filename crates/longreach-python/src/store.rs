//! Results of the engine into tensors of others, in their type.

use crate::dlpack::Memory;
use crate::error::refused;
use half::{bf16, f16};
use longreach::{DType, Tensor};
use pyo3::PyResult;

/// Writes `tensor`, float32, into `memory`, rounding once.
///
/// # Safety
/// The owner of `memory` must be there, and nobody else may use it meanwhile.
pub unsafe fn store(name: &str, tensor: &Tensor, memory: &Memory) -> PyResult<()> {
    let Some(from) = tensor.as_f32().filter(|_| tensor.shape() == memory.shape) else {
        let (given, expected) = (memory.shape, tensor.shape());
        return Err(refused(format!("{name} has shape {given:?}: the result has {expected:?}")));
    };
    match memory.dtype {
        // SAFETY: as promised, and the type is that.
        DType::F32 => scatter(from, memory, unsafe { memory.elements_mut::<f32>() }, |x| x),
        // SAFETY: as promised, and the type is that.
        DType::F16 => scatter(from, memory, unsafe { memory.elements_mut::<f16>() }, f16::from_f32),
        // SAFETY: as promised, and the type is that.
        DType::Bf16 => scatter(from, memory, unsafe { memory.elements_mut::<bf16>() }, bf16::from_f32),
    }
    Ok(())
}

fn scatter<T>(from: &[f32], memory: &Memory, into: &mut [T], convert: impl Fn(f32) -> T) {
    let ([batch, rows, heads, dim], [sb, ss, sh, sd]) = (memory.shape, memory.strides);
    if from.is_empty() {
        return;
    }
    let mut values = from.chunks_exact(dim);
    for b in 0..batch {
        for s in 0..rows {
            for h in 0..heads {
                let start = b * sb + s * ss + h * sh;
                let Some(row) = values.next() else { return };
                if sd == 1 {
                    for (into, &x) in into[start..start + dim].iter_mut().zip(row) {
                        *into = convert(x);
                    }
                } else {
                    for (d, &x) in row.iter().enumerate() {
                        into[start + d * sd] = convert(x);
                    }
                }
            }
        }
    }
}
