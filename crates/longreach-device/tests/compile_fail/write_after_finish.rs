//! What has been finished cannot be written any more.
use longreach_device::{Error, Filling, Kind, Label, Stream};

fn write(mut filling: Filling<Vec<f32>>, comm: &Stream) -> Result<(), Error> {
    let pending = filling.finish(comm)?;
    comm.launch(Label::new(Kind::Get, 0, 1), (&mut filling,), |(rows,)| {
        rows.fill(1.0);
        Ok(())
    })?;
    drop(pending);
    Ok(())
}

fn main() {}
