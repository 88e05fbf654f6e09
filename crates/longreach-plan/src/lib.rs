//! What is fetched and computed where, as pure functions on integers.
//!
//! A [`Mask`] says what may see what, a [`Layout`] who holds what. [`Plan::new`] makes of both, for every processing
//! element (PE), stages of [`Get`]s (whose rows of which owner) and [`Tile`]s (which query rows meet which keys):
//!
//! ```
//! use longreach_plan::{Layout, Mask, Plan, Request};
//! let plan = Plan::new(&Request {
//!     batch: 1,
//!     q_len: 16,
//!     kv_len: 16,
//!     pes: 2,
//!     mask: Mask::causal(),
//!     layout: Layout::Zigzag,
//!     stages: 1,
//! })?;
//! // PE 0 holds the chunks 0 and 3 of 4; its last queries see all of PE 1's rows.
//! assert_eq!(plan.q_shards.positions(0).collect::<Vec<_>>(), [0, 1, 2, 3, 12, 13, 14, 15]);
//! assert_eq!(plan.pes[0].rows_fetched(), 8);
//! // PE 1 fetches only the half of PE 0's rows that it sees.
//! assert_eq!(plan.pes[1].rows_fetched(), 4);
//! # Ok::<(), longreach_plan::Error>(())
//! ```
//!
//! Nothing here does I/O, uses memory of a device, or knows of threads.

pub mod band;
pub mod bands;
pub mod cost;
pub mod documents;
pub mod error;
pub mod layout;
pub mod mask;
pub mod need;
mod overlap;
pub mod plan;
mod resolve;
pub mod simulate;
pub mod stages;
pub mod tiles;

pub use band::{Band, Edge};
pub use bands::Bands;
pub use cost::{Model, choose_stages};
pub use documents::Documents;
pub use error::{Error, MAX_LEN};
pub use layout::{Layout, Run, Shards};
pub use mask::Mask;
pub use need::{Buffers, Need, Shape};
pub use plan::{Contribution, PePlan, Plan, Request, shards};
pub use simulate::{Simulation, simulate};
pub use stages::{Get, Stage};
pub use tiles::Tile;
