//! Fabrics as the builders open them.

use stag_fabric::{FabricError, Provider};
#[cfg(feature = "iwarp")]
use stag_fabric::{Iwarp, IwarpConfig};
#[cfg(feature = "shm")]
use stag_fabric::{Shm, ShmConfig, shm::Admit};
#[cfg(feature = "verbs")]
use stag_fabric::{Verbs, VerbsConfig};
use stag_rpc::EngineConfig;
use stag_runtime::PollMode;

/// What a user of a builder may say about fabrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct FabricOptions {
    /// Whether its reactors sleep.
    pub(crate) poll: PollMode,
    /// Who is admitted over shared memory, besides processes of the same user.
    #[cfg(feature = "shm")]
    pub(crate) admit: Vec<Admit>,
}

impl FabricOptions {
    fn may_sleep(&self) -> bool {
        self.poll != PollMode::Busy
    }
}

/// A fabric that a builder can open.
pub(crate) trait Open: Provider + Sized {
    /// Opens it for an engine of this configuration.
    fn open_for(options: &FabricOptions, config: &EngineConfig) -> Result<Self, FabricError>;
}

#[cfg(feature = "shm")]
impl Open for Shm {
    fn open_for(options: &FabricOptions, config: &EngineConfig) -> Result<Shm, FabricError> {
        Shm::open(ShmConfig {
            may_sleep: options.may_sleep(),
            queue_pairs: config.connections_max,
            completions: config.completions_max(),
            admit: options.admit.clone(),
            ..ShmConfig::default()
        })
    }
}

#[cfg(feature = "iwarp")]
impl Open for Iwarp {
    fn open_for(options: &FabricOptions, config: &EngineConfig) -> Result<Iwarp, FabricError> {
        Iwarp::open(IwarpConfig {
            may_sleep: options.may_sleep(),
            queue_pairs: config.connections_max,
            completions: config.completions_max(),
            ..IwarpConfig::default()
        })
    }
}

#[cfg(feature = "verbs")]
impl Open for Verbs {
    fn open_for(options: &FabricOptions, config: &EngineConfig) -> Result<Verbs, FabricError> {
        let each = Verbs::completions_needed(&config.capacity());
        let completions = each.saturating_mul(config.connections_max.into());
        Verbs::open(VerbsConfig {
            may_sleep: options.may_sleep(),
            queue_pairs: config.connections_max,
            completions: u32::try_from(completions).unwrap_or(u32::MAX),
            ..VerbsConfig::default()
        })
    }
}
