//! Whole calls: forward and backward against float64.

use crate::device::{Numbers, number, poisoned, stream};
use crate::graphs::problem;
use crate::reference::{Sizes, exact, relative};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use longreach_kernels::cuda::cudnn::{
    Binding, Bound, Element, Handle, Plan, Problem, Scalar, backward, forward,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use std::sync::Arc;

const WORKSPACE: usize = 1 << 30;

fn normal(random: &mut StdRng, len: i64) -> Vec<f32> {
    (0..len).map(|_| random.sample::<f32, _>(StandardNormal)).collect()
}

struct Errors {
    o: f64,
    lse: f64,
    dq: f64,
    dk: f64,
    dv: f64,
}

fn numbers(stream: &Arc<CudaStream>, element: Element, memory: &CudaSlice<u16>) -> Vec<f64> {
    stream.clone_dtoh(memory).expect("results").into_iter().map(|bits| number(element, bits)).collect()
}

fn run(stream: &Arc<CudaStream>, handle: &mut Handle, p: &Problem, seed: u64) -> Result<Errors, String> {
    let mut random = StdRng::seed_from_u64(seed);
    let scale = (p.head_dim as f32).powf(-0.5);
    let mut tensor = |len| Numbers::new(stream, p.element, &normal(&mut random, len));
    let q = tensor(p.q_len * p.q_heads * p.head_dim);
    let k = tensor(p.kv_len * p.kv_heads * p.head_dim);
    let v = tensor(p.kv_len * p.kv_heads * p.value_dim);
    let d_o = tensor(p.q_len * p.q_heads * p.value_dim);
    let [q_heads, kv_heads, q_len, kv_len, dim, value_dim] =
        [p.q_heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim, p.value_dim].map(|size| size as usize);
    let sizes = Sizes { q_heads, kv_heads, q_len, kv_len, dim, value_dim };
    let sees = |row: usize, key: usize| {
        let (row, key) = (row as i64, key as i64);
        p.bound.right.is_none_or(|right| key <= row + right)
            && p.bound.left.is_none_or(|left| key >= row - left)
    };
    let inputs = [&q, &k, &v, &d_o].map(|tensor| &tensor.exact[..]);
    let expected = exact(&sizes, &sees, f64::from(scale), inputs);
    let at = |memory: &CudaSlice<u16>| Binding::Memory(memory.device_ptr(stream).0);
    let floats = |len: i64| stream.clone_htod(&vec![f32::NAN; len as usize]).expect("memory");
    let at_f32 = |memory: &CudaSlice<f32>| Binding::Memory(memory.device_ptr(stream).0);
    let workspace = |bytes: usize| stream.alloc_zeros::<u8>(bytes.max(16)).expect("a workspace");

    let f = forward(p);
    let plan = Plan::new(handle, &f.graph, "a forward", WORKSPACE).map_err(|error| error.to_string())?;
    let (o, lse) = (poisoned(stream, d_o.exact.len()), floats(p.q_heads * p.q_len));
    let room = workspace(plan.workspace());
    let mut bindings = vec![
        (f.q, Binding::Memory(q.address(stream))),
        (f.k, Binding::Memory(k.address(stream))),
        (f.v, Binding::Memory(v.address(stream))),
        (f.scale, Binding::Value(Scalar::F32(scale))),
        (f.o, at(&o)),
        (f.lse, at_f32(&lse)),
    ];
    bindings.extend(f.mask.bindings(p.bound));
    // SAFETY: all memory is as large as the problem says and outlives the work, which is waited for.
    unsafe { plan.execute(handle, &bindings, room.device_ptr(stream).0) }
        .map_err(|error| error.to_string())?;
    stream.synchronize().expect("a forward");

    let b = backward(p);
    let plan = Plan::new(handle, &b.graph, "a backward", WORKSPACE).map_err(|error| error.to_string())?;
    let [dq, dk, dv] = [&q, &k, &v].map(|like| poisoned(stream, like.exact.len()));
    let (row_sums, dq_sum) = (floats(p.q_heads * p.q_len), floats(q.exact.len() as i64));
    let room = workspace(plan.workspace());
    let mut bindings = vec![
        (b.q, Binding::Memory(q.address(stream))),
        (b.k, Binding::Memory(k.address(stream))),
        (b.v, Binding::Memory(v.address(stream))),
        (b.o, at(&o)),
        (b.d_o, Binding::Memory(d_o.address(stream))),
        (b.lse, at_f32(&lse)),
        (b.scale, Binding::Value(Scalar::F32(scale))),
        (b.one, Binding::Value(Scalar::F32(1.0))),
        (b.row_sums, at_f32(&row_sums)),
        (b.dq, at(&dq)),
        (b.dk, at(&dk)),
        (b.dv, at(&dv)),
    ];
    bindings.extend(b.dq_sum.map(|id| (id, at_f32(&dq_sum))));
    bindings.extend(b.mask.bindings(p.bound));
    // SAFETY: as above.
    unsafe { plan.execute(handle, &bindings, room.device_ptr(stream).0) }
        .map_err(|error| error.to_string())?;
    stream.synchronize().expect("a backward");

    let lse: Vec<f64> = stream.clone_dtoh(&lse).expect("results").into_iter().map(f64::from).collect();
    let of = |memory| numbers(stream, p.element, memory);
    Ok(Errors {
        o: relative(&of(&o), &expected.o),
        lse: relative(&lse, &expected.lse),
        dq: relative(&of(&dq), &expected.dq),
        dk: relative(&of(&dk), &expected.dk),
        dv: relative(&of(&dv), &expected.dv),
    })
}

#[test]
fn whole_calls_are_right_for_every_mask_type_and_ratio_of_heads() {
    let Some(stream) = stream("whole_calls_are_right_for_every_mask_type_and_ratio_of_heads") else { return };
    let mut handle = Handle::new(&stream).expect("cuDNN");
    println!("cuDNN {}", handle.version());
    let bound = |left, right| Bound { left, right };
    let mut failures = Vec::new();
    let cases = [
        ("full", 128, 192, [8, 2], 64, Bound::FULL),
        ("full, odd", 137, 203, [4, 4], 128, Bound::FULL),
        ("causal", 256, 256, [8, 2], 128, bound(None, Some(0))),
        ("causal, odd", 301, 301, [6, 3], 64, bound(None, Some(0))),
        ("bottom-right", 100, 333, [8, 1], 128, bound(None, Some(233))),
        ("window", 256, 256, [4, 2], 64, bound(Some(37), Some(0))),
        ("window ahead", 200, 230, [4, 4], 128, bound(Some(50), Some(20))),
        ("left only", 200, 256, [4, 2], 64, bound(Some(90), None)),
    ];
    for element in [Element::Bf16, Element::F16] {
        for (name, q_len, kv_len, heads, dim, bound) in cases {
            let problem = Problem { element, ..problem(q_len, kv_len, heads, dim, bound) };
            problem.check().expect("a problem");
            match run(&stream, &mut handle, &problem, 7) {
                Err(error) => failures.push(format!("{name} {element:?}: {error}")),
                Ok(Errors { o, lse, dq, dk, dv }) => {
                    let most = if element == Element::Bf16 { 8e-3 } else { 1e-3 };
                    let line = format!(
                        "{name} {element:?}: o {o:.1e} lse {lse:.1e} dq {dq:.1e} dk {dk:.1e} dv {dv:.1e}"
                    );
                    println!("{line}");
                    let bounds = [(o, most), (dq, most), (dk, most), (dv, most), (lse, 1e-4)];
                    // NaN is not within any bound.
                    if !bounds.iter().all(|(error, most)| error <= most) {
                        failures.push(line);
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
