//! Worlds by name, in one process.

use crate::error::Error;
use crate::world::{Shared, World};
use longreach_device::sync::process::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// A named world: as long as somebody has a handle of it, with the transport that it was made with.
#[derive(Default)]
struct Named {
    world: Weak<Shared>,
    transport: String,
}

static NAMED: Mutex<Option<HashMap<String, Arc<Mutex<Named>>>>> = Mutex::new(None);

/// The world called `name`, which `make` makes where there is none. Another number of PEs or another transport than
/// it has is an error. A name is free again when the last handle of its world is gone.
pub(crate) fn named(
    name: &str,
    pes: usize,
    transport: &str,
    make: impl FnOnce() -> Result<World, Error>,
) -> Result<World, Error> {
    let place = {
        let mut worlds = NAMED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        worlds.get_or_insert_default().entry(name.to_owned()).or_default().clone()
    };
    // Making a world may wait for other processes: only those who want the same one wait behind it.
    let mut place = place.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(shared) = place.world.upgrade() {
        if shared.pes != pes || place.transport != transport {
            let text = |pes: usize, transport: &str| format!("{pes} PEs as {transport}");
            return Err(Error::WorldExists {
                name: name.to_owned(),
                have: text(shared.pes, &place.transport),
                asked: text(pes, transport),
            });
        }
        return Ok(World { shared });
    }
    let world = make()?;
    *place = Named { world: Arc::downgrade(&world.shared), transport: transport.to_owned() };
    Ok(world)
}
