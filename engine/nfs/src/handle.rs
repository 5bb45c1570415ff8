//! File handles: 32 octets that name an object and that nobody can make up.
//!
//! ```text
//!  0        8        16           24          32
//!  | fsid   | fileid | generation | keyed tag |
//! ```
//!
//! The tag is a keyed hash of the rest, with a key that is new in each process. A handle whose tag is wrong
//! is [`Status::BadHandle`]; one whose object is gone is the store's [`Status::Stale`].

use std::hash::{BuildHasher, RandomState};

use stag_wire::nfs3::Status;

use crate::store::ObjectId;

/// Length of our handles in bytes.
pub const HANDLE_LEN: usize = 32;

/// Makes and checks handles.
#[derive(Clone, Debug)]
pub struct HandleKey {
    /// Keyed SipHash: made so that outputs tell nothing about the key.
    key: RandomState,
}

impl HandleKey {
    /// A new key, of the operating system's randomness.
    #[must_use]
    pub fn new() -> HandleKey {
        HandleKey { key: RandomState::new() }
    }

    fn tag(&self, fsid: u64, object: ObjectId) -> u64 {
        self.key.hash_one((fsid, object.fileid, object.generation))
    }

    /// The handle of an object in the file system `fsid`.
    #[must_use]
    pub fn seal(&self, fsid: u64, object: ObjectId) -> [u8; HANDLE_LEN] {
        let words = [fsid, object.fileid, object.generation, self.tag(fsid, object)];
        let mut handle = [0; HANDLE_LEN];
        for (place, word) in handle.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_be_bytes();
        }
        handle
    }

    /// The file system and object of a handle that [`HandleKey::seal`] made with this key.
    pub fn open(&self, handle: &[u8]) -> Result<(u64, ObjectId), Status> {
        let handle: &[u8; HANDLE_LEN] = handle.try_into().map_err(|_| Status::BadHandle)?;
        let mut words = handle.as_chunks().0.iter().map(|octets| u64::from_be_bytes(*octets));
        let mut word = || words.next().unwrap_or_default();
        let (fsid, object) = (word(), ObjectId { fileid: word(), generation: word() });
        if word() != self.tag(fsid, object) {
            return Err(Status::BadHandle);
        }
        Ok((fsid, object))
    }
}

impl Default for HandleKey {
    fn default() -> HandleKey {
        HandleKey::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sealed_handles_open() {
        let key = HandleKey::new();
        let object = ObjectId { fileid: 3, generation: 9 };
        let handle = key.seal(7, object);
        assert_eq!(key.open(&handle), Ok((7, object)));
        for index in 0..HANDLE_LEN {
            for bit in 0..8 {
                let mut forged = handle;
                forged[index] ^= 1 << bit;
                assert_eq!(key.open(&forged), Err(Status::BadHandle), "octet {index}, bit {bit}");
            }
        }
        for len in [0, 8, 31, 33, 64] {
            assert_eq!(key.open(&[0; 64][..len]), Err(Status::BadHandle), "{len} octets");
        }
        assert_eq!(HandleKey::new().open(&handle), Err(Status::BadHandle), "another server's");
    }
}
