//! A graph as plain data: what is computed from what.

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// 32-bit float.
    F32,
    /// bfloat16.
    Bf16,
    /// 16-bit IEEE float.
    F16,
    /// 32-bit integer.
    I32,
    /// Truth values.
    Bool,
}

/// A tensor of a graph, by its place in [`Graph::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub usize);

/// Where a tensor's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In memory of the caller's.
    Memory,
    /// Nowhere: it is an intermediate of the engine's.
    Virtual,
    /// In the caller's variable, on the host: one element.
    Value,
}

/// A tensor of four dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// For errors and prints.
    pub name: &'static str,
    /// Batch, heads, rows, columns.
    pub dims: [i64; 4],
    /// Elements from one index to the next, of each dimension.
    pub strides: [i64; 4],
    /// Element type.
    pub dtype: Type,
    /// Where its elements are.
    pub place: Place,
}

/// What is done element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pointwise {
    /// `x + b`.
    Add,
    /// `x - b`.
    Sub,
    /// `x * b`.
    Mul,
    /// `x / b`.
    Div,
    /// `e^x`.
    Exp,
    /// Natural logarithm.
    Log,
    /// `x`, in y's type.
    Identity,
    /// The element's index along an axis.
    Index(i64),
    /// `x >= b`.
    AtLeast,
    /// `x > b`.
    Greater,
    /// `x` where `t` holds, else `b`.
    Select,
}

/// How dimensions of length 1 in the result come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum.
    Add,
    /// The maximum.
    Max,
}

/// An operation of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `c = a b` of each batch and head; heads of `b` may divide those of `a`.
    Matmul {
        /// Left factor.
        a: TensorId,
        /// Right factor.
        b: TensorId,
        /// Product.
        c: TensorId,
    },
    /// Element by element, with broadcasting.
    Pointwise {
        /// What is done.
        mode: Pointwise,
        /// First operand.
        x: TensorId,
        /// Second operand.
        b: Option<TensorId>,
        /// Predicate.
        t: Option<TensorId>,
        /// Result.
        y: TensorId,
    },
    /// Over the dimensions in which `y` has length 1.
    Reduce {
        /// How.
        mode: Reduction,
        /// Operand.
        x: TensorId,
        /// Result.
        y: TensorId,
    },
    /// The same elements under other dimensions and strides.
    Reshape {
        /// Operand.
        x: TensorId,
        /// Result.
        y: TensorId,
    },
}

/// Tensors, and the operations between them in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Graph {
    /// The tensors.
    pub tensors: Vec<Tensor>,
    /// The operations.
    pub operations: Vec<Operation>,
}

/// Strides of a tensor whose elements lie side by side, columns first.
pub fn packed(dims: [i64; 4]) -> [i64; 4] {
    let [_, heads, rows, columns] = dims;
    [heads * rows * columns, rows * columns, columns, 1]
}

impl Graph {
    /// Adds a tensor.
    pub fn tensor(&mut self, tensor: Tensor) -> TensorId {
        self.tensors.push(tensor);
        TensorId(self.tensors.len() - 1)
    }

    /// Adds a tensor in the caller's memory.
    pub fn memory(&mut self, name: &'static str, dims: [i64; 4], strides: [i64; 4], dtype: Type) -> TensorId {
        self.tensor(Tensor { name, dims, strides, dtype, place: Place::Memory })
    }

    /// Adds an intermediate.
    pub fn temporary(&mut self, name: &'static str, dims: [i64; 4], dtype: Type) -> TensorId {
        self.tensor(Tensor { name, dims, strides: packed(dims), dtype, place: Place::Virtual })
    }

    /// Adds a number that the caller gives at each execution.
    pub fn value(&mut self, name: &'static str, dtype: Type) -> TensorId {
        self.tensor(Tensor { name, dims: [1; 4], strides: [1; 4], dtype, place: Place::Value })
    }

    /// Adds `y = mode(x, b)`, an intermediate with x's dimensions.
    pub fn pointwise(
        &mut self,
        mode: Pointwise,
        name: &'static str,
        x: TensorId,
        b: Option<TensorId>,
        dtype: Type,
    ) -> TensorId {
        let y = self.temporary(name, self.tensors[x.0].dims, dtype);
        self.operations.push(Operation::Pointwise { mode, x, b, t: None, y });
        y
    }

    /// Adds `y = mode(x, b)` into a tensor that is there.
    pub fn pointwise_into(&mut self, mode: Pointwise, x: TensorId, b: Option<TensorId>, y: TensorId) {
        self.operations.push(Operation::Pointwise { mode, x, b, t: None, y });
    }

    /// Adds `c = a b`, an intermediate.
    pub fn matmul(&mut self, name: &'static str, a: TensorId, b: TensorId, dtype: Type) -> TensorId {
        let ([batch, heads, rows, _], [_, _, _, columns]) = (self.tensors[a.0].dims, self.tensors[b.0].dims);
        let c = self.temporary(name, [batch, heads, rows, columns], dtype);
        self.matmul_into(a, b, c);
        c
    }

    /// Adds `c = a b` into a tensor that is there.
    pub fn matmul_into(&mut self, a: TensorId, b: TensorId, c: TensorId) {
        self.operations.push(Operation::Matmul { a, b, c });
    }

    /// Adds a reduction into a tensor that is there.
    pub fn reduce_into(&mut self, mode: Reduction, x: TensorId, y: TensorId) {
        self.operations.push(Operation::Reduce { mode, x, y });
    }

    /// Adds the transpose of an intermediate, in another type.
    pub fn transpose(&mut self, name: &'static str, x: TensorId, dtype: Type) -> TensorId {
        let Tensor { dims: [b, h, r, c], strides: [sb, sh, sr, sc], .. } = self.tensors[x.0];
        let y = Tensor { name, dims: [b, h, c, r], strides: [sb, sh, sc, sr], dtype, place: Place::Virtual };
        let y = self.tensor(y);
        self.operations.push(Operation::Reshape { x, y });
        y
    }

    /// Why the graph must not be run, although cuDNN takes it: a product is the caller's in float32, and nothing reads
    /// it. Attention's output so declared is planned, run, and wrong.
    pub fn known_hole(&self) -> Option<String> {
        let reads = |operation: &Operation, id| match operation {
            Operation::Matmul { a, b, .. } => [Some(*a), Some(*b), None].contains(&Some(id)),
            Operation::Pointwise { x, b, t, .. } => [Some(*x), *b, *t].contains(&Some(id)),
            Operation::Reduce { x, .. } | Operation::Reshape { x, .. } => *x == id,
        };
        self.operations.iter().find_map(|operation| {
            let Operation::Matmul { c, .. } = operation else { return None };
            let Tensor { name, dtype, place, .. } = self.tensors[c.0];
            let last = !self.operations.iter().any(|operation| reads(operation, *c));
            (dtype == Type::F32 && place == Place::Memory && last).then(|| {
                format!("{name} as float32 output: cuDNN computes it wrong; take bf16 or f16 and add parts in float32")
            })
        })
    }
}
