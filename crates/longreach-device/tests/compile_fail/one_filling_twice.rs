//! A piece of work cannot write the same memory through two operands.
use longreach_device::{Error, Filling, Kind, Label, Stream};

fn write(mut filling: Filling<Vec<f32>>, comm: &Stream) -> Result<(), Error> {
    comm.launch(
        Label::new(Kind::Add, 0, 1),
        (&mut filling, &mut filling),
        |(to, from)| {
            to.copy_from_slice(from);
            Ok(())
        },
    )
}

fn main() {}
