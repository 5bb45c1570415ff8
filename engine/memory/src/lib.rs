//! Arenas, pools and counted buffers. Knows no fabric.
//!
//! - An [`Arena`] is one large piece of pre-faulted memory, which a provider registers once, at start.
//!   It may be shared between threads. It can also be memory that the program has already: [`Arena::adopt`], [`Arena::foreign`].
//! - A [`Pool`] cuts a part of an arena into units. It belongs to one reactor, and so its counts are
//!   plain numbers: `Pool`, [`Buf`] and [`Shared`] are neither `Send` nor `Sync`. Reactors that want to
//!   tell each other something send values.
//! - A [`Buf`] owns units alone and may write; a [`Shared`] is a counted reference to read-only bytes. Both
//!   give their units back when dropped.
//! - A [`Loan`] is a [`Shared`] on its way to another reactor, and a [`Return`] tells the lender that the loan is over. Both may
//!   be sent between threads; [`Borrowed`] is what a reactor has of the others' memory.
//! - A [`SendBuf`] is a [`Buf`] that any thread may fill and read; only the pool's own thread gives it back.
//! - A [`Budget`] is the one number that all arenas together stay below.
//! - A [`Ledger`] proves at exit that every buffer came back.
//!
//! The compiler keeps values of one reactor there:
//!
//! ```compile_fail,E0277
//! fn send<T: Send>() {}
//! send::<stag_memory::Buf>();
//! ```
//! ```compile_fail,E0277
//! fn send<T: Send>() {}
//! send::<stag_memory::Shared>();
//! ```
//! ```compile_fail,E0277
//! fn send<T: Send>() {}
//! send::<stag_memory::Pool>();
//! ```
//! ```compile_fail,E0277
//! fn send<T: Send>() {}
//! send::<stag_memory::Borrowed>();
//! ```
//!
//! Loans and returns can be sent, but neither copied nor forged:
//!
//! ```
//! fn send<T: Send>() {}
//! send::<stag_memory::Loan>();
//! send::<stag_memory::Return>();
//! ```
//! ```compile_fail,E0277
//! fn clone<T: Clone>() {}
//! clone::<stag_memory::Loan>();
//! ```
//! ```
//! fn send_and_sync<T: Send + Sync>() {}
//! send_and_sync::<stag_memory::Arena>();
//! send_and_sync::<stag_memory::Budget>();
//! ```
//!
//! # Threads that are no reactors
//!
//! To be filled by any thread, memory goes there as a [`SendBuf`]. What others may be reading is a [`Shared`], which stays on the thread of
//! its pool. Another thread may read its bytes as a [`Loan`]: it borrows them by a [`Borrowed`] of its own, reads, drops what it
//! borrowed, and sends each [`Return`] back to the thread of the pool. Until then the units stay in use. Nothing is copied.
//!
//! ```
//! use stag_memory::{Arena, ArenaConfig, Borrowed, Budget, Pool};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let budget = Budget::new(1 << 20);
//! let arena = Arena::on_demand(&ArenaConfig::new("example", 1 << 16, &budget))?;
//! let pool = Pool::runs(&arena, "pages", 4096, 4)?;
//! let mut buf = pool.take_len(5).ok_or("nothing is free")?;
//! buf.copy_from_slice(b"hello");
//! let shared = buf.share();
//!
//! let loan = shared.clone().lend();
//! let reader = std::thread::spawn(move || {
//!     // The number is for those who lend on, as reactors do.
//!     let mut borrowed = Borrowed::new(0);
//!     let text = borrowed.borrow(loan);
//!     assert_eq!(&text[..], b"hello");
//!     drop(text);
//!     std::iter::from_fn(|| borrowed.next_return()).collect::<Vec<_>>()
//! });
//! for units in reader.join().expect("it does not panic") {
//!     pool.take_back(units).expect("they are of this pool");
//! }
//! drop(shared);
//! assert_eq!(pool.outstanding(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! A [`Shared`] that was borrowed itself goes back to the [`Borrowed`] that it came from: that of an engine, for data that another reactor
//! received ([`Pool::has`] tells). So a service of several reactors copies such data for a thread of its own, or has it written on its
//! reactor, by `stag_disk`.
//!
//! # Memory that others write
//!
//! An arena may be mapped by another process or be written by a device. Rust cannot see those writes, so
//! ownership has to speak for them: **a program that lets another party write to a buffer holds its [`Buf`]
//! by value, and makes no reference into it, until that party can no longer touch it.** Posting a work
//! request takes the `Buf`; the completion, or the end of a fence, gives it back. Memory that others may only
//! read is held as a [`Shared`] for as long as they may. Every `unsafe` block of this crate that makes a
//! slice relies on this rule.

mod abroad;
mod arena;
mod budget;
mod buf;
mod extent;
mod ledger;
mod loan;
mod pool;
mod shared;
mod sync;

pub use abroad::{SendBuf, SendHome};
pub use arena::{Arena, ArenaConfig, ArenaError, ArenaId};
pub use budget::{Budget, BudgetError, Price, PriceList};
pub use buf::{Buf, Location};
pub use ledger::Ledger;
pub use loan::{Borrowed, Holding, Loan, Return, loans_lost};
pub use pool::{Pool, PoolError};
pub use shared::Shared;
pub use stag_hugepages::{Bytes, MapError, Mapping, PageChoice, PageSize};
