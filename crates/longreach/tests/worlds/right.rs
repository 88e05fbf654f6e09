//! Worlds that must come to the right end in every schedule.

use crate::explore::{fails, right};
use crate::model::{LAST_WORDS, Model, Order};
use longreach::{Layout, Mask};

const SCHEDULES: usize = 1000;

fn computes(model: Model) {
    let shown = format!("{model:?}");
    assert_eq!(right(SCHEDULES, model, &[]), Ok(()), "{shown}");
}

#[test]
fn three_pes_compute_what_one_does() {
    for return_slots in [1, 2] {
        computes(Model::new(3, return_slots, Order::Once));
    }
}

#[test]
fn four_pes_compute_what_one_does() {
    for return_slots in [1, 2] {
        computes(Model { mask: Mask::causal(), ..Model::new(4, return_slots, Order::Once) });
        computes(Model { layout: Layout::Contiguous, stages: 2, ..Model::new(4, return_slots, Order::Once) });
    }
}

#[test]
fn calls_follow_each_other_without_the_host() {
    computes(Model::new(3, 1, Order::BackToBack));
    computes(Model { stages: 1, ..Model::new(4, 2, Order::BackToBack) });
}

#[test]
fn backwards_come_in_reverse_order() {
    computes(Model::new(3, 2, Order::Reversed));
    computes(Model { mask: Mask::causal(), ..Model::new(4, 1, Order::Reversed) });
}

#[test]
fn one_pe_is_slow() {
    computes(Model { slow: vec![1], ..Model::new(3, 1, Order::BackToBack) });
    computes(Model { slow: vec![3], ..Model::new(4, 2, Order::Reversed) });
}

#[test]
fn one_pe_is_early() {
    computes(Model { slow: vec![1, 2], ..Model::new(3, 1, Order::Reversed) });
    computes(Model { slow: vec![0, 1, 3], ..Model::new(4, 1, Order::Once) });
}

#[test]
fn a_pe_that_dies_ends_all_with_its_words() {
    for (pes, order, dies) in [
        (3, Order::Once, (1, 0)),
        (3, Order::Once, (0, 1)),
        (3, Order::BackToBack, (2, 2)),
        (4, Order::Reversed, (3, 3)),
    ] {
        let model = Model { dies: Some(dies), ..Model::new(pes, 1, order) };
        let shown = format!("{model:?}");
        assert_eq!(fails(SCHEDULES, model, LAST_WORDS, &[]), Ok(()), "{shown}");
    }
}

#[test]
fn another_scale_on_one_pe_is_an_error_on_all() {
    for (pes, differs) in [(3, 2), (4, 0)] {
        let model = Model { differs: Some(differs), ..Model::new(pes, 2, Order::Once) };
        assert_eq!(fails(SCHEDULES, model, "`scale`", &[]), Ok(()), "{pes} PEs");
    }
}
