//! How a kernel runs: on which threads, and how it tells that it advances.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How a kernel runs.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Threads to run on; `None` runs on the calling thread. Results do not depend on it.
    pub pool: Option<&'a rayon::ThreadPool>,
    /// Called whenever some rows have been done against some keys, some hundred of each, from the thread that did it, so
    /// that a watcher can tell a long kernel from a dead one.
    pub tick: &'a (dyn Fn() + Sync),
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Context<'_> {
    /// Number of threads that a kernel may use.
    pub fn threads(&self) -> usize {
        self.pool.map_or(1, |pool| pool.current_num_threads().max(1))
    }

    /// Runs `work(scratch, item)` for each item. Items are *claimed* in ascending order, each by one
    /// thread, which makes its scratch once: an item may wait for smaller ones, because those are done or
    /// on a running thread.
    pub(crate) fn for_each<S>(
        &self,
        items: usize,
        scratch: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, usize) + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut own = None;
            loop {
                // Relaxed: the counter hands out numbers and publishes nothing; what items write is
                // published by the scope's join, or by the turns that they wait for.
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    return;
                }
                work(own.get_or_insert_with(&scratch), item);
            }
        };
        let threads = self.threads().min(items);
        match self.pool {
            Some(pool) if threads > 1 => pool.scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|_| worker());
                }
            }),
            _ => worker(),
        }
    }
}
