//! The exploration of a model's schedules.

use crate::model::{Model, Order, Results, difference};
use longreach_device::sync::omitted;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};
use std::sync::{Arc, Mutex};

/// A value that schedules of one exploration share, outside of what is scheduled.
type Shared<T> = Arc<Mutex<T>>;

/// Kernels keep small arrays on the stack, more than shuttle's threads have by default.
const STACK: usize = 1 << 18;

/// Runs `check` under `schedules` schedules: random ones, and those of few preemptions, in which a thread can be
/// left behind for long. The first failure is the result.
pub fn explore(
    schedules: usize,
    check: impl Fn() -> Result<(), String> + Clone + Send + Sync + 'static,
) -> Result<(), String> {
    let half = schedules.div_ceil(2);
    under(RandomScheduler::new_from_seed(1, half), check.clone())?;
    under(PctScheduler::new_from_seed(2, 3, half), check)
}

fn under(
    scheduler: impl Scheduler + 'static,
    check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
) -> Result<(), String> {
    let mut config = Config::new();
    config.stack_size = STACK;
    let found = Shared::<Option<String>>::default();
    let failure = found.clone();
    Runner::new(scheduler, config).run(move || {
        // A failure is kept as a value: a panic would unwind threads that hold scheduled locks.
        if failure.lock().expect("no panic").is_none() {
            *failure.lock().expect("no panic") = check().err();
        }
    });
    let found = found.lock().expect("no panic").take();
    found.map_or(Ok(()), Err)
}

/// The results of one PE, which nothing can reorder.
fn expected(model: &Model) -> Vec<Results> {
    let one = model.alone();
    let results = Shared::<Vec<Results>>::default();
    let given = results.clone();
    under(RandomScheduler::new_from_seed(0, 1), move || {
        *given.lock().expect("no panic") = one.run().map_err(|errors| errors.join("; "))?;
        Ok(())
    })
    .expect("one PE computes");
    let results = results.lock().expect("no panic").clone();
    assert_eq!(results.len(), if model.order == Order::Once { 1 } else { 2 });
    results
}

/// Explores a model that must give the results of one PE, and the same bits in each schedule; `without` names waits
/// to leave out.
pub fn right(schedules: usize, model: Model, without: &'static [&'static str]) -> Result<(), String> {
    let expected = expected(&model);
    let first = Shared::<Option<Vec<Results>>>::default();
    explore(schedules, move || {
        omitted::set(without);
        let results = model.run();
        omitted::set(&[]);
        let results = results.map_err(|errors| errors.join("; "))?;
        if let Some(difference) = difference(&results, &expected) {
            return Err(difference);
        }
        let mut first = first.lock().expect("no panic");
        if *first.get_or_insert_with(|| results.clone()) != results {
            return Err("the bits differ from schedule to schedule".to_owned());
        }
        Ok(())
    })
}

/// Explores a model that must fail on every PE, with an error that says `words`.
pub fn fails(
    schedules: usize,
    model: Model,
    words: &'static str,
    without: &'static [&'static str],
) -> Result<(), String> {
    explore(schedules, move || {
        omitted::set(without);
        let results = model.run();
        omitted::set(&[]);
        let Err(errors) = results else {
            return Err("no PE failed".to_owned());
        };
        match errors.iter().position(|error| !error.contains(words)) {
            None => Ok(()),
            Some(pe) => Err(format!("PE {pe} ended with: {}", errors[pe])),
        }
    })
}
