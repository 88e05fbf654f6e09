//! A `Pending` cannot be given to work: only a loan, which orders the stream after the producer.
use longreach_device::{Error, Kind, Label, Pending, Stream};

fn sum(pending: &Pending<Vec<f32>>, compute: &Stream) -> Result<(), Error> {
    compute.launch(Label::new(Kind::Tile, 0, 1), (pending,), |(rows,)| {
        let _sum: f32 = rows.iter().sum();
        Ok(())
    })
}

fn main() {}
