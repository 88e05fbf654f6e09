//! A loan that was given back reads nothing any more.
use longreach_device::{Error, Kind, Label, Loan, Stream};

fn read(loan: Loan<'_, Vec<f32>>, compute: &Stream) -> Result<(), Error> {
    loan.give_back(compute)?;
    compute.launch(Label::new(Kind::Tile, 0, 1), (&loan,), |(rows,)| {
        let _sum: f32 = rows.iter().sum();
        Ok(())
    })
}

fn main() {}
