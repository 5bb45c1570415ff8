//! The load generator of `stag perf`, and the box's own limits that its figures are compared with.
//!
//! | file | subject |
//! |---|---|
//! | `scenario` | what to measure: operation, size, depth, cores |
//! | `server` | the server that a measurement starts itself |
//! | `programs`, `engine_config` | what it serves; the numbers of both ends |
//! | `load` | the client: keeps Calls outstanding, or begins them by the clock, and takes their times |
//! | `arrivals` | the clock of open loop |
//! | `cpu` | processor time of either end |
//! | `disturbance` | what else ran on the machine meanwhile |
//! | `limits` | cache-line transfers, bare echoes and memcpy of the same two cores; bare TCP; the bare fabric |
//! | `bare` | two ends of a fabric without RPC: messages, Writes and Reads |
//! | `null_over_tcp` | NULL Calls over TCP to any NFS server |
//! | `opened` | the fabric of both ends |
//! | `loopback` | both ends in one thread, and one Call: whether iWARP works here |
//! | `paired` | a client and a server that take turns on each core: what more cores gain, and what carried Calls cost |
//! | `run` | rounds of limits and load, and their ratios |
//! | `rounds` | each round and interval, and what is summed up of them |

pub mod arrivals;
pub mod bare;
pub mod cpu;
pub mod disturbance;
mod engine_config;
pub mod limits;
pub mod load;
pub mod loopback;
pub mod null_over_tcp;
pub mod opened;
pub mod paired;
mod pin;
mod programs;
pub mod rounds;
pub mod run;
pub mod scenario;
pub mod server;
pub mod spread;

pub use arrivals::{Arrivals, Spacing};
pub use disturbance::Disturbance;
pub use limits::MachineLimits;
pub use limits::bare::BareLimits;
pub use limits::tcp::TcpLimits;
pub use run::{Figures, MeasurementProgress, run};
pub use scenario::{MeasuredFabric, MeasuredOperation, MixShare, Offsets, Scenario};
pub use spread::Spread;
