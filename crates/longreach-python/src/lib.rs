//! The module `longreach._longreach`: what the Python package `longreach` needs of the crates beneath it.
//!
//! Tensors come as DLPack capsules and are borrowed for a call. The package turns these few classes into what users see;
//! its docstrings are the documentation.

mod attention;
mod dlpack;
mod engine;
mod error;
mod plan;
mod shmem;
mod store;
mod support;
mod waiter;
mod world;

use pyo3::prelude::*;

#[pymodule]
mod _longreach {
    #[pymodule_export]
    use super::attention::Attention;
    #[pymodule_export]
    use super::engine::{Engine, Saved, slots_of};
    #[pymodule_export]
    use super::error::{Error, HeapTooSmall, PeerFailed};
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::shmem::{Buffer, Handle, Signal, Transfers};
    #[pymodule_export]
    use super::support::{support_table, supports, version};
    #[pymodule_export]
    use super::world::{Team, World};
}
