//! Attention on one device: forward, merge and backward over batches of tiles.
//!
//! A [`Tile`] is a range of query rows, a list of key/value row ranges and a band that says which of the
//! gathered keys each row sees. The forward carries an unnormalised [`State`] from tile to tile and from
//! call to call; [`finish`] divides once, at the end:
//!
//! ```
//! use longreach_kernels::{Context, Data, State, Tile, View, finish, forward};
//! use longreach_plan::{Band, Edge};
//!
//! // Two tokens, one head, head_dim 1; causal.
//! let (q, k, v) = ([0.0f32, 0.0], [1.0f32, 2.0], [1.0f32, 3.0]);
//! let view = |x| View::contiguous(Data::F32(x), [1, 2, 1, 1]).unwrap();
//! let band = Band { q: 0..2, lo: Edge::Fixed(0), hi: Edge::Diagonal(1) };
//! let tile = Tile { batch: 0..1, q: 0..2, kv: &[0..2], band: &band };
//!
//! let cx = Context { pool: None, tick: &|| () };
//! let (mut acc, mut max, mut sum) = ([0.0; 2], [0.0; 2], [0.0; 2]);
//! let mut state = State { acc: &mut acc, max: &mut max, sum: &mut sum };
//! state.reset();
//! forward(&cx, &view(&q), &view(&k), &view(&v), 1.0, &[tile], &mut state).unwrap();
//!
//! let (mut out, mut lse) = ([0.0; 2], [0.0; 2]);
//! finish(&cx, &state, [1, 2, 1, 1], &mut out, &mut lse).unwrap();
//! assert_eq!(out, [1.0, 2.0]);
//! assert_eq!(lse[0], 0.0);
//! ```
//!
//! Everything accumulates in float32, whatever the inputs' type. Bits depend on the tiles, never on the
//! number of threads, on alignment, or on how a sequence of tiles is cut into calls.

pub mod cpu;
#[cfg(target_os = "linux")]
pub mod cuda;
pub mod flops;
pub mod tensor;

mod context;
mod convert;
mod error;
mod shapes;
mod state;
mod tile;

pub use context::Context;
pub use convert::ConvertError;
pub use cpu::{GemmRate, backward, delta, finish, forward, gemm_rate, merge, scratch};
pub use error::Error;
pub use flops::{flops_backward, flops_forward};
pub use state::State;
pub use tensor::{DType, Data, View, ViewError};
pub use tile::Tile;
