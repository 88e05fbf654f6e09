//! `longreach attend`, as asked for and checked: everything that can be refused is refused here, before any
//! work is done or byte is written.

use crate::args::{AttendArgs, DeviceKind, OutDtype, Transport};
use crate::dout::dout;
use crate::error::Error;
use crate::inject::Fault;
use crate::input::{Input, Sizes};
use crate::mask::{Asked, Lengths};
use crate::output::check_path;
use crate::same_file::Identity;
use crate::tensors::Tensor;
use longreach::{Device, Layout, Stages};
use longreach_kernels::DType;
use longreach_plan::{Bands, Mask};
use std::path::PathBuf;
use std::time::Duration;

/// The inputs of one call, and how it is to be run.
#[derive(Debug)]
pub struct Problem {
    /// Queries.
    pub q: Tensor,
    /// Keys.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
    /// The output's gradient, where gradients are asked for.
    pub dout: Option<Tensor>,
    /// The sizes of the tensors.
    pub sizes: Sizes,
    /// Who sees what.
    pub mask: Mask,
    /// The same as bands in global positions.
    pub bands: Bands,
    /// Factor of the scores.
    pub scale: f64,
    /// Processing elements.
    pub pes: usize,
    /// How bytes travel.
    pub transport: Transport,
    /// What PEs compute on.
    pub device: Device,
    /// Whether only kernels are used that give the same bits every time.
    pub deterministic: bool,
    /// Whether one PE at a time has the device.
    pub serialize: bool,
    /// Bytes a second that gets are slowed down to.
    pub get_bandwidth: Option<f64>,
    /// Compute threads a PE.
    pub threads: usize,
    /// Who holds what.
    pub layout: Layout,
    /// Fetched stages.
    pub stages: Stages,
    /// Bound on symmetric and scratch memory a PE.
    pub memory: Option<u64>,
    /// Longest time without progress of a PE that is waited for.
    pub deadline: Duration,
}

/// A problem and what is to be done with its results.
#[derive(Debug)]
pub struct Request {
    /// What is computed.
    pub problem: Problem,
    /// Compare with float64.
    pub check: bool,
    /// Where results are written, in which type.
    pub out: Option<(PathBuf, DType)>,
    /// Runs.
    pub repeat: usize,
    /// Where the trace is written.
    pub trace: Option<PathBuf>,
    /// A fault on purpose.
    pub fault: Option<Fault>,
    /// One JSON object in place of tables.
    pub json: bool,
}

impl Request {
    /// Checks the arguments, for a run of `pes` PEs, against the files and against each other.
    pub fn new(args: AttendArgs, pes: usize) -> Result<Self, Error> {
        let input = Input::open(&args.input)?;
        let sizes = input.sizes;
        let lengths = Lengths { batch: sizes.batch, q_len: sizes.q_len, kv_len: sizes.kv_len };
        let asked = Asked {
            shape: &args.mask,
            kv_documents: args.kv_documents.as_deref(),
            bands: args.bands.as_deref(),
        };
        let (mask, bands) = asked.mask(|| input.mask(), lengths)?;
        let scale = match args.scale {
            Some(scale) => scale,
            None => input.scale()?,
        };
        let dout = match (&args.dout, args.backward) {
            (path, true) => Some(dout(&input, path.as_deref(), args.seed)?),
            (Some(path), false) => {
                let why = "is used by the backward pass only: add --backward";
                return Err(Error::bad("--dout", path.display().to_string(), why));
            }
            (None, false) => None,
        };
        if args.transport == Transport::Nvshmem && args.device == DeviceKind::Cpu {
            let why = "moves bytes between GPUs: add --device cuda, or use --transport processes";
            return Err(Error::bad("--transport", args.transport.name(), why));
        }
        if args.serialize_pes && args.transport != Transport::Threads {
            let why = "PEs that take turns at the device are threads: use --transport threads";
            return Err(Error::bad("--serialize-pes", args.transport.name(), why));
        }
        check_outputs(&args)?;
        let out_dtype = match args.out_dtype {
            OutDtype::Input => sizes.dtype,
            OutDtype::F32 => DType::F32,
        };
        // A fault can strike between any two owners' rows.
        let usual_stages =
            if args.inject.is_some() { Stages::Exactly((pes - 1).max(1)) } else { Stages::Auto };
        Ok(Self {
            problem: Problem {
                q: input.q,
                k: input.k,
                v: input.v,
                dout,
                sizes,
                mask,
                bands,
                scale,
                pes,
                transport: args.transport,
                device: args.device.device(),
                deterministic: args.deterministic,
                serialize: args.serialize_pes,
                get_bandwidth: args.get_bandwidth,
                threads: threads(args.threads, pes, args.transport)?,
                layout: args.layout,
                stages: args.stages.unwrap_or(usual_stages),
                memory: args.memory.map(|memory| memory.0),
                deadline: args.deadline,
            },
            check: args.check,
            out: args.out.map(|path| (path, out_dtype)),
            repeat: args.repeat,
            trace: args.trace,
            fault: args.inject,
            json: args.json,
        })
    }
}

/// Refuses outputs that could not be written, or that would be written over another file of the request.
fn check_outputs(args: &AttendArgs) -> Result<(), Error> {
    let mut others = vec![("INPUT", Identity::of(&args.input))];
    let read = [("--bands", &args.bands), ("--dout", &args.dout)];
    others.extend(read.iter().filter_map(|(name, path)| Some((*name, Identity::of(path.as_deref()?)))));
    #[cfg(unix)]
    {
        let printed = [
            ("standard output", Identity::open(std::io::stdout())),
            ("standard error", Identity::open(std::io::stderr())),
        ];
        others.extend(printed.into_iter().filter_map(|(name, file)| Some((name, file?))));
    }
    for (argument, path) in [("--out", &args.out), ("--trace", &args.trace)] {
        let Some(path) = path else { continue };
        check_path(argument, path)?;
        let own = Identity::of(path);
        if let Some((other, _)) = others.iter().find(|(_, other)| own.is(other)) {
            let why = format!("is the file of {other} also: name another one");
            return Err(Error::bad(argument, path.display().to_string(), why));
        }
        others.push((argument, own));
    }
    Ok(())
}

/// Compute threads a PE: as many as asked for, or the PE's share of the cores.
///
/// Fails when the PEs of one process have more than a system gives it.
pub fn threads(asked: Option<usize>, pes: usize, transport: Transport) -> Result<usize, Error> {
    const MOST_TOGETHER: usize = 8192;
    let threads = asked.unwrap_or_else(|| threads_of(pes));
    // One thread a PE is its stream's own.
    if transport == Transport::Threads && threads > 1 && threads.saturating_mul(pes) > MOST_TOGETHER {
        let why = format!(
            "{pes} PEs of one process have at most {} each: give fewer threads, fewer PEs or --transport processes",
            (MOST_TOGETHER / pes).max(1)
        );
        return Err(Error::bad("--threads", threads.to_string(), why));
    }
    Ok(threads)
}

/// This machine's cores shared by the PEs, at least one each.
pub fn threads_of(pes: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / pes).max(1)
}
