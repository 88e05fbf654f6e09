//! The forward: tiles stage by stage into a carried state, normalised once.

use super::Engine;
use super::call::Call;
use super::compute::{batches, kernel_tiles};
use super::exchange::{Exchange, Rows};
use super::stages::{each_stage, views};
use crate::error::Error;
use crate::memory::filled;
use crate::tensor::Tensor;
use longreach_device::{Filling, Kind, Loan, Pending, Slot};
use longreach_kernels::{State, finish, forward};

/// Inputs of a call, kept for its backward.
pub(super) struct Inputs {
    pub(super) q: Pending<Tensor>,
    pub(super) kv: Pending<Rows>,
}

/// Attention of this PE's queries: out `[batch, rows, query heads, value_dim]`, lse `[batch, query heads, rows, 1]`.
pub(super) struct Outputs {
    pub(super) out: Tensor,
    pub(super) lse: Tensor,
}

const STATE: &str = "the carried state";

/// What the forward carries from tile to tile, unnormalised.
struct Carried {
    acc: Vec<f32>,
    max: Vec<f32>,
    sum: Vec<f32>,
}

impl Carried {
    fn state(&mut self) -> State<'_> {
        State { acc: &mut self.acc, max: &mut self.max, sum: &mut self.sum }
    }
}

impl Engine {
    /// Queues a forward and returns what it will produce.
    pub(super) fn queue_forward(&self, call: &Call, inputs: &Inputs) -> Result<Pending<Outputs>, Error> {
        let mut exchange = Exchange::new(&self.team, &self.heap, &self.comm, call);
        exchange.publish(&inputs.kv)?;

        let rows = call.dims.batch * call.dims.q_heads * call.pe_plan().q_rows;
        let carried = Carried {
            acc: filled(STATE, 0.0, rows * call.dims.value_dim)?,
            max: filled(STATE, f32::NEG_INFINITY, rows)?,
            sum: filled(STATE, 0.0, rows)?,
        };
        let mut carried = Slot::new("carried state", carried).fill(call.label(Kind::Wait, 0), &self.compute);
        let q = inputs.q.on(call.label(Kind::Wait, 0), &self.compute);
        each_stage(self, call, &mut exchange, &inputs.kv, |stage, rows| {
            self.forward_stage(call, stage, &q, rows, &mut carried)
        })?;
        q.give_back(&self.compute)?;

        let agreed = exchange.finish()?;
        self.compute.wait(call.label(Kind::Wait, call.fetched()), &agreed);
        self.normalise(call, carried)
    }

    fn forward_stage(
        &self,
        call: &Call,
        stage: usize,
        q: &Loan<'_, Tensor>,
        rows: &Loan<'_, Rows>,
        carried: &mut Filling<Carried>,
    ) -> Result<(), Error> {
        for batch in batches(call, stage) {
            let (call, threads) = (call.clone(), self.threads.clone());
            self.compute.launch(batch.label, (q, rows, &mut *carried), move |(q, rows, carried)| {
                let (k, v) = views(&call, stage, rows).map_err(Error::into_fault)?;
                let tiles = kernel_tiles(&call.stage(stage).tiles[batch.tiles]);
                threads
                    .run(|cx| forward(cx, &q.view(), &k, &v, call.scale, &tiles, &mut carried.state()))
                    .map_err(|error| Error::from(error).into_fault())
            })?;
        }
        Ok(())
    }

    fn normalise(&self, call: &Call, mut carried: Filling<Carried>) -> Result<Pending<Outputs>, Error> {
        let dims = call.dims;
        let q_rows = call.pe_plan().q_rows;
        let shape = [dims.batch, q_rows, dims.q_heads, dims.value_dim];
        let outputs = Outputs {
            out: Tensor::zeros_f32("out", shape)?,
            lse: Tensor::zeros_f32("lse", [dims.batch, dims.q_heads, q_rows, 1])?,
        };
        let mut outputs = Slot::new("outputs", outputs).fill(call.label(Kind::Wait, 0), &self.compute);
        let threads = self.threads.clone();
        self.compute.launch(
            call.label(Kind::Merge, call.fetched()),
            (&mut carried, &mut outputs),
            move |(carried, outputs)| {
                let (out, lse) = (outputs.out.f32_mut(), outputs.lse.f32_mut());
                threads
                    .run(|cx| finish(cx, &carried.state(), shape, out, lse))
                    .map_err(|error| Error::from(error).into_fault())
            },
        )?;
        Ok(outputs.finish(&self.compute)?)
    }
}
