//! A deterministic fabric on virtual time, for tests of all code that runs on a fabric.
//!
//! A [`World`] is the fabric; [`World::provider`] opens a device on it. All of them live in one thread, and
//! nothing happens until the test moves time ([`World::advance`]). Every delay, and every fault of the
//! [`FaultPlan`], is drawn from the world's seed, so any failure is a seed that replays it; [`sweep()`] runs a
//! test for many.
//!
//! It takes every liberty that the fabric trait leaves: Writes land in pieces and in any order among
//! themselves, though before the Send behind them; Reads are done piece by piece; a message may arrive before
//! the sender's own completion of the message it answers; work may leave before its doorbell; completions of
//! different queue pairs are in no order. And it counts what a correct program never does: [`Violations`]. A run
//! that polls each of its ends at each instant never sees two messages at once: [`Attendance`] lets some be late.
//!
//! ```
//! use stag_fabric::sim::{FaultPlan, World};
//! use stag_fabric::{Event, Provider, QueuePairCapacity};
//!
//! let world = World::new(42, FaultPlan::default());
//! let (mut client, mut server) = (world.provider("client"), world.provider("server"));
//! server.listen("here")?;
//! let capacity = QueuePairCapacity {
//!     receives: 4,
//!     sends: 4,
//!     exposures: 4,
//!     send_len_max: 1024,
//!     receive_len_max: 1024,
//!     receive_targets: 0,
//! };
//! client.connect("here", b"hello", capacity)?;
//!
//! while world.advance() {
//!     if let Some(Event::ConnectRequest { request, private_data, .. }) = server.poll_event() {
//!         assert_eq!(private_data, b"hello");
//!         let queue_pair = server.prepare(request, capacity)?;
//!         server.accept(queue_pair, b"welcome")?;
//!     }
//! }
//! assert!(matches!(client.poll_event(), Some(Event::Established { .. })));
//! # Ok::<(), stag_fabric::FabricError>(())
//! ```

mod attendance;
mod built;
mod device;
mod exposure;
mod fault;
mod provider;
mod queue_pair;
mod random;
mod scattered;
mod setup;
mod sweep;
mod transfer;
mod world;

pub use attendance::Attendance;
pub use fault::FaultPlan;
pub use provider::Sim;
pub use random::{Odds, Random};
pub use setup::SimHandover;
pub use sweep::{SEED_VARIABLE, SEEDS_VARIABLE, sweep};
pub use world::{LIMITS, Run, Violations, World};

use crate::Limits;
use device::Device;

impl World {
    /// Opens a provider with the usual [`LIMITS`]. `name` is for humans.
    #[must_use]
    pub fn provider(&self, name: &str) -> Sim {
        self.provider_with(name, LIMITS)
    }

    /// Opens a provider with limits of its own.
    #[must_use]
    pub fn provider_with(&self, name: &str, limits: Limits) -> Sim {
        let mut state = self.0.borrow_mut();
        state.devices.push(Some(Device::new(name, limits)));
        Sim {
            world: self.clone(),
            device: state.devices.len() - 1,
            space: Box::new([0; crate::GATHERED_LEN_MAX]),
        }
    }
}
