//! Arguments as typed. What they mean together is decided in [`crate::request`].

use crate::error::{Error, status};
use crate::inject::Fault;
use crate::stdout;
use crate::values::{
    MOST_SECONDS, MOST_THREADS, Memory, SCALES, Window, bytes_a_second, layout, scale, seconds, stages, whole,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use longreach::{Device, Layout, MOST_PES, Stages};
use longreach_plan::MAX_LEN;
#[cfg(unix)]
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Exact attention over sequences too long for one device.
#[derive(Debug, Parser)]
#[command(name = "longreach", version, arg_required_else_help = false)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The program's commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compute attention over the q, k and v of a file with several PEs
    Attend(Box<AttendArgs>),
    /// Run a program as several PEs, each a process
    #[cfg(unix)]
    Launch(LaunchArgs),
    /// Tell what this machine offers, what is missing and what brings it
    Doctor(DoctorArgs),
    /// Measure
    #[command(subcommand, arg_required_else_help = false)]
    Bench(BenchCommand),
}

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time attention against the rate of the matrix products it is made of
    Attention(BenchArgs),
    /// Time gets against plain copies, and signals
    Get(BenchGetArgs),
}

/// How the bytes between PEs travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// The PEs are threads of this process.
    Threads,
    /// Each PE is a process of its own.
    Processes,
    /// Each PE is a process of its own, and NVSHMEM moves bytes between their GPUs (with --device cuda).
    Nvshmem,
}

impl Transport {
    /// The name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Processes => "processes",
            Self::Nvshmem => "nvshmem",
        }
    }
}

/// What PEs compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    /// Threads of the CPU.
    Cpu,
    /// GPUs of NVIDIA, which the PEs take in turn.
    Cuda,
}

impl DeviceKind {
    /// As the engine takes it.
    pub const fn device(self) -> Device {
        match self {
            Self::Cpu => Device::Cpu,
            Self::Cuda => Device::Cuda(None),
        }
    }
}

/// The mask's main shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MaskKind {
    /// A query sees the keys up to its own position, aligned bottom-right.
    Causal,
    /// A query sees every key.
    Full,
}

/// Element type of the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutDtype {
    /// As the input's.
    Input,
    /// Unrounded.
    F32,
}

/// Arguments that say who sees what.
#[derive(Args, Clone, Debug)]
pub struct MaskArgs {
    /// Who sees what, aligned bottom-right where the lengths differ [default: the file's, else causal]
    #[arg(long, value_enum)]
    pub mask: Option<MaskKind>,
    /// Query i sees only keys i-LEFT..=i+RIGHT of the diagonal; -1 is no bound
    #[arg(long, value_name = "LEFT,RIGHT", allow_hyphen_values = true)]
    pub window: Option<Window>,
    /// Documents: cu_seqlens 0,300,1024 or ranges 0..300,304..900; `;` between batch rows
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub documents: Option<String>,
}

/// Arguments of `longreach attend`.
#[derive(Args, Debug)]
pub struct AttendArgs {
    /// A safetensors file with q [B, Sq, Hq, Dqk], k [B, Skv, Hkv, Dqk] and v [B, Skv, Hkv, Dv]
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// Processing elements [default: 2, or those of the launcher that started this process]
    #[arg(long, value_name = "N", value_parser = world_size, allow_hyphen_values = true)]
    pub pes: Option<usize>,
    /// How bytes travel between PEs
    #[arg(long, value_enum, default_value = "threads")]
    pub transport: Transport,
    /// What PEs compute on
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: DeviceKind,
    /// Compute threads a PE [default: cores / pes, at least 1]
    #[arg(long, value_name = "N", value_parser = threads, allow_hyphen_values = true)]
    pub threads: Option<usize>,
    /// Who holds what: zigzag, contiguous or striped[:BLOCK]
    #[arg(long, value_name = "LAYOUT", default_value = "zigzag", value_parser = layout)]
    pub layout: Layout,
    /// Fetched stages, or auto [default: auto; with --inject one less than PEs, at least 1]
    #[arg(long, value_name = "N", value_parser = stages, allow_hyphen_values = true)]
    pub stages: Option<Stages>,
    /// Bound on symmetric and scratch memory a PE, in bytes (suffixes KiB, MiB, GiB)
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    pub memory: Option<Memory>,
    #[command(flatten)]
    pub mask: MaskArgs,
    /// Documents of the keys, where they are packed otherwise [default: as --documents]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub kv_documents: Option<String>,
    /// A file with any mask, in place of --mask, --window and documents
    #[arg(long, value_name = "FILE.json")]
    pub bands: Option<PathBuf>,
    /// Factor of the scores [default: the file's, else Dqk^-0.5]
    #[arg(long, value_name = "X", value_parser = factor, allow_hyphen_values = true)]
    pub scale: Option<f64>,
    /// Compute gradients also
    #[arg(long)]
    pub backward: bool,
    /// A safetensors file with the output's gradient `dout` [default: INPUT's, else generated]
    #[arg(long, value_name = "FILE")]
    pub dout: Option<PathBuf>,
    /// Seed of a generated dout
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = seed, allow_hyphen_values = true)]
    pub seed: u64,
    /// Compare with float64; exit 1 where the accuracy rule is not met
    #[arg(long)]
    pub check: bool,
    /// Write out, lse, dq, dk and dv to this safetensors file
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Element type of what --out writes (lse is always f32)
    #[arg(long, value_enum, default_value = "input")]
    pub out_dtype: OutDtype,
    /// Run N times; times are medians, results must be bit-equal
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one, allow_hyphen_values = true)]
    pub repeat: usize,
    /// Use only kernels that give the same bits every time (on a CPU all do)
    #[arg(long)]
    pub deterministic: bool,
    /// Let one PE at a time have the device, so that its times are its own (transport threads)
    #[arg(long)]
    pub serialize_pes: bool,
    /// Slow gets down to the rate of a link, such as 200GB/s: an emulated link
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub get_bandwidth: Option<f64>,
    /// Write a Chrome / Perfetto trace
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Longest time without progress of a PE that another waits for
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = deadline, allow_hyphen_values = true)]
    pub deadline: Duration,
    /// For drills: KIND@pe=N,forward|backward,stage=N with KIND kill, fail or stall (and seconds=X)
    #[arg(long, value_name = "FAULT")]
    pub inject: Option<Fault>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `longreach doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `longreach launch`.
#[cfg(unix)]
#[derive(Args, Debug)]
pub struct LaunchArgs {
    /// Processing elements
    #[arg(short = 'n', long, value_name = "N", value_parser = world_size, allow_hyphen_values = true)]
    pub pes: usize,
    /// The program, by path or by its name in PATH, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// Arguments of `longreach bench attention`.
#[derive(Args, Debug)]
// There is no file here that the mask could be of.
#[command(mut_arg("mask", |arg| arg.help("Who sees what [default: causal]")))]
pub struct BenchArgs {
    /// Tokens
    #[arg(long, value_name = "N", default_value = "4096", value_parser = tokens, allow_hyphen_values = true)]
    pub seqlen: usize,
    /// Query heads
    #[arg(long, value_name = "N", default_value = "4", value_parser = heads, allow_hyphen_values = true)]
    pub q_heads: usize,
    /// Key and value heads [default: as --q-heads]
    #[arg(long, value_name = "N", value_parser = heads, allow_hyphen_values = true)]
    pub kv_heads: Option<usize>,
    /// Elements a head
    #[arg(long, value_name = "N", default_value = "128", value_parser = heads, allow_hyphen_values = true)]
    pub head_dim: usize,
    /// Element type of q, k and v
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: BenchDtype,
    #[command(flatten)]
    pub mask: MaskArgs,
    /// Processing elements
    #[arg(long, value_name = "N", default_value = "1", value_parser = world_size, allow_hyphen_values = true)]
    pub pes: usize,
    /// What PEs compute on; cuda is timed against one call of cuDNN on the whole sequence
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: DeviceKind,
    /// Fetched stages, or auto
    #[arg(long, value_name = "N", default_value = "auto", value_parser = stages, allow_hyphen_values = true)]
    pub stages: Stages,
    /// Let one PE at a time have the device, so that its times are its own
    #[arg(long)]
    pub serialize_pes: bool,
    /// Slow gets down to the rate of a link, such as 200GB/s: an emulated link
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub get_bandwidth: Option<f64>,
    /// Compute threads a PE [default: cores / pes, at least 1]
    #[arg(long, value_name = "N", value_parser = threads, allow_hyphen_values = true)]
    pub threads: Option<usize>,
    /// Time the backward pass also
    #[arg(long)]
    pub backward: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `longreach bench get`.
#[derive(Args, Debug)]
pub struct BenchGetArgs {
    /// How bytes travel between PEs
    #[arg(long, value_enum, default_value = "threads")]
    pub transport: Transport,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Element types that `bench` generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchDtype {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// bfloat16.
    Bf16,
}

/// Most heads, and elements a head, that `bench` generates: more are a mistake.
const MOST_HEADS: usize = 1 << 16;

fn at_least_one(text: &str) -> Result<usize, String> {
    whole(text, 1, usize::MAX)
}

fn world_size(text: &str) -> Result<usize, String> {
    whole(text, 1, MOST_PES)
}

fn threads(text: &str) -> Result<usize, String> {
    whole(text, 1, MOST_THREADS)
}

fn tokens(text: &str) -> Result<usize, String> {
    whole(text, 1, usize::try_from(MAX_LEN).unwrap_or(usize::MAX))
}

fn heads(text: &str) -> Result<usize, String> {
    whole(text, 1, MOST_HEADS)
}

fn seed(text: &str) -> Result<u64, String> {
    whole(text, 0, u64::MAX)
}

fn factor(text: &str) -> Result<f64, String> {
    scale(text).ok_or_else(|| format!("expected {SCALES}"))
}

fn rate(text: &str) -> Result<f64, String> {
    bytes_a_second(text).ok_or_else(|| "expected a rate such as 200GB/s (GB, MB or kB a second)".to_owned())
}

fn deadline(text: &str) -> Result<Duration, String> {
    seconds(text, 1e-9).ok_or_else(|| format!("expected a number of seconds from 1e-9 to {MOST_SECONDS:e}"))
}

/// The arguments of this process, or the error in one line.
///
/// Prints and ends the process where help or the version is asked for.
pub fn parse() -> Result<Cli, Error> {
    Cli::try_parse().map_err(|error| {
        if error.use_stderr() {
            return Error::Usage(first_paragraph(&error.to_string()));
        }
        match stdout::printed(error.print()) {
            Ok(()) => std::process::exit(i32::from(status::DONE)),
            Err(error) => error,
        }
    })
}

/// What is wrong, without the usage and the tips that follow it.
fn first_paragraph(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let end = ["\n\nUsage:", "\n\nFor more information", "\n\n  tip:"]
        .iter()
        .filter_map(|mark| text.find(mark))
        .min()
        .unwrap_or(text.len());
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_window_with_no_bound_on_the_left_needs_no_equals_sign() {
        let cli = Cli::try_parse_from(["longreach", "attend", "x", "--window", "-1,0"]).unwrap();
        let Command::Attend(args) = cli.command else { panic!("not attend") };
        assert_eq!(args.mask.window, Some(Window { left: None, right: Some(0) }));
    }

    #[test]
    fn usage_errors_lose_their_tips() {
        let text = |args: &[&str]| {
            let error = Cli::try_parse_from([&["longreach", "attend"], args].concat()).unwrap_err();
            crate::error::one_line(&first_paragraph(&error.to_string()))
        };
        assert_eq!(
            text(&["x", "--pes", "0"]),
            "invalid value '0' for '--pes <N>': expected a whole number from 1 to 1024"
        );
        assert_eq!(text(&["x", "--bakward"]), "unexpected argument '--bakward' found");
        assert_eq!(text(&[]), "the following required arguments were not provided: <INPUT>");
        assert_eq!(
            text(&["x", "--mask", "sideways"]),
            "invalid value 'sideways' for '--mask <MASK>' [possible values: causal, full]"
        );
    }
}
