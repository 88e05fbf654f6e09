//! Work cannot keep what it was lent beyond its own end.
use longreach_device::{Error, Kind, Label, Loan, Stream};
use std::sync::Mutex;

static KEPT: Mutex<Option<&'static Vec<f32>>> = Mutex::new(None);

fn keep(loan: &Loan<'_, Vec<f32>>, compute: &Stream) -> Result<(), Error> {
    compute.launch(Label::new(Kind::Tile, 0, 1), (loan,), |(rows,)| {
        *KEPT.lock().unwrap() = Some(rows);
        Ok(())
    })
}

fn main() {}
