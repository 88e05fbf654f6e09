//! cuDNN's graph interface, as far as attention needs it.
//!
//! [`Graph`] is plain data: tensors, and operations between them; [`forward`] and [`backward`] write attention in it.
//! [`Plan`] is what cuDNN makes of a graph on a device.

mod api;
mod attention;
mod backward;
mod descriptor;
mod forward;
mod graph;
mod library;
mod plan;

pub(in crate::cuda) use attention::check_dim;
pub use attention::{Bound, Element, MaskValues, Problem, Rows};
pub use backward::{Backward, backward};
pub use forward::{Forward, forward};
pub use graph::{Graph, Operation, Pointwise, Reduction, Tensor, TensorId, Type};
pub use library::{Handle, OLDEST, found};
pub use plan::{Binding, Plan, Scalar};
