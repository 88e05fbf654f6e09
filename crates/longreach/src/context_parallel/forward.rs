//! The forward: tiles stage by stage into a carried state, normalised once.

use super::Engine;
use super::call::Call;
use super::device::State;
use super::exchange::{Exchange, Rows};
use super::room::Room;
use super::stages::{batches, each_stage, kernel_tiles};
use crate::array::{Array, Place};
use crate::error::Error;
use longreach_device::{Filling, Kind, Loan, Pending, Slot};
use longreach_kernels::DType;

/// Inputs of a call, kept for its backward.
pub(super) struct Inputs {
    pub(super) q: Pending<Array>,
    pub(super) kv: Pending<Rows>,
}

/// Attention of this PE's queries: out `[batch, rows, query heads, value_dim]`, lse `[batch, query heads, rows, 1]`.
pub(super) struct Outputs {
    pub(super) out: Array,
    pub(super) lse: Array,
    /// On a GPU, out in the inputs' type.
    pub(super) rounded: Option<Array>,
}

impl Outputs {
    fn new(place: &Place, call: &Call) -> Result<Self, Error> {
        let shape = call.out_shape();
        let [batch, rows, heads, _] = shape;
        let rounded = matches!(place, Place::Gpu(_));
        Ok(Self {
            out: Array::new(place, "out", DType::F32, shape)?,
            lse: Array::new(place, "lse", DType::F32, [batch, heads, rows, 1])?,
            rounded: rounded.then(|| Array::new(place, "out", call.dims.dtype, shape)).transpose()?,
        })
    }
}

/// What the forward carries from tile to tile, unnormalised.
pub(super) struct Carried {
    pub(super) acc: Array,
    pub(super) max: Array,
    pub(super) sum: Array,
    /// On a GPU, what its kernels know of the arrays.
    pub(super) state: Option<State>,
}

impl Engine {
    /// Queues a forward and returns what it will produce.
    pub(super) fn queue_forward(
        &self,
        room: &mut Room,
        call: &Call,
        inputs: &Inputs,
    ) -> Result<Pending<Outputs>, Error> {
        let mut exchange = Exchange::new(&self.team, &self.heap, &self.comm, call);
        exchange.publish(&inputs.kv)?;

        let slot = room.carried(&self.place, call)?;
        let mut carried = slot.fill(call.label(Kind::Wait, 0), &self.compute);
        let (own, kernels) = (call.clone(), self.kernels.clone());
        self.compute.launch(call.label(Kind::Merge, 0), (&mut carried,), move |(carried,)| {
            kernels.reset(&own, carried).map_err(Error::into_fault)
        })?;
        let q = inputs.q.on(call.label(Kind::Wait, 0), &self.compute);
        each_stage(self, room, call, &mut exchange, &inputs.kv, |_, stage, rows| {
            self.forward_stage(call, stage, &q, rows, &mut carried)
        })?;
        q.give_back(&self.compute)?;

        let agreed = exchange.finish()?;
        self.compute.wait(call.label(Kind::Wait, call.fetched()), &agreed);
        let outputs = self.normalise(call, &mut carried)?;
        room.put_carried(carried.finish(&self.compute)?.reuse()?);
        Ok(outputs)
    }

    fn forward_stage(
        &self,
        call: &Call,
        stage: usize,
        q: &Loan<'_, Array>,
        rows: &Loan<'_, Rows>,
        carried: &mut Filling<Carried>,
    ) -> Result<(), Error> {
        for batch in batches(call, stage, self.kernels.launch_flops()) {
            let (call, kernels) = (call.clone(), self.kernels.clone());
            self.compute.launch(batch.label, (q, rows, &mut *carried), move |(q, rows, carried)| {
                let tiles = kernel_tiles(&call.stage(stage).tiles[batch.tiles]);
                kernels.forward(&call, stage, &tiles, q, rows, carried).map_err(Error::into_fault)
            })?;
        }
        Ok(())
    }

    fn normalise(&self, call: &Call, carried: &mut Filling<Carried>) -> Result<Pending<Outputs>, Error> {
        let outputs = Outputs::new(&self.place, call)?;
        let mut outputs = Slot::new("outputs", outputs).fill(call.label(Kind::Wait, 0), &self.compute);
        let (own, kernels) = (call.clone(), self.kernels.clone());
        self.compute.launch(
            call.label(Kind::Merge, call.fetched()),
            (carried, &mut outputs),
            move |(carried, outputs)| kernels.finish(&own, carried, outputs).map_err(Error::into_fault),
        )?;
        Ok(outputs.finish(&self.compute)?)
    }
}
