//! Plans to reserve and to clear hugepages: first shown, then, if wanted, applied.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::bytes::Bytes;
use crate::inventory::{Inventory, number};
use crate::page::PageSize;

/// One number to be written to the kernel: how many pages it shall hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The file, from the root.
    pub path: PathBuf,
    /// What it says now.
    pub before: u64,
    /// What to write.
    pub value: u64,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "echo {} > {}    # now {}", self.value, self.path.display(), self.before)
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HugePagePlanError {
    /// Not a size of reserved pages, or not of this machine.
    #[error("{page}: this machine cannot reserve them; it has {sizes}")]
    Size {
        /// What was asked for.
        page: PageSize,
        /// What there is.
        sizes: String,
    },
    /// No such node.
    #[error("NUMA node {node}: this machine has {nodes}")]
    Node {
        /// What was asked for.
        node: u32,
        /// What there is.
        nodes: String,
    },
    /// More than the node's whole memory.
    #[error("{count} pages of {} on NUMA node {node}: it has {} of memory in all; ask for fewer", Bytes(*page_len), Bytes(*memory))]
    Memory {
        /// The node.
        node: u32,
        /// Pages wanted.
        count: u64,
        /// Bytes of one.
        page_len: u64,
        /// Bytes that the node has.
        memory: u64,
    },
}

/// Numbers to be written, and what to know before. Its `Display` is the dry run: the commands that would do the
/// same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In order.
    pub writes: Vec<Write>,
    /// What to know.
    pub notes: Vec<String>,
}

/// What became of a write.
#[derive(Debug)]
pub struct WriteOutcome {
    /// The planned write.
    pub write: Write,
    /// How many pages there are now: the kernel gives what it finds. Or why nothing was written.
    pub result: io::Result<u64>,
}

impl WriteOutcome {
    /// Whether all of it was achieved.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.result, Ok(got) if got == self.write.value)
    }
}

impl fmt::Display for WriteOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Write { path, before, value } = &self.write;
        let path = path.display();
        match &self.result {
            Ok(got) if got == value => write!(f, "{path}: {got} pages (were {before})"),
            Ok(got) if got < value => write!(
                f,
                "{path}: only {got} of {value} pages (were {before}): memory is too full or too fragmented; \
                 `echo 1 > /proc/sys/vm/compact_memory` and try again, or reserve them at boot"
            ),
            Ok(got) => {
                write!(f, "{path}: still {got} pages, not {value} (were {before}): the rest is in use")
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                write!(f, "{path}: {error}; run it as root")
            }
            Err(error) => write!(f, "{path}: {error}"),
        }
    }
}

impl Plan {
    /// Plans that **each** NUMA node, or only `node`, holds at least `count` pages of that size in all. Takes
    /// none away where there are more.
    pub fn setup(
        inventory: &Inventory,
        page: PageSize,
        count: u64,
        node: Option<u32>,
    ) -> Result<Plan, HugePagePlanError> {
        check(inventory, Some(page), node)?;
        let mut plan = Plan::default();
        for place in places(inventory, Some(page), node) {
            if place.total >= count {
                plan.notes.push(format!("{}: has {} already", place.name, place.total));
                continue;
            }
            let bytes = (count - place.total).saturating_mul(place.page_len);
            if let (Some(node), Some(memory)) = (place.node, place.memory_total)
                && count.saturating_mul(place.page_len) > memory
            {
                return Err(HugePagePlanError::Memory { node, count, page_len: place.page_len, memory });
            }
            if let Some(free) = place.memory_free.filter(|&free| free < bytes) {
                let (more, free) = (Bytes(bytes), Bytes(free));
                plan.notes.push(format!("{}: {more} more wanted, {free} free: expect fewer", place.name));
            }
            plan.writes.push(place.write(count));
        }
        if page == PageSize::Huge1G && !plan.writes.is_empty() {
            plan.notes.push(
                "1 GiB pages need memory that was never fragmented: the kernel parameters \
                 `hugepagesz=1G hugepages=N` reserve them at boot"
                    .to_owned(),
            );
        }
        Ok(plan)
    }

    /// Plans that no reserved pages are left: of all sizes or one, on all nodes or one. Pages in use stay until
    /// their user lets go.
    pub fn clear(
        inventory: &Inventory,
        page: Option<PageSize>,
        node: Option<u32>,
    ) -> Result<Plan, HugePagePlanError> {
        check(inventory, page, node)?;
        let mut plan = Plan::default();
        for place in places(inventory, page, node).filter(|place| place.total > 0) {
            if place.free < place.total {
                let used = place.total - place.free;
                plan.notes.push(format!("{}: {used} in use, which go when their user does", place.name));
            }
            plan.writes.push(place.write(0));
        }
        Ok(plan)
    }

    /// Writes the numbers below `root` (`/`, or a copy of it for a test), and reads back what was achieved.
    #[must_use]
    pub fn apply(&self, root: &Path) -> Vec<WriteOutcome> {
        let apply = |write: &Write| {
            let path = root.join(write.path.strip_prefix("/").unwrap_or(&write.path));
            fs::write(&path, write.value.to_string())?;
            number(&path).ok_or_else(|| io::Error::other("cannot be read back"))
        };
        self.writes.iter().map(|write| WriteOutcome { write: write.clone(), result: apply(write) }).collect()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "# {note}")?;
        }
        for write in &self.writes {
            writeln!(f, "{write}")?;
        }
        if self.writes.is_empty() {
            writeln!(f, "# nothing to do")?;
        }
        Ok(())
    }
}

/// Pages of one size on one node, or on the whole of a machine without nodes.
struct Place {
    name: String,
    node: Option<u32>,
    path: PathBuf,
    page_len: u64,
    total: u64,
    free: u64,
    memory_total: Option<u64>,
    memory_free: Option<u64>,
}

impl Place {
    fn write(self, value: u64) -> Write {
        Write { path: self.path, before: self.total, value }
    }
}

fn places(inventory: &Inventory, page: Option<PageSize>, node: Option<u32>) -> impl Iterator<Item = Place> {
    let file = |dir: String, len: u64| {
        PathBuf::from(format!("{dir}/hugepages/hugepages-{}kB/nr_hugepages", len / 1024))
    };
    let mut places = Vec::new();
    for found in inventory.nodes.iter().filter(|found| node.is_none_or(|node| node == found.id)) {
        places.extend(found.pages.iter().map(|pages| Place {
            name: format!("NUMA node {}, pages of {}", found.id, Bytes(pages.page_len)),
            node: Some(found.id),
            path: file(format!("/sys/devices/system/node/node{}", found.id), pages.page_len),
            page_len: pages.page_len,
            total: pages.total,
            free: pages.free,
            memory_total: found.memory_total,
            memory_free: found.memory_free,
        }));
    }
    if inventory.nodes.is_empty() {
        places.extend(inventory.pages.iter().map(|pages| Place {
            name: format!("pages of {}", Bytes(pages.page_len)),
            node: None,
            path: file("/sys/kernel/mm".to_owned(), pages.page_len),
            page_len: pages.page_len,
            total: pages.total,
            free: pages.free,
            memory_total: None,
            memory_free: None,
        }));
    }
    places.into_iter().filter(move |place| page.is_none_or(|page| page.bytes() as u64 == place.page_len))
}

fn check(inventory: &Inventory, page: Option<PageSize>, node: Option<u32>) -> Result<(), HugePagePlanError> {
    if let Some(page) = page {
        let is_there = inventory.pages.iter().any(|pages| pages.page_len == page.bytes() as u64);
        if !page.is_reserved() || !is_there {
            let sizes: Vec<_> =
                inventory.pages.iter().map(|pages| Bytes(pages.page_len).to_string()).collect();
            let sizes = if sizes.is_empty() { "none".to_owned() } else { sizes.join(" and ") };
            return Err(HugePagePlanError::Size { page, sizes });
        }
    }
    if let Some(node) = node
        && inventory.node(node).is_none()
    {
        let nodes: Vec<_> = inventory.nodes.iter().map(|node| format!("node {}", node.id)).collect();
        let nodes = if nodes.is_empty() { "no NUMA nodes".to_owned() } else { nodes.join(", ") };
        return Err(HugePagePlanError::Node { node, nodes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::Machine;

    #[test]
    fn a_setup_is_shown_then_applied_and_never_takes_pages_away() {
        let machine = Machine::large("setup");
        let inventory = Inventory::read(&machine.0);
        let plan = Plan::setup(&inventory, PageSize::Huge2M, 512, None).unwrap();
        assert_eq!(
            plan.to_string(),
            "# NUMA node 1, pages of 2 MiB: has 512 already\n\
             echo 512 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages    # now 0\n"
        );
        let outcomes = plan.apply(&machine.0);
        assert!(outcomes.iter().all(WriteOutcome::is_complete));
        assert!(outcomes[0].to_string().ends_with("nr_hugepages: 512 pages (were 0)"), "{}", outcomes[0]);
        let again = Plan::setup(&Inventory::read(&machine.0), PageSize::Huge2M, 512, None).unwrap();
        assert!(again.writes.is_empty());
        assert!(again.to_string().ends_with("# nothing to do\n"));
    }

    #[test]
    fn a_setup_warns_of_little_memory_and_refuses_the_impossible() {
        let machine = Machine::large("warn");
        let inventory = Inventory::read(&machine.0);
        let plan = Plan::setup(&inventory, PageSize::Huge1G, 4, Some(0)).unwrap();
        assert_eq!(plan.writes.len(), 1);
        assert_eq!(plan.notes[0], "NUMA node 0, pages of 1 GiB: 2 GiB more wanted, 1 GiB free: expect fewer");
        assert!(plan.notes[1].contains("hugepagesz=1G"));

        let error = |page, count, node| Plan::setup(&inventory, page, count, node).unwrap_err().to_string();
        assert_eq!(
            error(PageSize::Huge1G, u64::MAX, Some(1)),
            format!(
                "{} pages of 1 GiB on NUMA node 1: it has 8 GiB of memory in all; ask for fewer",
                u64::MAX
            )
        );
        assert_eq!(error(PageSize::Huge2M, 1, Some(7)), "NUMA node 7: this machine has node 0, node 1");
        assert_eq!(
            error(PageSize::Base, 1, None),
            "4 KiB pages: this machine cannot reserve them; it has 2 MiB and 1 GiB"
        );
    }

    #[test]
    fn clearing_names_what_is_in_use() {
        let machine = Machine::large("clear");
        let inventory = Inventory::read(&machine.0);
        let plan = Plan::clear(&inventory, None, None).unwrap();
        assert_eq!(
            plan.to_string(),
            "# NUMA node 1, pages of 2 MiB: 500 in use, which go when their user does\n\
             echo 0 > /sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages    # now 2\n\
             echo 0 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages    # now 512\n"
        );
        assert_eq!(Plan::clear(&inventory, Some(PageSize::Huge1G), Some(1)).unwrap(), Plan::default());
    }

    #[test]
    fn a_machine_without_nodes_is_set_up_as_a_whole() {
        let machine =
            Machine::new("flat", &[("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1\n")]);
        let plan = Plan::setup(&Inventory::read(&machine.0), PageSize::Huge2M, 3, None).unwrap();
        assert_eq!(plan.writes[0].path, Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"));
        assert!(plan.apply(&machine.0)[0].is_complete());
    }

    #[test]
    fn what_was_not_achieved_is_said() {
        let write = Write { path: "/f".into(), before: 3, value: 10 };
        let say = |result| WriteOutcome { write: write.clone(), result }.to_string();
        assert!(say(Ok(7)).starts_with("/f: only 7 of 10 pages (were 3)"));
        assert!(say(Ok(11)).contains("still 11 pages, not 10"));
        assert!(say(Err(io::ErrorKind::PermissionDenied.into())).ends_with("run it as root"));
        let plan = Plan { writes: vec![write], notes: Vec::new() };
        let outcome = &plan.apply(Path::new("/nowhere-at-all"))[0];
        assert!(!outcome.is_complete());
    }
}
