//! The load generator of `stag perf`, and the box's own limits that its figures are compared with.
//!
//! | file | subject |
//! |---|---|
//! | `scenario` | what to measure: operation, size, depth, cores |
//! | `server` | the server that a measurement starts itself |
//! | `load` | the client: keeps Calls outstanding, and takes their times |
//! | `disturbance` | what else ran on the machine meanwhile |
//! | `limits` | cache-line transfers, bare echoes and memcpy of the same two cores; bare TCP; the bare fabric |
//! | `bare` | two ends of a fabric without RPC: messages, Writes and Reads |
//! | `opened` | the fabric of both ends |
//! | `loopback` | both ends in one thread, and one Call: whether iWARP works here |
//! | `paired` | a client and a server that take turns on each core: what more cores gain, and what carried Calls cost |
//! | `run` | rounds of limits and load, and their ratios |

pub mod bare;
pub mod disturbance;
pub mod limits;
pub mod load;
pub mod loopback;
pub mod opened;
pub mod paired;
mod pin;
pub mod run;
pub mod scenario;
pub mod server;
pub mod spread;

pub use disturbance::Disturbance;
pub use limits::MachineLimits;
pub use limits::bare::BareLimits;
pub use limits::tcp::TcpLimits;
pub use run::{Figures, run};
pub use scenario::{MeasuredFabric, MeasuredOperation, Scenario};
pub use spread::Spread;
