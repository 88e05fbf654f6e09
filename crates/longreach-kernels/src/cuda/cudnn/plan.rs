//! Plans: what cuDNN makes of a graph, and their execution.

use super::descriptor::Descriptor;
use super::graph::{Graph, Operation, Place, Pointwise, Reduction, Tensor, TensorId, Type};
use super::library::{Handle, said};
use crate::error::Error;
use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Kind,
    cudnnBackendDescriptorType_t as Object, cudnnBackendHeurMode_t, cudnnDataType_t, cudnnPointwiseMode_t,
    cudnnReduceTensorOp_t,
};
use std::ffi::c_void;

/// Engine configurations that are asked for.
const CONFIGURATIONS: usize = 16;
/// Tensors in memory begin at multiples of this many bytes.
const ALIGNMENT: i64 = 16;

/// A number that a graph takes by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// Of a float32 tensor.
    F32(f32),
    /// Of an int32 tensor.
    I32(i32),
}

/// What a tensor of a graph stands for in one execution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Binding {
    /// The address of its first element on the device.
    Memory(u64),
    /// Its one element.
    Value(Scalar),
}

/// An executable plan of a graph.
#[derive(Debug)]
pub struct Plan {
    plan: Descriptor,
    workspace: usize,
}

impl Plan {
    /// The first engine that takes `graph` with a workspace of at most `most` bytes; `what` is what errors call it.
    pub fn new(handle: &Handle, graph: &Graph, what: &str, most: usize) -> Result<Self, Error> {
        if let Some(hole) = graph.known_hole() {
            return Err(Error::Refused(hole));
        }
        let tensors = graph.tensors.iter().enumerate().map(|(id, tensor)| describe(id, tensor));
        let tensors: Vec<Descriptor> = tensors.collect::<Result<_, _>>()?;
        let types: Vec<Type> = graph.tensors.iter().map(|tensor| tensor.dtype).collect();
        let operations = graph.operations.iter().map(|operation| lower(operation, &tensors, &types));
        let operations: Vec<Descriptor> = operations.collect::<Result<_, _>>()?;
        let whole = Descriptor::new(Object::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        whole.set_descriptors(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operations.iter().collect::<Vec<_>>())?;
        whole.set(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Kind::CUDNN_TYPE_HANDLE, &[handle.raw()])?;
        let unsupported =
            |reason: String| Error::Unsupported { version: handle.version(), what: what.to_owned(), reason };
        let whole = whole.finalize().map_err(|error| unsupported(error.to_string()))?;
        let mut last = "no engine was proposed".to_owned();
        for configuration in configurations(&whole).map_err(|error| unsupported(error.to_string()))? {
            match Self::of(handle, &configuration) {
                Ok(plan) if plan.workspace <= most => return Ok(plan),
                Ok(plan) => {
                    last = format!("it needs {} bytes of workspace and may have {most}", plan.workspace)
                }
                Err(error) => last = error.to_string(),
            }
        }
        Err(unsupported(last))
    }

    fn of(handle: &Handle, configuration: &Descriptor) -> Result<Self, Error> {
        let plan = Descriptor::new(Object::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Kind::CUDNN_TYPE_HANDLE, &[handle.raw()])?;
        plan.set_descriptors(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[configuration])?;
        let plan = plan.finalize()?;
        let mut workspace = [0i64];
        plan.get(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, Kind::CUDNN_TYPE_INT64, &mut workspace)?;
        Ok(Self { plan, workspace: usize::try_from(workspace[0]).unwrap_or(usize::MAX) })
    }

    /// Bytes of workspace that an execution needs.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// Queues the graph on the handle's stream. `bindings` are those of all tensors that are not virtual.
    ///
    /// # Safety
    /// Each address must be of device memory as large as the tensor's dimensions and strides say, 16-byte aligned, and
    /// stay valid, and unwritten by others, until the stream has run the work; `workspace` likewise, of
    /// [`Plan::workspace`] bytes.
    pub unsafe fn execute(
        &self,
        handle: &mut Handle,
        bindings: &[(TensorId, Binding)],
        workspace: u64,
    ) -> Result<(), Error> {
        let ids: Vec<i64> = bindings.iter().map(|(id, _)| id.0 as i64 + 1).collect();
        // By-value numbers are read where they stand, until the call below returns.
        let pointers = bindings.iter().map(|(_, binding)| match binding {
            Binding::Memory(address) => *address as *mut c_void,
            Binding::Value(Scalar::F32(value)) => std::ptr::from_ref(value).cast_mut().cast(),
            Binding::Value(Scalar::I32(value)) => std::ptr::from_ref(value).cast_mut().cast(),
        });
        let pointers: Vec<*mut c_void> = pointers.collect();
        let pack = Descriptor::new(Object::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Kind::CUDNN_TYPE_INT64, &ids)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Kind::CUDNN_TYPE_VOID_PTR, &pointers)?;
        let workspace = [workspace as *mut c_void];
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Kind::CUDNN_TYPE_VOID_PTR, &workspace)?;
        let pack = pack.finalize()?;
        // SAFETY: plan and pack are final; the addresses are the caller's promise.
        said("cudnnBackendExecute", unsafe {
            (handle.api().execute)(handle.raw(), self.plan.raw(), pack.raw())
        })
    }
}

/// Proposals for a graph, the best one first.
fn configurations(graph: &Descriptor) -> Result<Vec<Descriptor>, Error> {
    let heuristics = Descriptor::new(Object::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
    heuristics.set_descriptors(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[graph])?;
    let mode = [cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A];
    heuristics.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, Kind::CUDNN_TYPE_HEUR_MODE, &mode)?;
    let heuristics = heuristics.finalize()?;
    let room = || Descriptor::new(Object::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    let mut found: Vec<Descriptor> = (0..CONFIGURATIONS).map(|_| room()).collect::<Result<_, _>>()?;
    let mut raw: Vec<_> = found.iter().map(Descriptor::raw).collect();
    let kind = Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR;
    let count = heuristics.get(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, kind, &mut raw)?;
    found.truncate(count);
    Ok(found)
}

fn describe(id: usize, tensor: &Tensor) -> Result<Descriptor, Error> {
    let descriptor = Descriptor::new(Object::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    let integers = |name, values: &[i64]| descriptor.set(name, Kind::CUDNN_TYPE_INT64, values);
    let flag = |name, value: bool| descriptor.set(name, Kind::CUDNN_TYPE_BOOLEAN, &[value]);
    let dtype = [data_type(tensor.dtype)];
    descriptor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Kind::CUDNN_TYPE_DATA_TYPE, &dtype)?;
    integers(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &tensor.dims)?;
    integers(Name::CUDNN_ATTR_TENSOR_STRIDES, &tensor.strides)?;
    // Numbers of tensors begin at 1: 0 means none in places.
    integers(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[id as i64 + 1])?;
    integers(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[ALIGNMENT])?;
    flag(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, tensor.place == Place::Virtual)?;
    flag(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, tensor.place == Place::Value)?;
    descriptor.finalize()
}

fn lower(operation: &Operation, tensors: &[Descriptor], types: &[Type]) -> Result<Descriptor, Error> {
    let of = |id: &TensorId| &tensors[id.0];
    let float = [cudnnDataType_t::CUDNN_DATA_FLOAT];
    match operation {
        Operation::Matmul { a, b, c } => {
            let matmul = Descriptor::new(Object::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?;
            matmul.set(Name::CUDNN_ATTR_MATMUL_COMP_TYPE, Kind::CUDNN_TYPE_DATA_TYPE, &float)?;
            let matmul = matmul.finalize()?;
            let lowered = Descriptor::new(Object::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?;
            lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, &[of(a)])?;
            lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, &[of(b)])?;
            lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, &[of(c)])?;
            lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, &[&matmul])?;
            lowered.finalize()
        }
        Operation::Pointwise { mode, x, b, t, y } => {
            let pointwise = Descriptor::new(Object::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
            let (kind, precision) = pointwise_mode(*mode, types[y.0]);
            pointwise.set(Name::CUDNN_ATTR_POINTWISE_MODE, Kind::CUDNN_TYPE_POINTWISE_MODE, &[kind])?;
            pointwise.set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, Kind::CUDNN_TYPE_DATA_TYPE, &[precision])?;
            if let Pointwise::Index(axis) = mode {
                pointwise.set(Name::CUDNN_ATTR_POINTWISE_AXIS, Kind::CUDNN_TYPE_INT64, &[*axis])?;
            }
            let pointwise = pointwise.finalize()?;
            let lowered = Descriptor::new(Object::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
            lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&pointwise])?;
            lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &[of(x)])?;
            if let Some(b) = b {
                lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &[of(b)])?;
            }
            if let Some(t) = t {
                lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_TDESC, &[of(t)])?;
            }
            lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[of(y)])?;
            lowered.finalize()
        }
        Operation::Reduce { mode, x, y } => {
            let reduction = Descriptor::new(Object::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?;
            let operator = [match mode {
                Reduction::Add => cudnnReduceTensorOp_t::CUDNN_REDUCE_TENSOR_ADD,
                Reduction::Max => cudnnReduceTensorOp_t::CUDNN_REDUCE_TENSOR_MAX,
            }];
            let kind = Kind::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
            reduction.set(Name::CUDNN_ATTR_REDUCTION_OPERATOR, kind, &operator)?;
            reduction.set(Name::CUDNN_ATTR_REDUCTION_COMP_TYPE, Kind::CUDNN_TYPE_DATA_TYPE, &float)?;
            let reduction = reduction.finalize()?;
            let lowered = Descriptor::new(Object::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?;
            lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &[of(x)])?;
            lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &[of(y)])?;
            lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &[&reduction])?;
            lowered.finalize()
        }
        Operation::Reshape { x, y } => {
            let lowered = Descriptor::new(Object::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?;
            lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &[of(x)])?;
            lowered.set_descriptors(Name::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &[of(y)])?;
            lowered.finalize()
        }
    }
}

const fn data_type(dtype: Type) -> cudnnDataType_t {
    match dtype {
        Type::F32 => cudnnDataType_t::CUDNN_DATA_FLOAT,
        Type::Bf16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        Type::F16 => cudnnDataType_t::CUDNN_DATA_HALF,
        Type::I32 => cudnnDataType_t::CUDNN_DATA_INT32,
        Type::Bool => cudnnDataType_t::CUDNN_DATA_BOOLEAN,
    }
}

/// cuDNN's name of an operation, and the type that it computes in.
const fn pointwise_mode(mode: Pointwise, result: Type) -> (cudnnPointwiseMode_t, cudnnDataType_t) {
    use cudnnPointwiseMode_t as Mode;
    let name = match mode {
        Pointwise::Add => Mode::CUDNN_POINTWISE_ADD,
        Pointwise::Sub => Mode::CUDNN_POINTWISE_SUB,
        Pointwise::Mul => Mode::CUDNN_POINTWISE_MUL,
        Pointwise::Div => Mode::CUDNN_POINTWISE_DIV,
        Pointwise::Exp => Mode::CUDNN_POINTWISE_EXP,
        Pointwise::Log => Mode::CUDNN_POINTWISE_LOG,
        Pointwise::Identity => Mode::CUDNN_POINTWISE_IDENTITY,
        Pointwise::Select => Mode::CUDNN_POINTWISE_BINARY_SELECT,
        Pointwise::Index(_) => Mode::CUDNN_POINTWISE_GEN_INDEX,
        Pointwise::AtLeast => Mode::CUDNN_POINTWISE_CMP_GE,
        Pointwise::Greater => Mode::CUDNN_POINTWISE_CMP_GT,
    };
    // The pattern that cuDNN knows computes in float32, indices too, but for integer sums and comparisons.
    let precision = match (mode, result) {
        (Pointwise::Add, Type::I32) => cudnnDataType_t::CUDNN_DATA_INT32,
        (Pointwise::AtLeast | Pointwise::Greater, _) => cudnnDataType_t::CUDNN_DATA_BOOLEAN,
        _ => cudnnDataType_t::CUDNN_DATA_FLOAT,
    };
    (name, precision)
}
