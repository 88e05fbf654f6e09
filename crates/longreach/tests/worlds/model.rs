//! A world in small: its program and its results.

use longreach::{
    Attention, ContextParallel, Dims, Elements, Error, Forward, Layout, Mask, Options, Pe, Stages, Tensor,
    World,
};
use longreach_device::sync::{Mutex, lock, thread};

/// Inputs of a call: q, k, v, dout.
type Input = [Tensor; 4];

/// Results of a call in global order: out, lse, dq, dk, dv.
pub type Results = [Vec<f32>; 5];

/// The order in which calls are made. Nothing waits on the host before all are queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A forward and its backward.
    Once,
    /// Two forwards, each followed by its backward.
    BackToBack,
    /// Two forwards, then the backward of the second, then that of the first.
    Reversed,
}

impl Order {
    fn calls(self) -> usize {
        if self == Order::Once { 1 } else { 2 }
    }
}

/// A world, and what its PEs do.
#[derive(Clone, Debug)]
pub struct Model {
    /// Number of PEs.
    pub pes: usize,
    /// Fetched stages.
    pub stages: usize,
    /// Gradient return slots.
    pub return_slots: usize,
    /// Who attends to whom.
    pub mask: Mask,
    /// Who holds what.
    pub layout: Layout,
    /// The calls.
    pub order: Order,
    /// PEs that let others go first before each of their calls.
    pub slow: Vec<usize>,
    /// A PE, and the number of calls after which its program ends with an error.
    pub dies: Option<(usize, usize)>,
    /// A PE that scales its scores otherwise.
    pub differs: Option<usize>,
}

/// The words of a PE that dies.
pub const LAST_WORDS: &str = "out of luck";

impl Model {
    /// A world of `pes` PEs that attend to everything, one owner a stage.
    pub fn new(pes: usize, return_slots: usize, order: Order) -> Self {
        Self {
            pes,
            stages: pes.max(2) - 1,
            return_slots,
            mask: Mask::full(),
            layout: Layout::Zigzag,
            order,
            slow: Vec::new(),
            dies: None,
            differs: None,
        }
    }

    /// The same calls on one PE, where nothing can come in another order.
    pub fn alone(&self) -> Self {
        Self { pes: 1, slow: Vec::new(), dies: None, differs: None, ..self.clone() }
    }

    /// Runs the world once, in the schedule that surrounds the call. An error lists what each PE ended with.
    pub fn run(&self) -> Result<Vec<Results>, Vec<String>> {
        let inputs: Vec<Input> = (0..self.order.calls()).map(input).collect();
        let (attention, options) = (self.attention(), self.options(&inputs[0]));
        let errors = Mutex::new(vec![String::from("no error"); self.pes]);
        let world = World::threads(self.pes).expect("PEs");
        let parts = world.run(|pe| {
            self.program(pe, &inputs, &attention, &options).inspect_err(|error| {
                lock(&errors)[pe.number()] = error.to_string();
            })
        });
        match parts {
            Ok(parts) => {
                Ok((0..inputs.len()).map(|call| self.assemble(call, &parts, &attention, &options)).collect())
            }
            Err(_) => Err(lock(&errors).clone()),
        }
    }

    fn attention(&self) -> Attention {
        Attention::new(self.mask.clone(), TOKENS)
    }

    fn options(&self, [q, k, v, _]: &Input) -> Options {
        let dims = Dims::of(&q.view(), &k.view(), &v.view()).expect("fitting inputs");
        let options = Options {
            layout: self.layout.clone(),
            stages: Stages::Exactly(self.stages),
            return_slots: self.return_slots,
            ..Options::default()
        };
        options.reserving(self.pes, &self.attention(), &dims).expect("a plan")
    }

    fn program(
        &self,
        pe: &Pe,
        inputs: &[Input],
        attention: &Attention,
        options: &Options,
    ) -> Result<Vec<Part>, Error> {
        let me = pe.number();
        let attention = match self.differs {
            Some(pe) if pe == me => attention.clone().scale(0.25),
            _ => attention.clone(),
        };
        let cp = ContextParallel::new(&pe.team()?, options)?;
        let (shards, _) = cp.shards(1, &attention)?;
        let shard = |tensor: &Tensor| longreach::shard(&tensor.view(), &shards, me);
        let mut made = 0;
        let mut next_call = || {
            if self.dies == Some((me, made)) {
                return Err(Error::Input(LAST_WORDS.to_owned()));
            }
            made += 1;
            if self.slow.contains(&me) {
                (0..100).for_each(|_| thread::yield_now());
            }
            Ok(())
        };
        let forward = |[q, k, v, _]: &Input| {
            cp.forward(&shard(q)?.view(), &shard(k)?.view(), &shard(v)?.view(), &attention)
        };
        let backward = |forward: Forward, [.., dout]: &Input| {
            let Forward { out, lse, saved } = forward;
            Ok::<_, Error>((out, lse, saved.backward(&shard(dout)?.view())?))
        };
        let mut queued = Vec::new();
        match self.order {
            Order::Once | Order::BackToBack => {
                for input in inputs {
                    next_call()?;
                    let forward = forward(input)?;
                    next_call()?;
                    queued.push(backward(forward, input)?);
                }
            }
            Order::Reversed => {
                let mut forwards = Vec::new();
                for input in inputs {
                    next_call()?;
                    forwards.push((forward(input)?, input));
                }
                while let Some((forward, input)) = forwards.pop() {
                    next_call()?;
                    queued.insert(0, backward(forward, input)?);
                }
            }
        }
        queued
            .iter()
            .map(|(out, lse, grads)| {
                let outputs = [out, lse, &grads.dq, &grads.dk, &grads.dv];
                let tensors = outputs.iter().map(|output| output.wait().cloned());
                tensors.collect()
            })
            .collect()
    }

    fn assemble(
        &self,
        call: usize,
        parts: &[Vec<Part>],
        attention: &Attention,
        options: &Options,
    ) -> Results {
        let (shards, _) = longreach::shards(self.pes, 1, attention, options).expect("shards");
        std::array::from_fn(|tensor| {
            let parts: Vec<Tensor> =
                parts.iter().map(|calls| by_rows(tensor, &calls[call][tensor])).collect();
            let whole = longreach::unshard(&parts, &shards).expect("parts of the shards");
            whole.as_f32().expect("results are float32").to_vec()
        })
    }
}

/// What a PE has of a call's results.
type Part = Vec<Tensor>;

const TOKENS: usize = 9;
const HEADS: usize = 2;
const DIM: usize = 2;

/// Lse is `[1, heads, rows, 1]`: here as rows of heads, like the others.
fn by_rows(tensor: usize, part: &Tensor) -> Tensor {
    if tensor != 1 {
        return part.clone();
    }
    let [batch, heads, rows, _] = part.shape();
    let data = part.as_f32().expect("lse is float32");
    let turned = (0..rows * heads).map(|i| data[i % heads * rows + i / heads]).collect();
    Tensor::new(Elements::F32(turned), [batch, rows, heads, 1]).expect("the same elements")
}

/// Inputs of call number `call`, all different.
fn input(call: usize) -> Input {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(call as u64 + 1);
    std::array::from_fn(|_| {
        let values = (0..TOKENS * HEADS * DIM).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        });
        Tensor::new(Elements::F32(values.collect()), [1, TOKENS, HEADS, DIM]).expect("elements of the shape")
    })
}

/// Where `results` differ from `expected` by more than rounding.
pub fn difference(results: &[Results], expected: &[Results]) -> Option<String> {
    let names = ["out", "lse", "dq", "dk", "dv"];
    for (call, (got, right)) in results.iter().zip(expected).enumerate() {
        for (name, (got, right)) in names.iter().zip(got.iter().zip(right)) {
            let far = got.iter().zip(right).position(|(a, b)| (a - b).abs().total_cmp(&1e-5).is_gt());
            if let Some(at) = far {
                return Some(format!("{name} of call {call} differs at {at}: {} for {}", got[at], right[at]));
            }
        }
    }
    None
}
