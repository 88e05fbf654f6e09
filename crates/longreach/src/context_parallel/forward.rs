//! The forward: tiles stage by stage into a carried state, normalised once.

use super::Engine;
use super::call::Call;
use super::device::State;
use super::exchange::{Exchange, Rows};
use super::room::Room;
use super::stages::{batches, each_stage, kernel_tiles};
use crate::array::{Array, Place};
use crate::error::Error;
use crate::options::Precision;
use longreach_device::{Filling, Kind, Loan, Pending, Slot};
use longreach_kernels::DType;

/// Inputs of a call, kept for its backward.
pub(super) struct Inputs {
    pub(super) q: Pending<Array>,
    pub(super) kv: Pending<Rows>,
}

/// Attention of this PE's queries: out `[batch, rows, query heads, value_dim]`, lse `[batch, query heads, rows, 1]`.
///
/// The backward of a CPU reads out in float32, that of a GPU in the inputs' type.
pub(super) struct Outputs {
    /// Out in float32.
    pub(super) exact: Option<Array>,
    /// Out in the inputs' type.
    pub(super) rounded: Option<Array>,
    pub(super) lse: Array,
    precision: Precision,
}

impl Outputs {
    fn new(place: &Place, precision: Precision, call: &Call) -> Result<Self, Error> {
        let shape = call.out_shape();
        let [batch, rows, heads, _] = shape;
        let out = |wanted: bool, dtype| wanted.then(|| Array::new(place, "out", dtype, shape)).transpose();
        let on_gpu = matches!(place, Place::Gpu(_));
        let as_inputs = precision == Precision::AsInputs;
        Ok(Self {
            exact: out(!on_gpu || !as_inputs, DType::F32)?,
            rounded: out(on_gpu || as_inputs, call.dims.dtype)?,
            lse: Array::new(place, "lse", DType::F32, [batch, heads, rows, 1])?,
            precision,
        })
    }

    /// What the caller gets.
    pub(super) fn out(&self) -> &Array {
        let (first, second) = match self.precision {
            Precision::Float32 => (&self.exact, &self.rounded),
            Precision::AsInputs => (&self.rounded, &self.exact),
        };
        // There is always one of them.
        first.as_ref().or(second.as_ref()).unwrap_or(&self.lse)
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
        let mut exchange = Exchange::new(self, call);
        exchange.publish(&inputs.kv)?;
        self.wait_for_turn(&self.compute, call)?;

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
        self.end_turn(call)?;
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
        let outputs = Outputs::new(&self.place, self.options.precision, call)?;
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
