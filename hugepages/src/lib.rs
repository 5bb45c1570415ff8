//! Hugepages: shows, reserves and clears them, and maps memory on them.
//!
//! - [`Mapping`] is sealed, zeroed, pre-faulted memory on the largest pages that the machine gives, bound to
//!   a NUMA node where asked. If it has to use smaller pages, [`Mapping::notes`] says so.
//! - [`Inventory`] is what the machine has, and what limits its use.
//! - [`Plan`] reserves pages or gives them back; it can be shown before it is applied.
//!
//! ```
//! use stag_hugepages::{Inventory, MapConfig, Mapping, PageChoice, PageSize, Plan};
//! let inventory = Inventory::read("/".as_ref());
//! print!("{inventory}");
//! if let Ok(plan) = Plan::setup(&inventory, PageSize::Huge2M, 64, None) {
//!     print!("{plan}"); // a dry run; `plan.apply("/".as_ref())` would do it
//! }
//! let mapping =
//!     Mapping::new(&MapConfig { name: "doc", len: 4 << 20, page: PageChoice::Auto, node: None })?;
//! println!("{}: {:?}", mapping.page_size(), mapping.notes());
//! # Ok::<(), stag_hugepages::MapError>(())
//! ```

mod bytes;
mod inventory;
mod kernel;
mod mapping;
mod page;
mod plan;

pub use bytes::Bytes;
pub use inventory::{
    CgroupLimit, Inventory, InventoryNode, Memlock, MemoryLimit, NodePages, PageCounts, Transparent,
};
pub use mapping::{MapConfig, MapError, Mapping};
pub use page::{PageChoice, PageChoiceError, PageSize};
pub use plan::{HugePagePlanError, Plan, Write, WriteOutcome};
