//! Who gets how much of what is scarce: pure machines, without I/O and without a clock of their own.
//!
//! A server has a bounded number of Receives, pages, connections and kept Replies, and clients that would take all of them.
//! Each module shares one of these, and every one by *owner*: a network address (of IPv6 the first 64 bits, of which one host
//! has all), or a user of this machine, as one number. How a peer becomes an owner is the caller's to say.
//!
//! | module | shares |
//! |---|---|
//! | [`governor`] | Receives: how many Calls each connection may have in flight |
//! | [`transit`] | payload memory that Calls and Replies pass through |
//! | [`kept`] | entries of the duplicate request cache |
//! | [`eviction`] | places for connections: which one ends when all are taken |
//! | [`placement`] | engines of a group: which one serves a connection |
//! | [`rate`] | octets per second of READ and WRITE, which reactors count together |
//!
//! All are driven by numbers and a `now` that the caller hands down, allocate only when a connection comes, and are tested
//! here by models of many clients.

#![forbid(unsafe_code)]

pub mod eviction;
pub mod governor;
pub mod kept;
pub mod placement;
mod ranks;
pub mod rate;
mod rate_queue;
pub mod transit;
mod trial;
