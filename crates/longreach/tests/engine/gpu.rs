//! The engine on a GPU, with PEs as threads that share it; skipped, after saying so, where there is none.

use crate::harness::{Oracle, Problem, Results, Setting, Sizes, assemble, call, lengths, run, shard};
use longreach::{
    ContextParallel, DType, Device, Documents, Error, Gpu, GpuTensor, HeapSize, Layout, Mask, Options,
    StageHook, World,
};
use std::sync::Arc;
use std::time::Duration;

const CUDA: Device = Device::Cuda(None);

fn missing(test: &str) -> bool {
    match Gpu::count() {
        Ok(1..) => false,
        Ok(0) => {
            eprintln!("SKIPPED {test}: this machine has no GPU that this process may use");
            true
        }
        Err(error) => {
            eprintln!("SKIPPED {test}: {error}");
            true
        }
    }
}

fn sizes(batch: usize, len: usize, heads: [usize; 2], dims: [usize; 2], dtype: DType) -> Sizes {
    let [q_heads, kv_heads] = heads;
    let [head_dim, value_dim] = dims;
    Sizes { batch, q_len: len, kv_len: len, q_heads, kv_heads, head_dim, value_dim, dtype }
}

/// Masks, head groups, head dimensions, lengths that divide nothing, documents.
fn configurations() -> Vec<(&'static str, Sizes, Mask)> {
    use DType::{Bf16, F16};
    let packed = || Mask::causal().documents(lengths(&[9, 7, 0, 120, 1, 300, 74]));
    vec![
        ("causal", sizes(2, 512, [4, 4], [64, 64], Bf16), Mask::causal()),
        ("full", sizes(2, 512, [4, 4], [64, 64], F16), Mask::full()),
        ("grouped 8", sizes(1, 512, [16, 2], [128, 128], Bf16), Mask::causal()),
        ("one key head", sizes(2, 333, [6, 1], [64, 64], F16), Mask::causal()),
        ("seven a group", sizes(1, 401, [28, 4], [64, 64], Bf16), Mask::causal()),
        ("odd length", sizes(3, 499, [4, 2], [64, 64], Bf16), Mask::causal()),
        ("few tokens", sizes(2, 11, [4, 2], [64, 64], F16), Mask::causal()),
        ("head 96", sizes(1, 509, [4, 2], [96, 96], Bf16), Mask::causal()),
        ("head 192 and 128", sizes(1, 512, [4, 4], [192, 128], Bf16), Mask::causal()),
        ("head 256", sizes(1, 384, [2, 2], [256, 256], F16), Mask::causal()),
        ("window", sizes(2, 511, [4, 2], [64, 64], Bf16), Mask::causal().window(Some(70), None)),
        ("both sides", sizes(1, 512, [4, 4], [64, 64], F16), Mask::full().window(Some(33), Some(90))),
        ("documents", sizes(2, 511, [4, 2], [64, 64], Bf16), packed()),
        ("documents, window", sizes(1, 511, [4, 2], [64, 64], F16), packed().window(Some(40), None)),
        (
            "documents, gaps",
            sizes(1, 511, [4, 2], [64, 64], Bf16),
            Mask::full().documents(vec![Documents::ranges([0..9, 16..23, 31..32, 40..500])]),
        ),
        ("sink and window", sizes(1, 512, [4, 2], [128, 128], Bf16), Mask::sink_window(4, 100)),
        ("prefix", sizes(1, 512, [4, 2], [64, 64], Bf16), Mask::prefix_lm(130)),
    ]
}

#[test]
fn every_configuration_is_as_exact_as_one_gpu() {
    if missing("every_configuration_is_as_exact_as_one_gpu") {
        return;
    }
    let mut failures = Vec::new();
    for (i, (name, sizes, mask)) in configurations().into_iter().enumerate() {
        let problem = Problem::random(1000 + 10 * i as u64, sizes, mask);
        let oracle = Oracle::on(CUDA, &problem);
        let layouts = [Layout::Zigzag, Layout::Contiguous, Layout::Striped { block: 16 }];
        for (pes, stages) in [(3, 2), (8, 1), (8, 3)] {
            let layout = layouts[(i + stages) % 3].clone();
            let setting = Setting { device: CUDA, ..Setting::new(pes, layout, stages) };
            let results =
                run(&problem, &setting).unwrap_or_else(|error| panic!("{name} {setting:?}: {error}"));
            let broken = oracle.failures(&results);
            if !broken.is_empty() {
                failures.push(format!("{name} on {setting:?}: {broken:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} of them: {failures:#?}", failures.len());
}

/// A forward and backward at P = 4 with deterministic kernels, after naps ahead of its stages.
fn stalled(problem: &Problem, naps: u64) -> Results {
    let setting = Setting { device: CUDA, deterministic: true, ..Setting::new(4, Layout::Zigzag, 2) };
    let options = setting.options_for(&[problem]).unwrap();
    let parts = World::threads(4).unwrap().run(|pe| {
        let seed = naps * 7 + pe.number() as u64;
        let hook = move |_, stage: usize| {
            let nap = (seed * 2654435761 + stage as u64 * 40503) % 3000;
            std::thread::sleep(Duration::from_micros(if naps == 0 { 0 } else { nap }));
            Ok(())
        };
        let options = Options { before_stage: Some(StageHook(Arc::new(hook))), ..options.clone() };
        call(&ContextParallel::new(&pe.team()?, &options)?, problem)
    });
    assemble(problem, &setting, &parts.unwrap())
}

/// 25 runs; as many as LONGREACH_GPU_RUNS says.
#[test]
fn deterministic_runs_are_bit_equal_whatever_stalls() {
    if missing("deterministic_runs_are_bit_equal_whatever_stalls") {
        return;
    }
    let runs = std::env::var("LONGREACH_GPU_RUNS").map_or(25, |runs| runs.parse().expect("a number of runs"));
    let problem = Problem::random(77, sizes(1, 515, [8, 2], [64, 64], DType::Bf16), Mask::causal());
    let first = stalled(&problem, 0);
    assert!(Oracle::on(CUDA, &problem).failures(&first).is_empty());
    for naps in 1..runs {
        assert!(stalled(&problem, naps) == first, "run {naps} has other bits");
    }
    println!("{runs} runs with the same bits");
}

#[test]
fn inputs_on_the_gpu_give_what_the_same_inputs_from_the_host_give() {
    if missing("inputs_on_the_gpu_give_what_the_same_inputs_from_the_host_give") {
        return;
    }
    let problem = Problem::random(5, sizes(2, 257, [4, 2], [64, 64], DType::F16), Mask::causal());
    let setting = Setting { device: CUDA, deterministic: true, ..Setting::new(3, Layout::Zigzag, 2) };
    let options = setting.options_for(&[&problem]).unwrap();
    let host = run(&problem, &setting).unwrap();
    let parts = World::threads(3).unwrap().run(|pe| {
        let cp = ContextParallel::new(&pe.team()?, &options)?;
        let gpu = Gpu::open(pe.number() % Gpu::count()?)?;
        let (q, kv) = cp.shards(problem.batch(), &problem.attention)?;
        let own = |tensor, shards| GpuTensor::upload(&gpu, &shard(tensor, shards, pe.number()).view());
        let (q_own, k, v) = (own(&problem.q, &q)?, own(&problem.k, &kv)?, own(&problem.v, &kv)?);
        let forward = cp.forward(&q_own, &k, &v, &problem.attention)?;
        let (out, lse) = (forward.out.wait()?.clone(), forward.lse.wait()?.clone());
        let grads = forward.saved.backward(&own(&problem.dout, &q)?)?;
        let grads = [grads.dq.wait()?.clone(), grads.dk.wait()?.clone(), grads.dv.wait()?.clone()];
        Ok::<_, Error>(crate::harness::Part { out, lse, grads })
    });
    assert!(assemble(&problem, &setting, &parts.unwrap()) == host);
}

#[test]
fn what_a_gpu_does_not_take_is_refused_by_name_before_anything_moves() {
    if missing("what_a_gpu_does_not_take_is_refused_by_name_before_anything_moves") {
        return;
    }
    for (dims, dtype, words) in [([64, 64], DType::F32, "f32"), ([20, 20], DType::Bf16, "20")] {
        let problem = Problem::random(5, sizes(1, 64, [2, 2], dims, dtype), Mask::causal());
        let error = run(&problem, &Setting { device: CUDA, ..Setting::new(3, Layout::Zigzag, 1) });
        let text = error.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_heap_that_a_gpu_cannot_hold_is_an_error_that_says_how_much_was_asked_for() {
    if missing("a_heap_that_a_gpu_cannot_hold_is_an_error_that_says_how_much_was_asked_for") {
        return;
    }
    let heap = HeapSize { publish: 1 << 42, contribution: 0 };
    let options = Options { device: CUDA, heap, ..Options::default() };
    let error = World::threads(2)
        .unwrap()
        .run(|pe| ContextParallel::new(&pe.team()?, &options).map(drop))
        .unwrap_err();
    assert!(error.to_string().contains(&(2u64 << 42).to_string()), "{error}");
}

/// Runs where there is no driver.
#[test]
fn a_machine_without_a_driver_says_so_on_every_pe() {
    if Gpu::count().is_ok() {
        eprintln!("SKIPPED a_machine_without_a_driver_says_so_on_every_pe: there is one");
        return;
    }
    let options = Options { device: CUDA, ..Options::default() };
    let error = World::threads(3)
        .unwrap()
        .run(|pe| ContextParallel::new(&pe.team()?, &options).map(drop))
        .unwrap_err()
        .to_string();
    assert!(error.contains("libcuda.so.1") && error.contains("use the CPU"), "{error}");
}
