//! A fabric's memory, as far as the protocol sees it: handles, segments, fences.

use std::collections::HashMap;

use stag_proto::span::Span;
use stag_wire::rpcrdma::Segment;

use crate::support::Random;

/// A piece of exposed memory.
#[derive(Clone, Debug)]
struct Region {
    offset: u64,
    octets: Vec<u8>,
    writable: bool,
}

/// The memory that one side exposes.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    regions: HashMap<u32, Region>,
    next_handle: u32,
}

impl Memory {
    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Exposes `octets` as one chunk, in one region or in several, cut into segments anywhere.
    pub(crate) fn expose(&mut self, random: &mut Random, octets: &[u8], writable: bool) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut rest = octets;
        loop {
            let (region, after) = if random.once_in(4) {
                rest.split_at(random.below(rest.len() as u32 + 1) as usize)
            } else {
                (rest, &[][..])
            };
            self.next_handle += 1;
            let handle = self.next_handle;
            let offset = random.next() >> 8;
            self.regions.insert(handle, Region { offset, octets: region.to_vec(), writable });
            let cut =
                if random.once_in(3) { random.below(region.len() as u32 + 1) } else { region.len() as u32 };
            segments.push(Segment { handle, length: cut, offset });
            if (cut as usize) < region.len() {
                let length = region.len() as u32 - cut;
                segments.push(Segment { handle, length, offset: offset + u64::from(cut) });
            }
            rest = after;
            if rest.is_empty() {
                return segments;
            }
        }
    }

    /// The place of `span`, if it may be used so.
    fn place(&mut self, span: Span, write: bool) -> Option<&mut [u8]> {
        let region = self.regions.get_mut(&span.handle).filter(|region| region.writable == write)?;
        let start = usize::try_from(span.offset.checked_sub(region.offset)?).ok()?;
        region.octets.get_mut(start..start.checked_add(span.len as usize)?)
    }

    /// RDMA Read. `None`: a remote access error.
    pub(crate) fn read(&mut self, span: Span) -> Option<Vec<u8>> {
        self.place(span, false).map(|octets| octets.to_vec())
    }

    /// RDMA Write. `None`: a remote access error.
    pub(crate) fn write(&mut self, span: Span, octets: &[u8]) -> Option<()> {
        self.place(span, true)?.copy_from_slice(octets);
        Some(())
    }

    /// Ends the exposure of `handle`, and gives its octets back.
    pub(crate) fn fence(&mut self, handle: u32) -> Vec<u8> {
        self.invalidate(handle).expect("a handle is fenced once")
    }

    /// The peer's Send invalidates `handle`. `None`: it is dead already.
    pub(crate) fn invalidate(&mut self, handle: u32) -> Option<Vec<u8>> {
        self.regions.remove(&handle).map(|region| region.octets)
    }

    /// The connection is gone, and all exposure with it.
    pub(crate) fn disconnect(&mut self) {
        self.regions.clear();
    }
}
