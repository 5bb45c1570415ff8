//! Whether any peer keeps the rules of RPC-over-RDMA: of version 1, of reliable reply, and of version 2 with rtrext.
//!
//! Each check sends messages, right or wrong, over any fabric, and judges the answer. No engine is involved, so that a
//! mistake of ours cannot hide behind itself: this crate has a raw end of a connection, and knows neither `proto` nor `rpc`.
//!
//! A run is an iterator over the checks and their outcomes: [`requester::RequesterRun`] checks a server,
//! [`responder::ResponderRun`] the clients that connect. `stag conform` prints them.
//!
//! | module | subject |
//! |---|---|
//! | [`raw`], [`open`] | one end of a connection over any fabric, below every protocol |
//! | [`message`] | messages as drafts, right or wrong, and as they came |
//! | [`check`], [`probe`] | the definition of a check, and the building blocks of checks |
//! | [`header_checks`], [`chunk_checks`], [`private_data_checks`], [`file_checks`] | the checks of a server |
//! | [`block`], [`exposed_checks`], [`exposed_client_checks`] | private data of Stag's own; Replies that the server exposes |
//! | [`operation`], [`version2`] | operations of version 2, word by word; a connection that speaks it |
//! | [`version2_checks`], [`group_checks`], [`version2_client_checks`] | version 2 and its groups of transmissions: servers, and clients |
//! | [`files`] | the files that some of them need, and the NFS Calls on them |
//! | [`served`], [`client_checks`] | the building blocks of checks of a client, and these |
//! | [`scratch`], [`answering`] | the service that answers Calls with content, and how the Replies go out |
//! | [`sent_group`], [`placed_client_checks`] | a client's groups of transmissions put together, and the checks of data in messages |
//! | [`requester`], [`responder`] | a run against a server, and one against clients |
//! | [`rules`] | which rule is checked where, and which cannot be |
#![forbid(unsafe_code)]

pub mod answering;
pub mod block;
pub mod check;
pub mod chunk_checks;
pub mod client_checks;
pub mod exposed_checks;
pub mod exposed_client_checks;
pub mod file_checks;
pub mod files;
pub mod group_checks;
pub mod header_checks;
pub mod message;
pub mod open;
pub mod operation;
mod outcome;
pub mod placed_client_checks;
pub mod private_data_checks;
pub mod probe;
pub mod raw;
pub mod requester;
pub mod responder;
pub mod rules;
pub mod scratch;
pub mod sent_group;
pub mod served;
pub mod version2;
pub mod version2_checks;
pub mod version2_client_checks;
