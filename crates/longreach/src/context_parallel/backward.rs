//! The backward: K and V fetched again, gradients of fetched rows sent home as each stage is done.

use super::Engine;
use super::call::Call;
use super::device::{self, Role, Total};
use super::exchange::{Exchange, Rows};
use super::forward::{Inputs, Outputs};
use super::returns::{self, Grads};
use super::room::{Room, UNDER_WAY};
use super::stages::{batches, each_stage, kernel_tiles};
use crate::array::Array;
use crate::error::Error;
use longreach_device::{Event, Filling, Kind, Loan, Pending, Slot};
use std::collections::VecDeque;

/// What every stage of a backward reads on the compute stream.
struct Operands<'p> {
    q: Loan<'p, Array>,
    dout: Loan<'p, Array>,
    outputs: Loan<'p, Outputs>,
    delta: Loan<'p, Array>,
}

impl Engine {
    /// Queues a backward and returns what it will produce: dq, and dk with dv.
    pub(super) fn queue_backward(
        &self,
        room: &mut Room,
        call: &Call,
        inputs: &Inputs,
        outputs: &Pending<Outputs>,
        dout: &Pending<Array>,
    ) -> Result<(Pending<Total>, Pending<Grads>), Error> {
        let mut exchange = Exchange::new(self, call);
        exchange.publish(&inputs.kv)?;
        self.wait_for_turn(&self.compute, call)?;
        returns::grant_first(&self.heap, &self.add, call)?;

        let label = call.label(Kind::Wait, 0);
        let delta = self.queue_delta(room, call, outputs, dout)?;
        let operands = Operands {
            q: inputs.q.on(label.clone(), &self.compute),
            dout: dout.on(label.clone(), &self.compute),
            outputs: outputs.on(label.clone(), &self.compute),
            delta: delta.on(label.clone(), &self.compute),
        };
        let mut dq = self.queue_dq(call)?;
        let own = |what, shape| self.total(call, what, shape);
        let [k, v] = call.kv_shapes(0);
        let mut own = Some(Slot::new("dk and dv", Grads { dk: own("dk", k)?, dv: own("dv", v)? }));
        let mut own_done = None;
        let mut free: VecDeque<Slot<Grads>> = (0..UNDER_WAY.min(call.fetched()))
            .map(|_| room.contribution(&self.place, call))
            .collect::<Result<_, Error>>()?;

        each_stage(self, room, call, &mut exchange, &inputs.kv, |_, stage, rows| {
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

        let Operands { q, dout, outputs, delta: lent } = operands;
        q.give_back(&self.compute)?;
        dout.give_back(&self.compute)?;
        outputs.give_back(&self.compute)?;
        lent.give_back(&self.compute)?;
        room.put_delta(delta.reuse()?);
        free.into_iter().for_each(|slot| room.put_contribution(slot));
        let kernels = self.kernels.clone();
        self.compute.launch(call.label(Kind::Merge, call.fetched()), (&mut dq,), move |(dq,)| {
            let settled = kernels.settle(dq);
            settled.and_then(|()| kernels.round(dq, Role::Compute)).map_err(Error::into_fault)
        })?;
        self.end_turn(call)?;
        let agreed = exchange.finish()?;
        self.compute.wait(call.label(Kind::Wait, call.fetched()), &agreed);
        let dq = dq.finish(&self.compute)?;
        let Some(own) = own_done else {
            return Err(Error::Input("the plan has no stage 0".to_owned()));
        };
        Ok((dq, self.queue_home(room, call, own.reuse()?, &agreed)?))
    }

    fn queue_delta(
        &self,
        room: &mut Room,
        call: &Call,
        outputs: &Pending<Outputs>,
        dout: &Pending<Array>,
    ) -> Result<Pending<Array>, Error> {
        let len = self.kernels.delta_len(call.state_rows());
        let label = call.label(Kind::Wait, 0);
        let mut filling = room.delta(&self.place, len)?.fill(label.clone(), &self.compute);
        let (outputs, dout) = (outputs.on(label.clone(), &self.compute), dout.on(label, &self.compute));
        let kernels = self.kernels.clone();
        self.compute.launch(
            call.label(Kind::Merge, 0),
            (&outputs, &dout, &mut filling),
            move |(outputs, dout, delta)| kernels.delta(dout, outputs, delta).map_err(Error::into_fault),
        )?;
        outputs.give_back(&self.compute)?;
        dout.give_back(&self.compute)?;
        Ok(filling.finish(&self.compute)?)
    }

    fn queue_dq(&self, call: &Call) -> Result<Filling<Total>, Error> {
        let dims = call.dims;
        let shape = [dims.batch, call.pe_plan().q_rows, dims.q_heads, dims.head_dim];
        let mut dq =
            Slot::new("dq", self.total(call, "dq", shape)?).fill(call.label(Kind::Wait, 0), &self.compute);
        let kernels = self.kernels.clone();
        self.compute.launch(call.label(Kind::Merge, 0), (&mut dq,), move |(dq,)| {
            kernels.clear(dq, shape).map_err(Error::into_fault)
        })?;
        Ok(dq)
    }

    /// Queues a stage's tiles: dq is added to, `slot` is zeroed and holds the gradients of the stage's rows then.
    fn backward_stage(
        &self,
        call: &Call,
        stage: usize,
        operands: &Operands<'_>,
        rows: &Loan<'_, Rows>,
        dq: &mut Filling<Total>,
        slot: Slot<Grads>,
    ) -> Result<Pending<Grads>, Error> {
        let Operands { q, dout, outputs, delta } = operands;
        let mut grads = slot.fill(call.label(Kind::Wait, stage), &self.compute);
        let ([k, v], kernels) = (call.kv_shapes(stage), self.kernels.clone());
        self.compute.launch(call.label(Kind::Merge, stage), (&mut grads,), move |(grads,)| {
            let keys = kernels.clear(&mut grads.dk, k);
            keys.and_then(|()| kernels.clear(&mut grads.dv, v)).map_err(Error::into_fault)
        })?;
        for batch in batches(call, stage, self.kernels.launch_flops()) {
            let (call, kernels) = (call.clone(), self.kernels.clone());
            self.compute.launch(
                batch.label,
                (q, rows, dout, outputs, delta, &mut *dq, &mut grads),
                move |(q, rows, dout, outputs, delta, dq, grads)| {
                    let tiles = kernel_tiles(&call.stage(stage).tiles[batch.tiles]);
                    let operands = device::Operands { q, rows, dout, outputs, delta };
                    kernels.backward(&call, stage, &tiles, &operands, dq, grads).map_err(Error::into_fault)
                },
            )?;
        }
        let kernels = self.kernels.clone();
        self.compute.launch(call.label(Kind::Merge, stage), (&mut grads,), move |(grads,)| {
            let keys = kernels.settle(&mut grads.dk);
            keys.and_then(|()| kernels.settle(&mut grads.dv)).map_err(Error::into_fault)
        })?;
        Ok(grads.finish(&self.compute)?)
    }

    /// Queues the adding of other PEs' contributions behind this PE's own, in the plan's order.
    fn queue_home(
        &self,
        room: &mut Room,
        call: &Call,
        own: Slot<Grads>,
        agreed: &Event,
    ) -> Result<Pending<Grads>, Error> {
        let label = call.label(Kind::Wait, 0);
        let mut home = own.fill(label.clone(), &self.add);
        let len = if self.kernels.brings() { returns::largest(call) } else { 0 };
        let arrived = room.arrived(&self.place, len)?;
        let mut arrived = arrived.fill(label.clone(), &self.add);
        returns::add_all(&self.heap, &self.add, &self.kernels, call, &mut arrived, &mut home)?;
        room.put_arrived(arrived.finish(&self.add)?.reuse()?);
        let kernels = self.kernels.clone();
        self.add.launch(call.label(Kind::Merge, 0), (&mut home,), move |(home,)| {
            let keys = kernels.round(&mut home.dk, Role::Add);
            keys.and_then(|()| kernels.round(&mut home.dv, Role::Add)).map_err(Error::into_fault)
        })?;
        self.add.wait(label, agreed);
        Ok(home.finish(&self.add)?)
    }

    /// A gradient that the caller gets.
    fn total(&self, call: &Call, what: &'static str, shape: [usize; 4]) -> Result<Total, Error> {
        Total::result_of(&self.place, what, shape, call.dims.dtype, self.options.precision)
    }
}
