//! Buffers that are copies.

use super::{Inner, Pool};
use crate::buf::Buf;

impl Pool {
    /// Takes one unit for a copy of `bytes`, which is all of the buffer. `None` if none is free, or if it is shorter.
    #[inline]
    #[must_use]
    pub fn take_copy(&self, bytes: &[u8]) -> Option<Buf> {
        let inner = self.inner();
        if bytes.len() > inner.unit_len as usize {
            return None;
        }
        let first = inner.pop()?;
        // SAFETY: `first` was free, and is now this buffer's alone; it holds as many bytes, as was just compared.
        let mut buf = unsafe { Inner::hand_out(self.inner, first, 1, bytes.len() as u32) };
        buf.copy_from_slice(bytes);
        Some(buf)
    }
}
