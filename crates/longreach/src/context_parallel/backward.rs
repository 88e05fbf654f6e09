//! The backward: K and V fetched again, gradients of fetched rows sent home as each stage is done.

use super::Engine;
use super::call::Call;
use super::compute::{batches, kernel_tiles};
use super::exchange::{Exchange, Rows};
use super::forward::{Inputs, Outputs};
use super::returns::{self, Grads};
use super::stages::{each_stage, views};
use crate::error::Error;
use crate::memory::filled;
use crate::tensor::Tensor;
use longreach_device::{Event, Filling, Kind, Loan, Pending, Slot};
use longreach_kernels::{backward, delta};
use std::collections::VecDeque;

/// Contributions that may be on their way while the next one is computed.
const UNDER_WAY: usize = 2;

/// Gradients of this PE's keys and values.
pub(super) struct KeyValueGrads {
    pub(super) dk: Tensor,
    pub(super) dv: Tensor,
}

/// What every stage of a backward reads on the compute stream.
struct Operands<'p> {
    q: Loan<'p, Tensor>,
    dout: Loan<'p, Tensor>,
    outputs: Loan<'p, Outputs>,
    delta: Loan<'p, Vec<f32>>,
}

impl Engine {
    /// Queues a backward and returns what it will produce: dq, and dk with dv.
    pub(super) fn queue_backward(
        &self,
        call: &Call,
        inputs: &Inputs,
        outputs: &Pending<Outputs>,
        dout: &Pending<Tensor>,
    ) -> Result<(Pending<Tensor>, Pending<KeyValueGrads>), Error> {
        let (dims, plan) = (call.dims, call.pe_plan());
        let mut exchange = Exchange::new(&self.team, &self.heap, &self.comm, call);
        exchange.publish(&inputs.kv)?;
        returns::grant_first(&self.heap, &self.add, call)?;

        let label = call.label(Kind::Wait, 0);
        let delta = self.queue_delta(call, outputs, dout)?;
        let operands = Operands {
            q: inputs.q.on(label.clone(), &self.compute),
            dout: dout.on(label.clone(), &self.compute),
            outputs: outputs.on(label.clone(), &self.compute),
            delta: delta.on(label.clone(), &self.compute),
        };
        let dq = Tensor::zeros_f32("dq", [dims.batch, plan.q_rows, dims.q_heads, dims.head_dim])?;
        let mut dq = Slot::new("dq", dq).fill(label.clone(), &self.compute);
        let own = Slot::new("dk and dv", Grads::zeros(call, plan.kv_rows)?);
        let mut own_done = None;
        let largest = plan.stages[1..].iter().map(|stage| stage.rows).max().unwrap_or(0);
        let mut free: VecDeque<Slot<Grads>> = (0..UNDER_WAY.min(call.fetched()))
            .map(|_| Ok(Slot::new("contribution", Grads::zeros(call, largest)?)))
            .collect::<Result<_, Error>>()?;
        let mut own = Some(own);

        each_stage(self, call, &mut exchange, &inputs.kv, |stage, rows| {
            // Stage 0 adds to this PE's own rows; later stages to rows of others, which are sent home.
            let slot = match stage {
                0 => own.take(),
                _ => free.pop_front(),
            };
            let Some(slot) = slot else {
                return Err(Error::Input(format!("stage {stage} has no slot for its gradients")));
            };
            let grads = self.backward_stage(call, stage, &operands, rows, &mut dq, slot)?;
            if stage == 0 {
                own_done = Some(grads);
                return Ok(());
            }
            let loan = grads.on(call.label(Kind::Wait, stage), &self.put);
            returns::send(&self.heap, &self.put, call, stage, &loan)?;
            loan.give_back(&self.put)?;
            free.push_back(grads.reuse()?);
            Ok(())
        })?;

        operands.q.give_back(&self.compute)?;
        operands.dout.give_back(&self.compute)?;
        operands.outputs.give_back(&self.compute)?;
        operands.delta.give_back(&self.compute)?;
        let agreed = exchange.finish()?;
        self.compute.wait(call.label(Kind::Wait, call.fetched()), &agreed);
        let dq = dq.finish(&self.compute)?;
        let Some(own) = own_done else {
            return Err(Error::Input("the plan has no stage 0".to_owned()));
        };
        Ok((dq, self.queue_home(call, own.reuse()?, &agreed)?))
    }

    fn queue_delta(
        &self,
        call: &Call,
        outputs: &Pending<Outputs>,
        dout: &Pending<Tensor>,
    ) -> Result<Pending<Vec<f32>>, Error> {
        let rows = call.dims.batch * call.dims.q_heads * call.pe_plan().q_rows;
        let label = call.label(Kind::Wait, 0);
        let mut filling = Slot::new("delta", filled("delta", 0.0, rows)?).fill(label.clone(), &self.compute);
        let (outputs, dout) = (outputs.on(label.clone(), &self.compute), dout.on(label, &self.compute));
        let threads = self.threads.clone();
        self.compute.launch(
            call.label(Kind::Merge, 0),
            (&outputs, &dout, &mut filling),
            move |(outputs, dout, rows)| {
                threads
                    .run(|cx| delta(cx, &dout.view(), outputs.out.f32(), rows))
                    .map_err(|error| Error::from(error).into_fault())
            },
        )?;
        outputs.give_back(&self.compute)?;
        dout.give_back(&self.compute)?;
        Ok(filling.finish(&self.compute)?)
    }

    /// Queues a stage's tiles: dq is added to, `slot` is zeroed and holds the gradients of the stage's rows then.
    fn backward_stage(
        &self,
        call: &Call,
        stage: usize,
        operands: &Operands<'_>,
        rows: &Loan<'_, Rows>,
        dq: &mut Filling<Tensor>,
        slot: Slot<Grads>,
    ) -> Result<Pending<Grads>, Error> {
        let Operands { q, dout, outputs, delta } = operands;
        let mut grads = slot.fill(call.label(Kind::Wait, stage), &self.compute);
        self.compute.launch(call.label(Kind::Merge, stage), (&mut grads,), |(grads,)| {
            grads.dk.fill(0.0);
            grads.dv.fill(0.0);
            Ok(())
        })?;
        for batch in batches(call, stage) {
            let (call, threads) = (call.clone(), self.threads.clone());
            self.compute.launch(
                batch.label,
                (q, rows, dout, outputs, delta, &mut *dq, &mut grads),
                move |(q, rows, dout, outputs, delta, dq, grads)| {
                    let (k, v) = views(&call, stage, rows).map_err(Error::into_fault)?;
                    let tiles = kernel_tiles(&call.stage(stage).tiles[batch.tiles]);
                    let (dk_len, dv_len) = grads.lens(&call, stage);
                    threads
                        .run(|cx| {
                            backward(
                                cx,
                                &q.view(),
                                &k,
                                &v,
                                &dout.view(),
                                outputs.lse.f32(),
                                delta,
                                call.scale,
                                &tiles,
                                dq.f32_mut(),
                                &mut grads.dk[..dk_len],
                                &mut grads.dv[..dv_len],
                            )
                        })
                        .map_err(|error| Error::from(error).into_fault())
                },
            )?;
        }
        Ok(grads.finish(&self.compute)?)
    }

    /// Queues the adding of other PEs' contributions behind this PE's own, in the plan's order.
    fn queue_home(
        &self,
        call: &Call,
        own: Slot<Grads>,
        agreed: &Event,
    ) -> Result<Pending<KeyValueGrads>, Error> {
        let (dims, rows) = (call.dims, call.pe_plan().kv_rows);
        let mut home = own.fill(call.label(Kind::Wait, 0), &self.add);
        returns::add_all(&self.heap, &self.add, call, &mut home)?;
        self.add.wait(call.label(Kind::Wait, 0), agreed);
        let shape = move |dim| [dims.batch, rows, dims.kv_heads, dim];
        let empty = || Tensor::zeros_f32("gradients", shape(0));
        let (dk, dv) = (empty()?, empty()?);
        let mut result =
            Slot::new("gradients", KeyValueGrads { dk, dv }).fill(call.label(Kind::Wait, 0), &self.add);
        self.add.launch(call.label(Kind::Merge, 0), (&mut home, &mut result), move |(home, result)| {
            result.dk = Tensor::from_f32(std::mem::take(&mut home.dk), shape(dims.head_dim));
            result.dv = Tensor::from_f32(std::mem::take(&mut home.dv), shape(dims.value_dim));
            Ok(())
        })?;
        Ok(result.finish(&self.add)?)
    }
}
