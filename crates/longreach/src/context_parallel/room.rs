//! Memory that calls use one after another: slots, kept from call to call.

use super::call::Call;
use super::exchange::Rows;
use super::forward::Carried;
use super::returns::Grads;
use crate::array::{Array, Place, flat};
use crate::error::Error;
use longreach_device::Slot;
use longreach_kernels::DType;

/// Fetched stages that may be under way while another one computes, and contributions on their way while the next one
/// is computed.
pub(super) const UNDER_WAY: usize = 2;

/// Slots of an engine. A call takes what it needs when it is queued and puts all of it back; the slots know after whose
/// work they are free.
#[derive(Default)]
pub(super) struct Room {
    rows: Shelf<(DType, usize, usize), Rows>,
    carried: Shelf<(usize, usize), Carried>,
    contributions: Shelf<(usize, usize), Grads>,
    arrived: Shelf<usize, Array>,
    delta: Shelf<usize, Array>,
}

/// Slots of one size.
struct Shelf<S, T> {
    size: Option<S>,
    slots: Vec<Slot<T>>,
}

impl<S, T> Default for Shelf<S, T> {
    fn default() -> Self {
        Self { size: None, slots: Vec::new() }
    }
}

impl<S: PartialEq, T: Send + Sync + 'static> Shelf<S, T> {
    /// A slot of that size; those of another size go.
    fn take(
        &mut self,
        name: &str,
        size: S,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Slot<T>, Error> {
        if self.size.as_ref() != Some(&size) {
            self.size = Some(size);
            self.slots.clear();
        }
        self.slots.pop().map_or_else(|| Ok(Slot::new(name, make()?)), Ok)
    }
}

impl Room {
    /// A slot for the rows of a fetched stage of `call`.
    pub(super) fn rows(&mut self, place: &Place, call: &Call) -> Result<Slot<Rows>, Error> {
        const NAME: &str = "fetched rows";
        let (k, v) = largest(call);
        let dtype = call.dims.dtype;
        let array = |len| Array::new(place, NAME, dtype, [1, 1, 1, len]);
        self.rows.take(NAME, (dtype, k, v), || Ok(Rows { k: array(k)?, v: array(v)? }))
    }

    pub(super) fn put_rows(&mut self, slot: Slot<Rows>) {
        self.rows.slots.push(slot);
    }

    /// A slot for what the forward of `call` carries.
    pub(super) fn carried(&mut self, place: &Place, call: &Call) -> Result<Slot<Carried>, Error> {
        const NAME: &str = "the carried state";
        let rows = call.state_rows();
        let elements = rows * call.dims.value_dim;
        self.carried.take(NAME, (rows, elements), || {
            let [max, sum] = [flat(place, NAME, rows)?, flat(place, NAME, rows)?];
            Ok(Carried { acc: flat(place, NAME, elements)?, max, sum, state: None })
        })
    }

    pub(super) fn put_carried(&mut self, slot: Slot<Carried>) {
        self.carried.slots.push(slot);
    }

    /// A slot for the gradients of a fetched stage's rows.
    pub(super) fn contribution(&mut self, place: &Place, call: &Call) -> Result<Slot<Grads>, Error> {
        let (k, v) = largest(call);
        self.contributions.take("a contribution", (k, v), || Grads::new(place, k, v))
    }

    pub(super) fn put_contribution(&mut self, slot: Slot<Grads>) {
        self.contributions.slots.push(slot);
    }

    /// A slot for a contribution of another PE, of `len` elements.
    pub(super) fn arrived(&mut self, place: &Place, len: usize) -> Result<Slot<Array>, Error> {
        const NAME: &str = "an arrived contribution";
        self.arrived.take(NAME, len, || flat(place, NAME, len))
    }

    pub(super) fn put_arrived(&mut self, slot: Slot<Array>) {
        self.arrived.slots.push(slot);
    }

    /// A slot for delta, of `len` elements.
    pub(super) fn delta(&mut self, place: &Place, len: usize) -> Result<Slot<Array>, Error> {
        self.delta.take("delta", len, || flat(place, "delta", len))
    }

    pub(super) fn put_delta(&mut self, slot: Slot<Array>) {
        self.delta.slots.push(slot);
    }
}

/// Elements of K and of V in the largest fetched stage.
fn largest(call: &Call) -> (usize, usize) {
    let stages = &call.pe_plan().stages[1..];
    let rows = stages.iter().map(|stage| stage.rows).max().unwrap_or(0) * call.dims.batch;
    (rows * call.dims.k_row(), rows * call.dims.v_row())
}
