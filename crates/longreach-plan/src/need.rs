//! The memory that a plan needs on a PE.

use crate::error::Error;
use crate::plan::Plan;

/// Sizes of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Query heads.
    pub q_heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Elements of a query or key.
    pub head_dim: u64,
    /// Elements of a value.
    pub value_dim: u64,
    /// Bytes of an element of q, k and v.
    pub element_bytes: u64,
}

/// Buffers that the engine rotates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Slots for fetched stages, and as many for contributions on their way.
    pub slots: u64,
    /// Gradient return slots.
    pub return_slots: u64,
    /// Bytes that a publication's description takes, beside each publish slot.
    pub header: u64,
    /// Bytes of scratch that a PE's kernels take.
    pub scratch: u64,
}

impl Default for Buffers {
    fn default() -> Self {
        Self { slots: 2, return_slots: 2, header: 0, scratch: 0 }
    }
}

/// Bytes on the PE that needs most, beyond inputs and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Need {
    /// One publish slot (symmetric): the K and V of a PE, as far as others read them.
    pub publish_slot: u64,
    /// One return slot (symmetric): the largest contribution, float32.
    pub contribution: u64,
    /// The two publish slots with their descriptions, and all return slots.
    pub symmetric: u64,
    /// Slots for fetched stages.
    pub fetch_slots: u64,
    /// Contributions that are computed or on their way, float32, and one that is being added.
    pub contribution_slots: u64,
    /// The forward's carried state or the backward's delta, float32.
    pub state: u64,
    /// Scratch of the kernels.
    pub scratch: u64,
    /// All of it.
    pub total: u64,
}

impl std::fmt::Display for Need {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} bytes a PE: {} symmetric (2 publish slots of {}, return slots of {}), {} fetch slots, {} contributions, {} state, {} scratch",
            self.total,
            self.symmetric,
            self.publish_slot,
            self.contribution,
            self.fetch_slots,
            self.contribution_slots,
            self.state,
            self.scratch
        )
    }
}

/// Publish slots of a team: the next call publishes while this one is read.
const PUBLISH_SLOTS: u64 = 2;

impl Plan {
    /// What forward and backward of this plan need.
    pub fn need(&self, shape: &Shape, buffers: &Buffers) -> Result<Need, Error> {
        self.checked_need(shape, buffers).ok_or(Error::Overflow { what: "the memory need" })
    }

    fn checked_need(&self, shape: &Shape, buffers: &Buffers) -> Option<Need> {
        let batch = self.batch as u64;
        let dims = shape.head_dim.checked_add(shape.value_dim)?;
        let row = shape.kv_heads.checked_mul(dims)?;
        let elements = |rows: usize| (rows as u64).checked_mul(batch)?.checked_mul(row);
        let mut most = [0u64; 3];
        let mut stages = 0;
        for plan in &self.pes {
            let fetched = &plan.stages[1..];
            stages = stages.max(fetched.len() as u64);
            if !self.readers(plan.pe).is_empty() {
                most[0] = most[0].max(elements(plan.kv_rows)?);
            }
            most[1] = most[1].max(elements(fetched.iter().map(|stage| stage.rows).max().unwrap_or(0))?);
            let state = batch.checked_mul(shape.q_heads)?.checked_mul(plan.q_rows as u64)?;
            most[2] = most[2].max(state.checked_mul(shape.value_dim.checked_add(2)?)?);
        }
        let [own, stage, state] = most;
        let rows = self.pes.iter().flat_map(|plan| self.contributions(plan.pe)).map(|c| c.rows as u64).max();
        let contribution = rows.unwrap_or(0).checked_mul(row)?.checked_mul(4)?;
        let slots = buffers.slots.min(stages);
        // K and V begin at multiples of 64 bytes.
        let padding = if own > 0 { 64 } else { 0 };
        let publish_slot = own.checked_mul(shape.element_bytes)?.checked_add(padding)?;
        let symmetric = publish_slot
            .checked_add(buffers.header)?
            .checked_mul(PUBLISH_SLOTS)?
            .checked_add(contribution.checked_mul(buffers.return_slots)?)?;
        let fetch_slots = stage.checked_mul(shape.element_bytes)?.checked_mul(slots)?;
        let contribution_slots = stage.checked_mul(4)?.checked_mul(slots)?.checked_add(contribution)?;
        let state = state.checked_mul(4)?;
        let scratch = buffers.scratch;
        let parts = [symmetric, fetch_slots, contribution_slots, state, scratch];
        let total = parts.into_iter().try_fold(0u64, u64::checked_add)?;
        Some(Need {
            publish_slot,
            contribution,
            symmetric,
            fetch_slots,
            contribution_slots,
            state,
            scratch,
            total,
        })
    }
}
