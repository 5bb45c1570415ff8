//! Hugepages: shows, reserves and clears them, and maps memory on them.
//!
//! [`Mapping`] is sealed, zeroed, pre-faulted memory on the largest pages that the machine gives, bound
//! to a NUMA node where asked; it steps down aloud, in its [`Mapping::notes`].
#![warn(missing_docs)]

mod mapping;
mod page;

pub use mapping::{MapConfig, MapError, Mapping};
pub use page::{PageChoice, PageSize};
