//! What to measure.

use std::time::Duration;

use serde::Serialize;
use stag_fabric::ExposureKind;
use stag_fabric::iwarp::CongestionControl;
use stag_rpc::{PlacementChoice, ProtocolChoice, ReplyMode};

use crate::arrivals::Arrivals;

/// The operation under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MeasuredOperation {
    /// NFS NULL: no arguments, no results.
    Null,
    /// NFS READ; large ones by Write chunk.
    Read,
    /// NFS WRITE, unstable; large ones by Read chunk.
    Write,
    /// NFS GETATTR, of one file.
    Getattr,
    /// NFS SETATTR: a mode that is another than before.
    Setattr,
    /// NFS LOOKUP of a name that is there.
    Lookup,
    /// NFS CREATE, guarded.
    Create,
    /// NFS REMOVE.
    Remove,
    /// NFS RENAME, within a folder.
    Rename,
    /// NFS READDIRPLUS, one Reply after the other to the end of a folder.
    Readdirplus,
    /// A program of our own that returns its arguments, always inline.
    Echo,
    /// A program of our own whose Reply has the wanted size, none of which may go by Write chunk.
    Reply,
    /// Several of them, by chance: [`Scenario::mix`].
    Mix,
}

/// Octets of a Reply of READDIRPLUS, at most.
pub(crate) const LISTING_LEN: u32 = 64 << 10;

/// What a load works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorksOn {
    /// A program, without files.
    Nothing,
    /// A file of each connection.
    File,
    /// A folder of each client core, with files in it.
    Names,
    /// The same, and each Call makes or removes one of them.
    EachNameOnce,
}

/// What is true of a load.
struct Load {
    /// As on a command line.
    name: &'static str,
    works_on: WorksOn,
    /// Whether it moves as many octets as the scenario says.
    has_size: bool,
}

impl MeasuredOperation {
    /// All of them.
    pub const ALL: [MeasuredOperation; 13] = [
        MeasuredOperation::Null,
        MeasuredOperation::Read,
        MeasuredOperation::Write,
        MeasuredOperation::Getattr,
        MeasuredOperation::Setattr,
        MeasuredOperation::Lookup,
        MeasuredOperation::Create,
        MeasuredOperation::Remove,
        MeasuredOperation::Rename,
        MeasuredOperation::Readdirplus,
        MeasuredOperation::Echo,
        MeasuredOperation::Reply,
        MeasuredOperation::Mix,
    ];

    const fn load(self) -> Load {
        let (name, works_on, has_size) = match self {
            MeasuredOperation::Null => ("null", WorksOn::Nothing, false),
            MeasuredOperation::Read => ("read", WorksOn::File, true),
            MeasuredOperation::Write => ("write", WorksOn::File, true),
            MeasuredOperation::Getattr => ("getattr", WorksOn::File, false),
            MeasuredOperation::Setattr => ("setattr", WorksOn::Names, false),
            MeasuredOperation::Lookup => ("lookup", WorksOn::Names, false),
            MeasuredOperation::Create => ("create", WorksOn::EachNameOnce, false),
            MeasuredOperation::Remove => ("remove", WorksOn::EachNameOnce, false),
            MeasuredOperation::Rename => ("rename", WorksOn::Names, false),
            MeasuredOperation::Readdirplus => ("readdirplus", WorksOn::Names, false),
            MeasuredOperation::Echo => ("echo", WorksOn::Nothing, true),
            MeasuredOperation::Reply => ("reply", WorksOn::Nothing, true),
            MeasuredOperation::Mix => ("mix", WorksOn::File, true),
        };
        Load { name, works_on, has_size }
    }

    /// Its name, as on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.load().name
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<MeasuredOperation> {
        MeasuredOperation::ALL.into_iter().find(|operation| operation.name() == name)
    }

    /// Whether it moves `size` octets.
    #[must_use]
    pub const fn has_size(self) -> bool {
        self.load().has_size
    }

    /// Whether it works on a file of each connection.
    #[must_use]
    pub const fn has_file(self) -> bool {
        matches!(self.load().works_on, WorksOn::File)
    }

    /// Whether it works on names in a folder.
    #[must_use]
    pub const fn has_names(self) -> bool {
        matches!(self.load().works_on, WorksOn::Names | WorksOn::EachNameOnce)
    }

    /// Whether it can be done once with each name.
    #[must_use]
    pub const fn uses_names_up(self) -> bool {
        matches!(self.load().works_on, WorksOn::EachNameOnce)
    }
}

/// How often one operation of a mix is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MixShare {
    /// What is called: NULL, GETATTR, READ or WRITE.
    pub operation: MeasuredOperation,
    /// How often, in relation to the others'; more than 0.
    pub weight: u32,
}

/// Which block of its files a connection's next Call is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Offsets {
    /// One after the other, from the first of the first file to the last of the last, and again.
    #[default]
    Sequential,
    /// Any, each as likely as the others.
    Random,
}

/// The fabric that both ends use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MeasuredFabric {
    /// Shared memory.
    #[default]
    Shm,
    /// iWARP over TCP, by the loopback if the server is our own.
    Iwarp,
    /// An RDMA device, which turns to itself if the server is our own.
    Verbs,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Scenario {
    /// What is called.
    pub operation: MeasuredOperation,
    /// Octets of each READ, WRITE or echo.
    pub size: usize,
    /// What a mix consists of; empty of the other operations.
    pub mix: Vec<MixShare>,
    /// Which block of its files a READ or WRITE is at.
    pub offsets: Offsets,
    /// Octets of all files together; a block for each Call outstanding if it is not said.
    pub working_set: Option<u64>,
    /// Files of each connection; of an operation on names, those of each client core, which has 1,000 at least.
    pub files: usize,
    /// When Calls start. `None`: closed loop, each when another has ended.
    pub arrivals: Option<Arrivals>,
    /// How often figures are told within a round.
    pub interval: Option<Duration>,
    /// Calls outstanding on each connection; in open loop at most.
    pub depth: usize,
    /// Connections of each client core.
    pub connections: usize,
    /// Cores of the clients, then the server's core. At least two entries; the last one is the server's.
    pub cores: Vec<usize>,
    /// How long each round measures.
    pub duration: Duration,
    /// Calls after which a round ends, if before `duration`.
    pub count: Option<u64>,
    /// How long each round runs before it measures.
    pub warm_up: Duration,
    /// Rounds.
    pub repeat: usize,
    /// Inline threshold that both ends offer.
    pub inline_threshold: u32,
    /// Whether the client reads every cache line of what it READ.
    pub touch: bool,
    /// Whether both ends may sleep; otherwise they spin.
    pub may_sleep: bool,
    /// A server that runs already: its address, and the export to use.
    pub server: Option<(String, String)>,
    /// The handle of that export's root, where it is known; otherwise the server is asked for it.
    #[serde(skip)]
    pub root: Option<Vec<u8>>,
    /// What both ends use.
    pub fabric: MeasuredFabric,
    /// Whether they ask for CRCs, over iWARP.
    pub crc: bool,
    /// The congestion control algorithm of TCP, over iWARP; the system's default, if there is none.
    #[serde(skip)]
    pub congestion_control: Option<CongestionControl>,
    /// The RDMA device, over verbs; the first with an active port, if none is named.
    pub device: Option<String>,
    /// How it exposes memory; by its best means, if that is not said.
    #[serde(skip)]
    pub exposure: Option<ExposureKind>,
    /// Versions of RPC-over-RDMA that both ends speak.
    #[serde(skip)]
    pub protocol: ProtocolChoice,
    /// Where the client wants bulk data, in version 2.
    #[serde(skip)]
    pub placement: PlacementChoice,
    /// Sends of a message at most, in version 2.
    #[serde(skip)]
    pub continuation: u32,
    /// Who provides the memory of a long Reply, of [`MeasuredOperation::Reply`].
    #[serde(skip)]
    pub reply_mode: ReplyMode,
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            operation: MeasuredOperation::Null,
            size: 4096,
            mix: Vec::new(),
            offsets: Offsets::Sequential,
            working_set: None,
            files: 1,
            arrivals: None,
            interval: None,
            depth: 1,
            connections: 1,
            cores: vec![0, 1],
            duration: Duration::from_millis(500),
            count: None,
            warm_up: Duration::from_millis(200),
            repeat: 5,
            inline_threshold: 4096,
            touch: false,
            may_sleep: false,
            server: None,
            root: None,
            fabric: MeasuredFabric::Shm,
            crc: true,
            congestion_control: None,
            device: None,
            exposure: None,
            protocol: ProtocolChoice::One,
            placement: PlacementChoice::Auto,
            continuation: 8,
            reply_mode: ReplyMode::Auto,
        }
    }
}

impl Scenario {
    /// Cores of the clients.
    #[must_use]
    pub fn client_cores(&self) -> &[usize] {
        &self.cores[..self.cores.len() - 1]
    }

    /// The server's core.
    #[must_use]
    pub fn server_core(&self) -> usize {
        self.cores[self.cores.len() - 1]
    }

    /// Octets of memory that a Call's data takes, in whole pages.
    #[must_use]
    pub fn block_len(&self) -> usize {
        let is_listing = self.operation == MeasuredOperation::Readdirplus;
        let len = if is_listing { LISTING_LEN as usize } else { self.size };
        len.max(4096).next_multiple_of(4096)
    }

    /// Whether `operation` is called: it is the measured one, or one of the mix.
    #[must_use]
    pub fn calls(&self, operation: MeasuredOperation) -> bool {
        self.operation == operation || self.mix.iter().any(|share| share.operation == operation)
    }

    /// Files with data that each connection has.
    fn files_of_connection(&self) -> usize {
        if self.operation.has_names() { 1 } else { self.files.max(1) }
    }

    /// Blocks that each file of a connection has: one for each Call outstanding if no working set is wanted.
    #[must_use]
    pub fn blocks_of_file(&self) -> usize {
        let files = self.files_of_connection();
        match self.working_set {
            None => self.depth.max(1).div_ceil(files),
            Some(octets) => {
                let all = files * self.connections * self.client_cores().len();
                (octets / (all * self.block_len()) as u64).max(1) as usize
            }
        }
    }

    /// Octets of the files that one connection works on.
    #[must_use]
    pub fn files_len(&self) -> usize {
        self.files_of_connection() * self.blocks_of_file() * self.block_len()
    }

    /// Credits that one connection needs.
    #[must_use]
    pub fn credits(&self) -> u32 {
        (self.depth as u32).clamp(1, 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_working_set_is_that_of_all_files_together() {
        let usual = Scenario { depth: 32, ..Scenario::default() };
        assert_eq!((usual.blocks_of_file(), usual.files_len()), (32, 32 * 4096));
        let spread = Scenario { files: 4, ..usual.clone() };
        assert_eq!((spread.blocks_of_file(), spread.files_len()), (8, 32 * 4096));
        let large =
            Scenario { working_set: Some(1 << 30), connections: 2, files: 4, cores: vec![0, 1, 2], ..usual };
        assert_eq!(large.files_len() * 4, 1 << 30);
        let least = Scenario { working_set: Some(1), ..Scenario::default() };
        assert_eq!(least.blocks_of_file(), 1);
    }

    #[test]
    fn a_mix_calls_what_it_consists_of() {
        let share = |operation| MixShare { operation, weight: 1 };
        let mix = vec![share(MeasuredOperation::Read), share(MeasuredOperation::Getattr)];
        let scenario = Scenario { operation: MeasuredOperation::Mix, mix, ..Scenario::default() };
        assert!(scenario.calls(MeasuredOperation::Read) && !scenario.calls(MeasuredOperation::Write));
    }
}
