//! `--out`: results as a safetensors file whose bytes are a function of the results only.

use crate::error::{Error, is_shortage};
use crate::interrupt;
use crate::same_file::{folder, resolved};
use half::{bf16, f16};
use longreach_kernels::DType;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, is_separator};

/// A tensor to write: float32 results that are rounded once, to `dtype`.
#[derive(Clone, Debug)]
pub struct Output<'a> {
    /// Its name in the file.
    pub name: &'static str,
    /// Its element type in the file.
    pub dtype: DType,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements, row-major.
    pub values: &'a [f32],
}

#[derive(Serialize)]
struct Entry {
    dtype: &'static str,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

impl Output<'_> {
    /// Finite results that rounding to the type makes infinite.
    pub fn overflows(&self) -> usize {
        let infinite = |x: f32| match self.dtype {
            DType::F32 => x.is_infinite(),
            DType::F16 => f16::from_f32(x).is_infinite(),
            DType::Bf16 => bf16::from_f32(x).is_infinite(),
        };
        self.values.iter().filter(|x| x.is_finite() && infinite(**x)).count()
    }
}

/// Writes the tensors to `path` by way of a file beside it that is renamed when whole.
pub fn write(path: &Path, mut outputs: Vec<Output>) -> Result<(), Error> {
    // Wider elements first, so that every tensor is aligned for its type; by name within a width.
    outputs.sort_by_key(|output| (std::cmp::Reverse(output.dtype.size()), output.name));
    let header = header(&outputs).map_err(|why| Error::bad("--out", path.display().to_string(), why))?;
    write_beside("--out", path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        outputs.iter().try_for_each(|output| write_elements(file, output))
    })
}

/// The header: keys in alphabetical order, padded with blanks to a multiple of 8 bytes.
fn header(outputs: &[Output]) -> Result<Vec<u8>, String> {
    let mut entries = BTreeMap::new();
    let mut end = 0usize;
    for output in outputs {
        let start = end;
        end += output.values.len() * output.dtype.size();
        let dtype = match output.dtype {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::Bf16 => "BF16",
        };
        let entry = Entry { dtype, shape: output.shape.clone(), data_offsets: [start, end] };
        let entry = serde_json::to_string(&entry).map_err(|error| error.to_string())?;
        entries.insert(output.name, entry);
    }
    let mut text = String::from(r#"{"__metadata__":{"layout":"bshd","lse":"natural log, [B, H, S]"}"#);
    for (name, entry) in entries {
        text.push_str(&format!(",\"{name}\":{entry}"));
    }
    text.push('}');
    let padded = text.len().next_multiple_of(8);
    Ok(format!("{text:padded$}").into_bytes())
}

fn write_elements(file: &mut impl Write, output: &Output) -> std::io::Result<()> {
    for &x in output.values {
        match output.dtype {
            DType::F32 => file.write_all(&x.to_le_bytes())?,
            DType::F16 => file.write_all(&f16::from_f32(x).to_le_bytes())?,
            DType::Bf16 => file.write_all(&bf16::from_f32(x).to_le_bytes())?,
        }
    }
    Ok(())
}

/// Writes a file beside `path`, or beside what that is a link to, and renames it when it is whole.
///
/// Fails when it cannot be written; `path` is then as it was before, and nothing is left beside it.
pub fn write_beside(
    argument: &str,
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&std::fs::File>) -> std::io::Result<()>,
) -> Result<(), Error> {
    // That it could be written was checked before there was anything to write: the machine is to blame now.
    let cannot = |error: std::io::Error| Error::Run(unwritable(argument, path, &error));
    let target = resolved(path);
    let file = new_beside(&target).map_err(cannot)?;
    let unfinished = interrupt::Unfinished::new(file.path());
    let mut writer = BufWriter::with_capacity(1 << 20, file.as_file());
    write(&mut writer).and_then(|()| writer.flush()).map_err(cannot)?;
    drop(writer);
    file.persist(target).map_err(|error| cannot(error.error))?;
    drop(unfinished);
    Ok(())
}

fn new_beside(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".longreach-");
    // A file like any other that the user makes, not a private one as temporary files are.
    #[cfg(unix)]
    let builder = builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder(path))
}

/// Refuses a path that could not be written, before any work is done.
pub fn check_path(argument: &str, path: &Path) -> Result<(), Error> {
    let bad = |why: String| Error::bad(argument, path.display().to_string(), why);
    let cannot = |error: std::io::Error| match unwritable(argument, path, &error) {
        why if is_shortage(&error) => Error::Run(why),
        why => Error::Usage(why),
    };
    let target = resolved(path);
    let folder = path.as_os_str().as_encoded_bytes().last().is_some_and(|&last| is_separator(last.into()));
    if folder || target.file_name().is_none() || target.is_dir() {
        return Err(bad("is not the name of a file".to_owned()));
    }
    match target.symlink_metadata() {
        Ok(data) if !data.is_file() => return Err(bad("exists and is not a regular file".to_owned())),
        // A name that is too long, for example.
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(cannot(error)),
        _ => {}
    }
    // Made and removed at once: whether a folder can be written is not known before it is tried.
    new_beside(&target).map(drop).map_err(cannot)
}

/// Why a file cannot be written, without the name of the file beside it.
fn unwritable(argument: &str, path: &Path, error: &std::io::Error) -> String {
    let text = error.to_string();
    let reason = text.split_once(" at path ").map_or(&*text, |(reason, _)| reason);
    let hint = match error.kind() {
        ErrorKind::FileTooLarge => "; raise the limit on the size of files (ulimit -f)",
        _ => "",
    };
    Error::bad(argument, path.display().to_string(), format!("cannot be written: {reason}{hint}")).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    fn outputs(values: &[f32]) -> Vec<Output<'_>> {
        vec![
            Output { name: "out", dtype: DType::Bf16, shape: vec![1, 3, 1, 1], values },
            Output { name: "lse", dtype: DType::F32, shape: vec![1, 1, 3], values },
            Output { name: "dk", dtype: DType::F16, shape: vec![3], values },
        ]
    }

    #[test]
    fn the_file_reads_back_rounded_to_nearest_even() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        // 1 + 2^-8 is half way between two bf16 numbers; the even one is 1.
        let values = [1.0 + 2f32.powi(-8), f32::NEG_INFINITY, -2.5];
        write(&path, outputs(&values)).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let out: Vec<bf16> =
            file.tensor("out").unwrap().data().chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]])).collect();
        assert_eq!(out, [1.0, f32::NEG_INFINITY, -2.5].map(bf16::from_f32));
        let lse: Vec<f32> = file
            .tensor("lse")
            .unwrap()
            .data()
            .chunks(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        assert_eq!(lse, values);
        assert_eq!(file.tensor("dk").unwrap().shape(), [3]);
    }

    #[test]
    fn what_overflows_is_what_rounds_to_infinity() {
        let values = [65519.0, 65520.0, -1e30, f32::MAX, f32::INFINITY, f32::NAN, 0.0];
        let of = |dtype| Output { name: "dk", dtype, shape: vec![7], values: &values }.overflows();
        assert_eq!([DType::F32, DType::F16, DType::Bf16].map(of), [0, 3, 1]);
    }

    #[test]
    fn the_bytes_do_not_depend_on_order_or_place() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("1"), folder.path().join("other name"));
        let values = [1.0, 2.0, 3.0];
        write(&one, outputs(&values)).unwrap();
        let mut reversed = outputs(&values);
        reversed.reverse();
        write(&two, reversed).unwrap();
        let bytes = std::fs::read(one).unwrap();
        assert_eq!(bytes, std::fs::read(two).unwrap());
        let header = String::from_utf8_lossy(&bytes[8..]).into_owned();
        let at = |key: &str| header.find(key).unwrap();
        assert!(at("\"__metadata__\":{") < at("\"dk\":{"));
        assert!(at("\"dk\":{") < at("\"lse\":{") && at("\"lse\":{") < at("\"out\":{"));
    }

    #[test]
    fn a_failed_write_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "before").unwrap();
        let error = write_beside("--out", &path, |file| {
            file.write_all(b"half")?;
            Err(std::io::Error::other("disk full"))
        });
        assert!(error.unwrap_err().to_string().ends_with("cannot be written: disk full"));
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn paths_that_cannot_be_written_are_refused_early() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_owned(), folder.path().join("missing/x"), "".into()] {
            assert!(check_path("--out", &path).is_err(), "{path:?}");
        }
        check_path("--out", &folder.path().join("x")).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
