//! A sequence over three PEs: shard, attend, differentiate, gather.

use longreach::{Attention, ContextParallel, DType, Data, Dims, Error, Mask, Options, View, World};
use longreach::{shard, unshard};

fn main() -> Result<(), Error> {
    // 1000 tokens over 3 PEs, 4 query heads over 2 key heads, head dimension 32.
    let (pes, tokens) = (3, 1000);
    let wave = |len: usize, rate: f32| (0..len).map(|i| (i as f32 * rate).sin()).collect::<Vec<_>>();
    let (q, k, v) = (wave(tokens * 128, 0.7), wave(tokens * 64, 0.3), wave(tokens * 64, 0.9));
    let view = |x, heads| View::contiguous(Data::F32(x), [1, tokens, heads, 32]);
    let (q, k, v) = (view(&q, 4)?, view(&k, 2)?, view(&v, 2)?);

    let attention = Attention::new(Mask::causal(), tokens);
    let options = Options::default().reserving(pes, &attention, &Dims::of(&q, &k, &v)?)?;
    let parts = World::threads(pes)?.run(|pe| {
        // Once: streams and symmetric memory. Collective.
        let cp = ContextParallel::new(&pe.team()?, &options)?;
        let (queries, keys) = cp.shards(1, &attention)?;
        // Each PE holds its own rows only ...
        let [q, k, v] =
            [(&q, &queries), (&k, &keys), (&v, &keys)].map(|(x, held)| shard(x, held, pe.number()));
        // ... and fetches the others' while it computes.
        let forward = cp.forward(&q?.view(), &k?.view(), &v?.view(), &attention)?;
        let out = forward.out.wait()?.clone();
        let gradients = forward.saved.backward(&out.view())?; // of the loss |out|^2 / 2
        Ok::<_, Error>((out, gradients.dk.wait()?.clone()))
    })?;
    let (out, dk): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    let (queries, keys) = longreach::shards(pes, 1, &attention, &options)?;
    let (out, dk) = (unshard(&out, &queries)?, unshard(&dk, &keys)?);
    assert_eq!((out.shape(), dk.shape()), ([1, 1000, 4, 32], [1, 1000, 2, 32]));
    assert_eq!(out.dtype(), DType::F32);
    Ok(())
}
