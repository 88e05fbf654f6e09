//! The worlds on threads, where `scripts/tsan` looks for races.

use crate::model::{LAST_WORDS, Model, Order, difference};
use longreach::{Layout, Mask};

fn models() -> impl Iterator<Item = Model> {
    let orders = [Order::Once, Order::BackToBack, Order::Reversed];
    let sizes = [(3, 1), (3, 2), (4, 1), (4, 2)];
    orders.into_iter().flat_map(move |order| {
        sizes.into_iter().map(move |(pes, return_slots)| Model::new(pes, return_slots, order))
    })
}

fn computes(model: &Model) {
    let expected = model.alone().run().expect("one PE computes");
    let mut first = None;
    for _ in 0..5 {
        let results = model.run().expect("the world computes");
        assert_eq!(difference(&results, &expected), None, "{model:?}");
        assert_eq!(*first.get_or_insert_with(|| results.clone()), results, "bits of {model:?}");
    }
}

#[test]
fn threads_compute_what_one_pe_does() {
    models().for_each(|model| computes(&model));
}

#[test]
fn threads_compute_with_slow_pes_and_uneven_masks() {
    for model in models() {
        computes(&Model {
            mask: Mask::causal(),
            layout: Layout::Contiguous,
            slow: vec![model.pes - 1],
            ..model
        });
    }
}

#[test]
fn a_failure_ends_all() {
    for model in models() {
        let dies = Model { dies: Some((1, 1)), ..model.clone() };
        let errors = dies.run().expect_err("PE 1 dies");
        assert!(errors.iter().all(|error| error.contains(LAST_WORDS)), "{errors:?}");

        let differs = Model { differs: Some(0), ..model };
        let errors = differs.run().expect_err("PE 0 differs");
        assert!(errors.iter().all(|error| error.contains("`scale`")), "{errors:?}");
    }
}
