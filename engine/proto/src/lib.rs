//! RPC-over-RDMA as sans-IO state machines: version 1 (RFC 8166), and version 2 as of June 2016.
//!
//! Nothing here does I/O, reads a clock, or allocates after `new`. A driver (the `rpc` crate) owns the queue
//! pair, the buffers and the time-outs; it passes received messages in as byte slices, and acts on the
//! returned values.
//!
//! ```text
//!  driver of a client                                        driver of a server
//!   begin, plan, emit_call ──▶ Send  ═════════▶ Receive ──▶ handle_receive
//!                                                             pulls Read chunks, runs the RPC program
//!   handle_receive ◀──── Receive ◀═════════ Writes, Send ◀── plan_reply, emit_reply
//!   poll_fence, handle_fenced
//! ```
//!
//! - [`parameters`]: the values that two ends agree on when they connect (RFC 8797).
//! - [`credits`]: how many Calls may be in flight.
//! - [`requester`], [`responder`]: the two machines. One connection has one of each at either end when Calls
//!   go both ways (RFC 8167).
//! - [`exposed`]: Replies of any size, which their Requester pulls (reliable reply).
//! - [`version`]: which version a connection speaks. [`characteristics`]: those of the peer in version 2. [`version2`]: those
//!   of this end. The same two machines serve both versions; the additions of version 2 are beside them
//!   ([`requester::Requester2`], [`responder::Responder2`]).
//! - [`group`], [`sender`]: messages of several transmissions, as they are received and sent (rtrext). [`cut`]: the contents
//!   of each transmission. [`layout`]: how Receives are divided. [`placement`]: where the items of a received message lie.
//!   [`directions`]: where a Requester wants results, and where the Responder puts them. [`lone`]: messages in one Send.
//! - [`direction`]: which of the two a message is for. [`receives`]: Receives posted for both together.
//! - [`plan`]: Short, Chunked or Long.
//! - [`reads`]: the Read list as the Responder pulls it. [`span`]: where chunks and local memory are cut.
//!
//! Rule numbers in comments (`8166-4.4.1-a`) are those of `engine/spec`: RFC, section, letter.
//! Numbers with X or D are our decisions where the RFC is silent.

#![forbid(unsafe_code)]

pub mod characteristics;
pub mod credits;
pub mod cut;
pub mod direction;
pub mod directions;
pub mod exposed;
pub mod group;
pub mod layout;
pub mod lone;
mod offer;
pub mod parameters;
pub mod placement;
mod plain;
pub mod plan;
pub mod reads;
pub mod receives;
pub mod requester;
pub mod responder;
pub mod sender;
pub mod span;
pub mod version;
pub mod version2;
