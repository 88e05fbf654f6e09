//! Between whole tensors and the rows that each PE holds.

use crate::error::Error;
use crate::memory::count;
use crate::tensor::{Elements, Tensor};
use longreach_kernels::View;
use longreach_plan::Shards;

/// The rows of a whole tensor `[batch, sequence, heads, dim]` that `pe` holds, in its own order, copied.
///
/// Fails when the sequence is not as long as what `shards` shares out, or there is no such PE.
pub fn shard(whole: &View, shards: &Shards, pe: usize) -> Result<Tensor, Error> {
    let given = whole.shape()[1];
    if given != shards.total() {
        return Err(Error::Input(format!(
            "a tensor of {given} rows: the shards are of {} rows",
            shards.total()
        )));
    }
    if pe >= shards.pes() {
        return Err(Error::Input(format!("PE {pe}: the shards are for {} PEs", shards.pes())));
    }
    Tensor::gather(whole, shards.positions(pe).map(|row| row..row + 1))
}

const WHOLE: &str = "a whole tensor";

/// The whole tensor of the parts `[batch, rows, heads, dim]` that the PEs hold, in PE order; what [`shard`] undoes.
///
/// Fails when the parts are not those of `shards` or differ in type, batch, heads or dim.
pub fn unshard(parts: &[Tensor], shards: &Shards) -> Result<Tensor, Error> {
    let Some(first) = parts.first().filter(|_| parts.len() == shards.pes()) else {
        return Err(Error::Input(format!("{} parts: the shards are for {} PEs", parts.len(), shards.pes())));
    };
    let [batch, _, heads, dim] = first.shape();
    let elements = count(WHOLE, [batch, shards.total(), heads, dim])?;
    let mut whole = Elements::zeros(WHOLE, first.dtype(), elements)?;
    let width = heads * dim * first.dtype().size();
    for (pe, part) in parts.iter().enumerate() {
        let expected = [batch, shards.len(pe), heads, dim];
        if part.shape() != expected || part.dtype() != first.dtype() {
            return Err(Error::Input(format!(
                "the part of PE {pe} is {} {:?}: expected {} {expected:?}",
                part.dtype(),
                part.shape(),
                first.dtype()
            )));
        }
        let (to, from) = (whole.bytes_mut(), part.elements().bytes());
        for b in 0..batch {
            for (row, position) in shards.positions(pe).enumerate() {
                let (to_row, from_row) = (b * shards.total() + position, b * shards.len(pe) + row);
                to[to_row * width..(to_row + 1) * width]
                    .copy_from_slice(&from[from_row * width..(from_row + 1) * width]);
            }
        }
    }
    Tensor::new(whole, [batch, shards.total(), heads, dim])
}

#[cfg(test)]
mod tests {
    use super::*;
    use longreach_kernels::Data;
    use longreach_plan::{Documents, Layout};

    #[test]
    fn unshard_undoes_shard_for_every_layout_and_dtype() {
        let documents = Documents::cu_seqlens([0, 5, 16, 16, 23]).resolve("documents", 23).unwrap();
        let values: Vec<half::bf16> = (0..2 * 23 * 3 * 2).map(|i| half::bf16::from_f32(i as f32)).collect();
        let whole = View::contiguous(Data::Bf16(&values), [2, 23, 3, 2]).unwrap();
        for layout in
            [Layout::Zigzag, Layout::Contiguous, Layout::Striped { block: 1 }, Layout::Striped { block: 4 }]
        {
            for pes in [1, 2, 3, 5, 30] {
                let shards = layout.shard(23, pes, &documents).unwrap();
                let parts: Vec<Tensor> = (0..pes).map(|pe| shard(&whole, &shards, pe).unwrap()).collect();
                assert_eq!(
                    unshard(&parts, &shards).unwrap(),
                    Tensor::copy_of(&whole).unwrap(),
                    "{layout} {pes}"
                );
            }
        }
    }

    #[test]
    fn wrong_sizes_are_refused_with_both_numbers() {
        let shards = Layout::Zigzag.shard(8, 2, &[]).unwrap();
        let seven = View::contiguous(Data::F32(&[0.0; 7]), [1, 7, 1, 1]).unwrap();
        assert_eq!(
            shard(&seven, &shards, 0).unwrap_err().to_string(),
            "a tensor of 7 rows: the shards are of 8 rows"
        );
        let eight = View::contiguous(Data::F32(&[0.0; 8]), [1, 8, 1, 1]).unwrap();
        assert!(shard(&eight, &shards, 2).is_err());
        let part = shard(&eight, &shards, 0).unwrap();
        assert!(unshard(std::slice::from_ref(&part), &shards).is_err());
        assert!(unshard(&[part.clone(), Tensor::copy_of(&eight).unwrap()], &shards).is_err());
    }
}
