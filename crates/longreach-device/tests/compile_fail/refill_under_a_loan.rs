//! A slot cannot be had back for refilling while a reader holds a loan of it.
use longreach_device::{Error, Kind, Label, Pending, Stream};

fn refill(pending: Pending<Vec<f32>>, comm: &Stream, compute: &Stream) -> Result<(), Error> {
    let loan = pending.on(Label::new(Kind::Wait, 0, 1), compute);
    let filling = pending.reuse()?.fill(Label::new(Kind::Get, 0, 2), comm);
    loan.give_back(compute)?;
    drop(filling);
    Ok(())
}

fn main() {}
