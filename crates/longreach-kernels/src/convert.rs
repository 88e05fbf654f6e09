//! Views of other libraries' arrays.

#[cfg(any(feature = "ndarray", feature = "safetensors"))]
use crate::tensor::{Data, View};

/// Why an array is no [`View`](crate::View).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The array's elements do not fill one stretch of memory, or run backwards in it.
    #[error(
        "an array of shape {shape:?} with strides {strides:?} has gaps or runs backwards: make a copy of it first (`to_owned()`), or give the slice and strides to View::strided"
    )]
    Gaps {
        /// The array's shape.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<isize>,
    },
    /// A safetensors tensor of a type that attention does not take.
    #[error("a tensor of type {given}: expected F32, F16 or BF16")]
    DType {
        /// The type's name.
        given: String,
    },
    /// A tensor that does not have four dimensions.
    #[error("a tensor of shape {given:?}: expected [batch, sequence, heads, dim]")]
    Rank {
        /// The shape.
        given: Vec<usize>,
    },
    /// Bytes that do not start where an element may.
    #[error(
        "a tensor of type {dtype} starts at an address that is no multiple of its element size: copy its bytes first"
    )]
    Alignment {
        /// The type's name.
        dtype: String,
    },
}

#[cfg(feature = "ndarray")]
mod from_ndarray {
    use super::*;
    use half::{bf16, f16};
    use ndarray::ArrayView4;

    macro_rules! from_array {
        ($element:ty, $data:path) => {
            /// Of an array whose elements fill one stretch of memory, in whatever order of its axes.
            impl<'a> TryFrom<ArrayView4<'a, $element>> for View<'a> {
                type Error = ConvertError;

                fn try_from(array: ArrayView4<'a, $element>) -> Result<Self, ConvertError> {
                    let shape: [usize; 4] = array.dim().into();
                    let strides = array.strides().to_vec();
                    let gaps = || ConvertError::Gaps { shape: shape.to_vec(), strides: strides.clone() };
                    // An axis of one element may have any stride: it is never taken.
                    let forward =
                        |i: usize| if shape[i] <= 1 { Some(0) } else { usize::try_from(strides[i]).ok() };
                    let steps: Option<Vec<usize>> = (0..4).map(forward).collect();
                    let steps: [usize; 4] = steps.and_then(|steps| steps.try_into().ok()).ok_or_else(gaps)?;
                    let slice = array.to_slice_memory_order().ok_or_else(gaps)?;
                    View::strided($data(slice), shape, steps).map_err(|_| gaps())
                }
            }
        };
    }

    from_array!(f32, Data::F32);
    from_array!(f16, Data::F16);
    from_array!(bf16, Data::Bf16);
}

#[cfg(feature = "safetensors")]
mod from_safetensors {
    use super::*;
    use safetensors::{Dtype, tensor::TensorView};

    /// Of a tensor `[batch, sequence, heads, dim]` in memory that is aligned for its elements.
    impl<'a> TryFrom<&TensorView<'a>> for View<'a> {
        type Error = ConvertError;

        fn try_from(tensor: &TensorView<'a>) -> Result<Self, ConvertError> {
            let given = tensor.shape();
            let shape: [usize; 4] =
                given.try_into().map_err(|_| ConvertError::Rank { given: given.to_vec() })?;
            let dtype = format!("{:?}", tensor.dtype());
            let bytes = tensor.data();
            let alignment = |_| ConvertError::Alignment { dtype: dtype.clone() };
            let data = match tensor.dtype() {
                Dtype::F32 => Data::F32(bytemuck::try_cast_slice(bytes).map_err(alignment)?),
                Dtype::F16 => Data::F16(bytemuck::try_cast_slice(bytes).map_err(alignment)?),
                Dtype::BF16 => Data::Bf16(bytemuck::try_cast_slice(bytes).map_err(alignment)?),
                _ => return Err(ConvertError::DType { given: dtype }),
            };
            View::contiguous(data, shape).map_err(|_| ConvertError::Rank { given: given.to_vec() })
        }
    }
}

#[cfg(all(test, feature = "ndarray", feature = "safetensors"))]
mod tests {
    use super::*;
    use ndarray::{Array4, s};
    use safetensors::{Dtype, tensor::TensorView};

    #[test]
    fn arrays_keep_their_strides_and_elements() {
        let array =
            Array4::from_shape_fn((2, 3, 4, 5), |(b, h, s, d)| (b * 1000 + h * 100 + s * 10 + d) as f32);
        // [batch, heads, sequence, dim] seen as [batch, sequence, heads, dim].
        let swapped = array.view().permuted_axes([0, 2, 1, 3]);
        let view = View::try_from(swapped).unwrap();
        assert_eq!(view.shape(), [2, 4, 3, 5]);
        assert_eq!(view.get([1, 3, 2, 4]), 1234.0);
    }

    #[test]
    fn arrays_with_gaps_or_backwards_are_refused() {
        let array = Array4::<f32>::zeros((1, 4, 2, 6));
        for view in [array.slice(s![.., .., .., ..;2]), array.slice(s![.., ..;-1, .., ..])] {
            let error = View::try_from(view).unwrap_err();
            assert!(matches!(error, ConvertError::Gaps { .. }), "{error}");
        }
    }

    #[test]
    fn tensors_of_a_file_are_views() {
        let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let tensor = TensorView::new(Dtype::F32, vec![1, 3, 2, 4], bytemuck::cast_slice(&values)).unwrap();
        assert_eq!(View::try_from(&tensor).unwrap().get([0, 2, 1, 3]), 23.0);
        let flat = TensorView::new(Dtype::F32, vec![24], bytemuck::cast_slice(&values)).unwrap();
        assert_eq!(View::try_from(&flat).unwrap_err(), ConvertError::Rank { given: vec![24] });
        let ints = TensorView::new(Dtype::I32, vec![1, 3, 2, 4], bytemuck::cast_slice(&values)).unwrap();
        assert!(matches!(View::try_from(&ints), Err(ConvertError::DType { .. })));
    }
}
